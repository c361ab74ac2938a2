// The passes that can be asked for by name, and `penstock opt`: text in, passes, text out.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_OPT_H_
#define PENSTOCK_PLANNER_OPT_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "graph/op.h"
#include "planner/pass.h"

namespace penstock::planner {

// Every pass that has a name. The passes refer to `ops`, which must outlive them.
std::vector<Pass> NamedPasses(const graph::OpRegistry& ops);

// The passes named in `names`, "propagate,insert-reshards", in that order; spaces around a name do
// not count and an empty list names none. An unknown name is an error that names the nearest.
absl::StatusOr<std::vector<Pass>> FindPasses(std::string_view names, const graph::OpRegistry& ops);

// Parses `text` (`file` names it in errors), verifies it, applies the passes and prints it.
absl::StatusOr<std::string> Optimize(std::string_view text, std::string_view file,
                                     std::string_view passes, const graph::OpRegistry& ops,
                                     const PassOptions& options = {});

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_OPT_H_
