// JSON of checkpoints, which is not trusted when it is read.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_ACTORS_CHECKPOINT_JSON_INTERNAL_H_
#define PENSTOCK_ACTORS_CHECKPOINT_JSON_INTERNAL_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace penstock::actors {

// An object of objects of values, at most `max_depth` levels deep, without repeated keys.
// kDataLoss: the text is something else. `what` names it in errors: "the header".
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, std::string_view what,
                                               int max_depth = 3);

// Whether a text that is UTF-8 would do more than be seen on a terminal.
bool HasControlCharacters(std::string_view text);

// kInvalidArgument: a string is no UTF-8.
absl::StatusOr<std::string> DumpJson(const nlohmann::json& json);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CHECKPOINT_JSON_INTERNAL_H_
