#include "cli/json.h"

#include <cmath>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace penstock::cli {

std::string JsonNumber(double value, int digits) {
  if (!std::isfinite(value)) return "null";
  return fmt::format("{:.{}g}", value, digits);
}

std::string JsonString(std::string_view text) { return DumpJson(nlohmann::json(text)); }

std::string DumpJson(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace penstock::cli
