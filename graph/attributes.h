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
  using List = std::vector<AttrValue>;

  AttrValue(int64_t value) : value_(value) {}       // NOLINT: implicit, builders read better
  AttrValue(int value) : value_(int64_t{value}) {}  // NOLINT
  AttrValue(double value) : value_(value) {}        // NOLINT
  AttrValue(bool value) : value_(value) {}          // NOLINT
  AttrValue(std::string value) : value_(std::move(value)) {}    // NOLINT
  AttrValue(const char* value) : value_(std::string(value)) {}  // NOLINT
  AttrValue(DType value) : value_(value) {}                     // NOLINT
  AttrValue(List value) : value_(std::move(value)) {}           // NOLINT
  static AttrValue Ints(absl::Span<const int64_t> values);

  // Null when the value is of another kind. AsDouble also takes integers, through ToDouble.
  const int64_t* AsInt() const { return std::get_if<int64_t>(&value_); }
  const double* AsDouble() const { return std::get_if<double>(&value_); }
  const bool* AsBool() const { return std::get_if<bool>(&value_); }
  const std::string* AsString() const { return std::get_if<std::string>(&value_); }
  const DType* AsDType() const { return std::get_if<DType>(&value_); }
  const List* AsList() const { return std::get_if<List>(&value_); }

  friend bool operator==(const AttrValue& a, const AttrValue& b);

 private:
  std::variant<int64_t, double, bool, std::string, DType, List> value_;
};

// A small map from name to value, kept sorted by name so that printing and equality are canonical.
class Attributes {
 public:
  Attributes() = default;
  Attributes(std::initializer_list<std::pair<std::string, AttrValue>> entries);

  void Set(std::string name, AttrValue value);
  void Erase(std::string_view name);
  const AttrValue* Find(std::string_view name) const;
  bool empty() const { return entries_.empty(); }
  absl::Span<const std::pair<std::string, AttrValue>> entries() const { return entries_; }

  // The typed value, or `fallback` when the attribute is absent or of another kind (the verifier
  // has refused other kinds by then). GetDouble accepts an integer.
  int64_t GetInt(std::string_view name, int64_t fallback) const;
  double GetDouble(std::string_view name, double fallback) const;
  bool GetBool(std::string_view name, bool fallback) const;
  std::string GetString(std::string_view name, std::string_view fallback) const;
  DType GetDType(std::string_view name, DType fallback) const;
  Shape GetInts(std::string_view name) const;  // empty when absent

  friend bool operator==(const Attributes&, const Attributes&) = default;

 private:
  std::vector<std::pair<std::string, AttrValue>> entries_;
};

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_ATTRIBUTES_H_
