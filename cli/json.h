// JSON as the commands print it.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_JSON_H_
#define PENSTOCK_CLI_JSON_H_

#include <string>
#include <string_view>

#include "nlohmann/json_fwd.hpp"

namespace penstock::cli {

// A number with `digits` significant digits ("%.9g"); null where it is not finite, which JSON
// cannot say.
std::string JsonNumber(double value, int digits = 9);

// A quoted string; bytes that are not UTF-8 become U+FFFD.
std::string JsonString(std::string_view text);

// A value on one line; strings as JsonString writes them. (The library's own dump() throws where a
// string is not UTF-8, as the name of a file may be.)
std::string DumpJson(const nlohmann::json& json);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_JSON_H_
