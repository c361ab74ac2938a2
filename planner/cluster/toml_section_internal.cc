#include "planner/cluster/toml_section_internal.h"

namespace penstock::planner {

std::string PlaceOf(std::string_view file, const toml::source_location& where) {
  return StrCat(file, ":", where.line(), ":", where.column());
}

absl::StatusOr<std::string> ReadString(const Entry& entry) {
  if (!entry.value->is_string()) return entry.Expected("a string");
  return entry.value->as_string().str;
}

absl::StatusOr<int64_t> ReadInteger(const Entry& entry, int64_t least, int64_t most) {
  if (!entry.value->is_integer()) return entry.Expected("an integer");
  const int64_t number = entry.value->as_integer();
  if (number >= least && number <= most) return number;
  return entry.Error(StrCat(number, " is out of range: expected ", least, " to ", most));
}

absl::StatusOr<double> ReadNumber(const Entry& entry, double least, double most) {
  double number = 0;
  if (entry.value->is_floating()) {
    number = entry.value->as_floating();
  } else if (entry.value->is_integer()) {
    number = static_cast<double>(entry.value->as_integer());
  } else {
    return entry.Expected("a number");
  }
  // Written so that NaN fails.
  if (number >= least && number <= most) return number;
  return entry.Error(
      StrCat(number, " is out of range: expected a number from ", least, " to ", most));
}

// An integer or a list of them.
absl::StatusOr<std::vector<int64_t>> ReadIntegers(const Entry& entry, int64_t most) {
  std::vector<int64_t> numbers;
  if (!entry.value->is_array()) {
    if (!entry.value->is_integer()) return entry.Expected("an integer or a list of integers");
    ASSIGN_OR_RETURN(numbers.emplace_back(), ReadInteger(entry, 1, most));
    return numbers;
  }
  for (const toml::value& element : entry.value->as_array()) {
    ASSIGN_OR_RETURN(numbers.emplace_back(), ReadInteger(entry.Element(element), 1, most));
  }
  if (numbers.empty()) return entry.Error("the list is empty: expected an integer");
  return numbers;
}

}  // namespace penstock::planner
