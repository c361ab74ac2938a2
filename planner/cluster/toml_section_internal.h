// Sections of TOML files with a fixed set of keys, read strictly: errors begin with
// file:line:column and say what was expected.
//
// Thread rule: values that refer to the text's tree and its name, which outlive them.

#ifndef PENSTOCK_PLANNER_CLUSTER_TOML_SECTION_INTERNAL_H_
#define PENSTOCK_PLANNER_CLUSTER_TOML_SECTION_INTERNAL_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <toml.hpp>

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/cluster/toml_internal.h"

namespace penstock::planner {

std::string PlaceOf(std::string_view file, const toml::source_location& where);

// A value with the name of its key, for errors.
struct Entry {
  std::string_view file;
  std::string key;
  const toml::value* value;

  absl::Status Error(std::string_view message) const {
    return absl::InvalidArgumentError(
        StrCat(PlaceOf(file, value->location()), ": ", key, ": ", message));
  }
  absl::Status Expected(std::string_view what) const {
    return Error(StrCat("expected ", what, ", not ", TomlKind(*value)));
  }
  Entry Element(const toml::value& element) const { return {file, key, &element}; }
};

absl::StatusOr<std::string> ReadString(const Entry& entry);
absl::StatusOr<int64_t> ReadInteger(const Entry& entry, int64_t least, int64_t most);
absl::StatusOr<double> ReadNumber(const Entry& entry, double least, double most);
// An integer or a list of them.
absl::StatusOr<std::vector<int64_t>> ReadIntegers(const Entry& entry, int64_t most);

// One table with a fixed set of keys.
class Section {
 public:
  // `name` is empty for the whole file.
  Section(std::string_view file, std::string_view name, const toml::value& table)
      : file_(file), name_(name), table_(table) {}

  // An error for a key that is not in `known`.
  absl::Status CheckKeys(const std::vector<std::string_view>& known) const {
    for (const auto& [key, value] : table_.as_table()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      return absl::InvalidArgumentError(StrCat(PlaceOf(file_, value.location()), ": unknown key '",
                                               Qualified(key), "'; expected ",
                                               StrJoin(known, ", ")));
    }
    return absl::OkStatus();
  }

  bool Has(const std::string& key) const { return table_.as_table().count(key) > 0; }

  absl::StatusOr<Entry> Get(const std::string& key) const {
    const auto found = table_.as_table().find(key);
    if (found != table_.as_table().end()) return Entry{file_, Qualified(key), &found->second};
    return absl::InvalidArgumentError(StrCat(PlaceOf(file_, table_.location()), ": ",
                                             name_.empty() ? "" : StrCat("[[", name_, "]] "),
                                             "has no '", key, "'"));
  }

  absl::Status Read(const std::string& key, std::string* to) const {
    ASSIGN_OR_RETURN(const Entry entry, Get(key));
    ASSIGN_OR_RETURN(*to, ReadString(entry));
    return absl::OkStatus();
  }
  absl::Status Read(const std::string& key, double least, double most, double* to) const {
    ASSIGN_OR_RETURN(const Entry entry, Get(key));
    ASSIGN_OR_RETURN(*to, ReadNumber(entry, least, most));
    return absl::OkStatus();
  }
  absl::Status Read(const std::string& key, int64_t least, int64_t most, int64_t* to) const {
    ASSIGN_OR_RETURN(const Entry entry, Get(key));
    ASSIGN_OR_RETURN(*to, ReadInteger(entry, least, most));
    return absl::OkStatus();
  }

  // The tables of [[key]]; empty if there are none.
  absl::StatusOr<std::vector<const toml::value*>> Tables(const std::string& key,
                                                         int64_t most) const {
    std::vector<const toml::value*> tables;
    if (!Has(key)) return tables;
    ASSIGN_OR_RETURN(const Entry entry, Get(key));
    const std::string expected = StrCat("sections [[", key, "]]");
    if (!entry.value->is_array()) return entry.Expected(expected);
    for (const toml::value& element : entry.value->as_array()) {
      if (!element.is_table()) return entry.Element(element).Expected(expected);
      tables.push_back(&element);
      if (static_cast<int64_t>(tables.size()) > most) {
        return entry.Element(element).Error(StrCat("expected at most ", most, " of ", expected));
      }
    }
    return tables;
  }

  std::string Place() const { return PlaceOf(file_, table_.location()); }

 private:
  std::string Qualified(std::string_view key) const {
    return name_.empty() ? std::string(key) : StrCat(name_, ".", key);
  }

  const std::string_view file_;
  const std::string_view name_;
  const toml::value& table_;
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_CLUSTER_TOML_SECTION_INTERNAL_H_
