// Reads TOML that is not trusted, for jobs and cluster files, and words errors about it.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_CLUSTER_TOML_INTERNAL_H_
#define PENSTOCK_PLANNER_CLUSTER_TOML_INTERNAL_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include <toml.hpp>

namespace penstock::planner {

// "an integer": what a value is, for "expected a string, not an integer".
std::string_view TomlKind(const toml::value& value);

// Parses a text. Errors begin with FILE:LINE:COLUMN, or with FILE alone if the text is not from a
// file (`has_lines` is false). Brackets that are nested too deep are an error, because the parser
// recurses once for each.
absl::StatusOr<toml::value> ParseToml(std::string_view text, const std::string& file,
                                      bool has_lines = true);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_CLUSTER_TOML_INTERNAL_H_
