// Attributes of a node: named values of a few kinds, as the text format writes them.
//
// Thread rule: values; safe to read concurrently.

#ifndef PENSTOCK_GRAPH_ATTRIBUTES_H_
#define PENSTOCK_GRAPH_ATTRIBUTES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/types/span.h"

#include "base/dtype.h"
#include "base/shape.h"

namespace penstock::graph {

// One attribute value. Equality is exact, and NaN equals NaN, so that a printed graph that is read
// again compares equal.
class AttrValue {
 public:
  // Elements may be of different kinds.
  using List = std::vector<AttrValue>;

  // An integer.
  AttrValue(int64_t value) : value_(value) {}  // NOLINT: implicit, builders read better
  // An integer, so that literals need no cast.
  AttrValue(int value) : value_(int64_t{value}) {}  // NOLINT
  // A floating-point number, even if it is whole.
  AttrValue(double value) : value_(value) {}  // NOLINT
  // A truth value.
  AttrValue(bool value) : value_(value) {}  // NOLINT
  // A string.
  AttrValue(std::string value) : value_(std::move(value)) {}  // NOLINT
  // A string. REQUIRES: not null.
  AttrValue(const char* value) : value_(std::string(value)) {}  // NOLINT
  // An element type.
  AttrValue(DType value) : value_(value) {}  // NOLINT
  // A list.
  AttrValue(List value) : value_(std::move(value)) {}  // NOLINT
  // A list of integers, such as a shape or a permutation.
  static AttrValue Ints(absl::Span<const int64_t> values);

  // Null if the value is no integer.
  const int64_t* AsInt() const { return std::get_if<int64_t>(&value_); }
  // Null if the value is no floating-point number. An integer is none; Attributes::GetDouble
  // converts it.
  const double* AsDouble() const { return std::get_if<double>(&value_); }
  // Null if the value is no truth value.
  const bool* AsBool() const { return std::get_if<bool>(&value_); }
  // Null if the value is no string.
  const std::string* AsString() const { return std::get_if<std::string>(&value_); }
  // Null if the value is no element type.
  const DType* AsDType() const { return std::get_if<DType>(&value_); }
  // Null if the value is no list.
  const List* AsList() const { return std::get_if<List>(&value_); }

  // Whether both are of one kind and equal; two NaNs are.
  friend bool operator==(const AttrValue& a, const AttrValue& b);

 private:
  std::variant<int64_t, double, bool, std::string, DType, List> value_;
};

// A small map from name to value, kept sorted by name so that printing and equality are canonical.
class Attributes {
 public:
  Attributes() = default;
  // Entries in any order; of several with one name, the last counts.
  Attributes(std::initializer_list<std::pair<std::string, AttrValue>> entries);

  // Adds the attribute, or replaces its value.
  void Set(std::string name, AttrValue value);
  // Removes the attribute, if there is one.
  void Erase(std::string_view name);
  // Null if there is no such attribute. Valid until the next change.
  const AttrValue* Find(std::string_view name) const;
  // Whether there are no attributes.
  bool empty() const { return entries_.empty(); }
  // All attributes, by name. Valid until the next change.
  absl::Span<const std::pair<std::string, AttrValue>> entries() const { return entries_; }

  // The typed value, or `fallback` when the attribute is absent or of another kind (the verifier
  // has refused other kinds by then).
  int64_t GetInt(std::string_view name, int64_t fallback) const;
  // The same for a floating-point number, or an integer, which is converted.
  double GetDouble(std::string_view name, double fallback) const;
  // The same for a truth value.
  bool GetBool(std::string_view name, bool fallback) const;
  // The same for a string.
  std::string GetString(std::string_view name, std::string_view fallback) const;
  // The same for an element type.
  DType GetDType(std::string_view name, DType fallback) const;
  // The integers of a list; empty if the attribute is absent or no list.
  Shape GetInts(std::string_view name) const;

  friend bool operator==(const Attributes&, const Attributes&) = default;

 private:
  std::vector<std::pair<std::string, AttrValue>> entries_;
};

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_ATTRIBUTES_H_
