#include <set>
#include <utility>
#include <vector>

#include "actors/checkpoint/json_internal.h"
#include "base/strings.h"

namespace penstock::actors {
using Json = nlohmann::json;

absl::StatusOr<Json> ParseJsonObject(std::string_view text, std::string_view what, int max_depth) {
  bool is_deep = false;
  std::string repeated;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > max_depth) is_deep = true;
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.empty()) {
      std::string key = parsed.get<std::string>();
      if (!keys.back().insert(key).second) repeated = std::move(key);
    }
    return !is_deep;
  };
  Json json = Json::parse(text.begin(), text.end(), check, /*allow_exceptions=*/false);
  if (is_deep || json.is_discarded() || !json.is_object()) {
    return absl::DataLossError(StrCat(what, " is no JSON object of objects"));
  }
  if (!repeated.empty()) {
    return absl::DataLossError(StrCat(what, " names ", repeated, " twice"));
  }
  return json;
}

bool HasControlCharacters(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x20 || byte == 0x7f) return true;
    // U+0080 to U+009F.
    if (byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0) {
      return true;
    }
  }
  return false;
}

absl::StatusOr<std::string> DumpJson(const Json& json) {
  try {
    return json.dump();
  } catch (const Json::type_error&) {
    return absl::InvalidArgumentError("a name of a state, or a setting, is no UTF-8");
  }
}

}  // namespace penstock::actors
