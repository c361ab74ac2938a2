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
  if (!what.empty() && what.back() == '.') what.remove_suffix(1);
  return std::string(what);
}

// Our words for what toml11 says about a text, which gives no other sign of what is wrong. `line`
// is the one it names.
std::string Reword(const std::string& what, std::string_view line) {
  const auto says = [&what](std::string_view words) {
    return what.find(words) != std::string::npos;
  };
  const auto name_in_quotes = [&what] {
    const size_t begin = what.find('"');
    const size_t end = what.rfind('"');
    return begin < end ? what.substr(begin + 1, end - begin - 1) : std::string();
  };
  // toml11 has no words, or odd ones, for a value that begins like none.
  if (what.empty() || says("unknown value appeared")) {
    return "not a TOML value; a string needs quotes";
  }
  if (says("value (\"") && says("already exists")) {
    return StrCat("the key '", name_in_quotes(), "' is set twice; remove one of the lines");
  }
  if (says("table (\"") && says("already exists")) {
    return StrCat("the section [", name_in_quotes(), "] appears twice; join the two");
  }
  if (says("invalid key appeared")) {
    const size_t begin = line.find_first_not_of(" \t");
    const bool is_section = begin != std::string_view::npos && line[begin] == '[';
    if (is_section && line.find(']') == std::string_view::npos) {
      return "']' is missing after the name of the section";
    }
    return "expected KEY = VALUE or [SECTION]";
  }
  if (says("missing key-value separator")) return "'=' is missing; expected KEY = VALUE";
  if (says("empty key")) return "the key before '=' is missing; expected KEY = VALUE";
  if (says("missing value after")) return "the value after '=' is missing; expected KEY = VALUE";
  if (says("invalid line format")) return "text after the value; expected one KEY = VALUE per line";
  if (says("newline required after")) return "text after ']'; expected [SECTION] on its own line";
  if (says("not a valid string")) return "a quote is missing or an escape is unknown in a string";
  if (says("missing array separator")) return "',' or ']' is missing in a list";
  if (says("missing curly brace")) {
    return "'}' is missing; a table in braces has to end on its line";
  }
  return StrCat("not valid TOML (", what, ")");
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
    return absl::InvalidArgumentError(
        StrCat(place, ": ", Reword(FirstLine(error.what()), where.line_str())));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(StrCat(file, ": ", Reword(FirstLine(error.what()), "")));
  }
}

}  // namespace penstock::planner
