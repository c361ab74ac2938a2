#include "planner/sharding/axis_list.h"

namespace penstock::planner {

using graph::AxisRef;

bool IsWithin(const AxisRef& a, const AxisRef& b) {
  return a.axis == b.axis && a.pre >= b.pre && a.pre * a.size <= b.pre * b.size;
}

bool IsPrefix(const AxisRef& a, const AxisRef& b) {
  return a.axis == b.axis && a.pre == b.pre && b.size % a.size == 0;
}

bool IsPrefix(AxisSpan a, AxisSpan b) {
  if (a.size() > b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool is_last = i + 1 == a.size();
    if (is_last ? !IsPrefix(a[i], b[i]) : a[i] != b[i]) return false;
  }
  return true;
}

bool IsStrictPrefix(AxisSpan a, AxisSpan b) { return IsPrefix(a, b) && a != b; }

std::optional<AxisRef> PrefixBeside(const AxisRef& axis, AxisSpan others) {
  AxisRef rest = axis;
  for (const AxisRef& other : others) {
    if (!graph::CanCoexist(rest, other)) return std::nullopt;
    if (!graph::Overlap(rest, other)) continue;
    if (rest.pre >= other.pre) return std::nullopt;
    rest.size = other.pre / rest.pre;
  }
  return rest;
}

int64_t NumParts(AxisSpan axes) {
  int64_t parts = 1;
  for (const AxisRef& axis : axes) parts *= axis.size;
  return parts;
}

void AppendAxis(const AxisRef& axis, AxisList* axes) {
  if (!axes->empty()) {
    AxisRef& last = axes->back();
    if (last.axis == axis.axis && last.pre * last.size == axis.pre) {
      last.size *= axis.size;
      return;
    }
  }
  axes->push_back(axis);
}

}  // namespace penstock::planner
