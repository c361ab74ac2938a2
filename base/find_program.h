// Programs by their names.
//
// Thread rule: a pure function of the environment.

#ifndef PENSTOCK_BASE_FIND_PROGRAM_H_
#define PENSTOCK_BASE_FIND_PROGRAM_H_

#include <string>

#include "absl/status/statusor.h"

namespace penstock {

// The path of the program that PATH has under the name; the name itself where it is a path.
// kNotFound: there is none.
absl::StatusOr<std::string> FindProgram(const std::string& name);

}  // namespace penstock

#endif  // PENSTOCK_BASE_FIND_PROGRAM_H_
