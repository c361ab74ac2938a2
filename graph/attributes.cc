#include "graph/attributes.h"

#include <algorithm>
#include <cmath>

namespace penstock::graph {
namespace {

bool NameBefore(const std::pair<std::string, AttrValue>& entry, std::string_view name) {
  return entry.first < name;
}

}  // namespace

AttrValue AttrValue::Ints(absl::Span<const int64_t> values) {
  return List(values.begin(), values.end());
}

bool operator==(const AttrValue& a, const AttrValue& b) {
  const double* x = a.AsDouble();
  const double* y = b.AsDouble();
  if (x != nullptr && y != nullptr && std::isnan(*x) && std::isnan(*y)) return true;
  return a.value_ == b.value_;
}

Attributes::Attributes(std::initializer_list<std::pair<std::string, AttrValue>> entries) {
  for (const auto& [name, value] : entries) Set(name, value);
}

void Attributes::Set(std::string name, AttrValue value) {
  auto it = std::lower_bound(entries_.begin(), entries_.end(), std::string_view(name), NameBefore);
  if (it != entries_.end() && it->first == name) {
    it->second = std::move(value);
  } else {
    entries_.emplace(it, std::move(name), std::move(value));
  }
}

void Attributes::Erase(std::string_view name) {
  auto it = std::lower_bound(entries_.begin(), entries_.end(), name, NameBefore);
  if (it != entries_.end() && it->first == name) entries_.erase(it);
}

const AttrValue* Attributes::Find(std::string_view name) const {
  auto it = std::lower_bound(entries_.begin(), entries_.end(), name, NameBefore);
  return it != entries_.end() && it->first == name ? &it->second : nullptr;
}

int64_t Attributes::GetInt(std::string_view name, int64_t fallback) const {
  const AttrValue* value = Find(name);
  return value != nullptr && value->AsInt() != nullptr ? *value->AsInt() : fallback;
}

double Attributes::GetDouble(std::string_view name, double fallback) const {
  const AttrValue* value = Find(name);
  if (value == nullptr) return fallback;
  if (const int64_t* integer = value->AsInt()) return static_cast<double>(*integer);
  return value->AsDouble() != nullptr ? *value->AsDouble() : fallback;
}

bool Attributes::GetBool(std::string_view name, bool fallback) const {
  const AttrValue* value = Find(name);
  return value != nullptr && value->AsBool() != nullptr ? *value->AsBool() : fallback;
}

std::string Attributes::GetString(std::string_view name, std::string_view fallback) const {
  const AttrValue* value = Find(name);
  return value != nullptr && value->AsString() != nullptr ? *value->AsString()
                                                          : std::string(fallback);
}

DType Attributes::GetDType(std::string_view name, DType fallback) const {
  const AttrValue* value = Find(name);
  return value != nullptr && value->AsDType() != nullptr ? *value->AsDType() : fallback;
}

Shape Attributes::GetInts(std::string_view name) const {
  Shape ints;
  const AttrValue* value = Find(name);
  if (value == nullptr || value->AsList() == nullptr) return ints;
  for (const AttrValue& element : *value->AsList()) {
    if (element.AsInt() != nullptr) ints.push_back(*element.AsInt());
  }
  return ints;
}

}  // namespace penstock::graph
