#include "planner/cluster/toml_internal.h"

#include <exception>
#include <sstream>

#include "base/strings.h"

namespace penstock::planner {
namespace {

constexpr int kMaxNesting = 32;

// toml11's message without its drawing: the first line, without "[error] " and its function's name.
std::string FirstLine(std::string_view what) {
  what = what.substr(0, what.find('\n'));
  for (const std::string_view prefix : {"[error] ", "toml::"}) {
    if (what.substr(0, prefix.size()) == prefix) {
      what.remove_prefix(prefix.size());
      if (prefix == "toml::" && what.find(": ") != std::string_view::npos) {
        what.remove_prefix(what.find(": ") + 2);
      }
    }
  }
  // toml11 has no words, or odd ones, for a value that begins like none.
  if (what.empty() || what.find("unknown value appeared") != std::string_view::npos) {
    return "not a TOML value; a string needs quotes";
  }
  if (what.back() == '.') what.remove_suffix(1);
  return std::string(what);
}

// The parser descends once a bracket; a text that is nested deeper is refused before it does.
bool IsTooDeep(std::string_view text) {
  int depth = 0;
  for (const char c : text) {
    if (c == '[' || c == '{') ++depth;
    if ((c == ']' || c == '}') && depth > 0) --depth;
    if (depth > kMaxNesting) return true;
  }
  return false;
}

}  // namespace

std::string_view TomlKind(const toml::value& value) {
  switch (value.type()) {
    case toml::value_t::boolean:
      return "a boolean";
    case toml::value_t::integer:
      return "an integer";
    case toml::value_t::floating:
      return "a float";
    case toml::value_t::string:
      return "a string";
    case toml::value_t::array:
      return "a list";
    case toml::value_t::table:
      return "a table";
    default:
      return "a date or time";
  }
}

absl::StatusOr<toml::value> ParseToml(std::string_view text, const std::string& file,
                                      bool has_lines) {
  if (IsTooDeep(text)) {
    return absl::InvalidArgumentError(
        StrCat(file, ": brackets are nested more than ", kMaxNesting, " deep"));
  }
  std::istringstream stream{std::string(text)};
  try {
    return toml::parse(stream, file);
  } catch (const toml::exception& error) {
    const toml::source_location& where = error.location();
    const std::string place =
        has_lines ? StrCat(file, ":", where.line(), ":", where.column()) : file;
    return absl::InvalidArgumentError(StrCat(place, ": ", FirstLine(error.what())));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(StrCat(file, ": ", FirstLine(error.what())));
  }
}

}  // namespace penstock::planner
