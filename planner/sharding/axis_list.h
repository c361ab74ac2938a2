// Ordered lists of mesh axes and sub-axes, and the questions that propagation asks of them: what is
// a prefix of what, and what is left of an axis beside others.
//
// A list is read major first. A sub-axis that starts where another does and is no longer is a
// prefix of it: "a:(1)2" is a prefix of "a:(1)4" and of the whole "a". So a list is a prefix of
// another when all its axes but the last are the same and the last is a prefix of its counterpart.
//
// Thread rule: pure functions.
// Invariant: no list holds two pieces of one axis that could be joined (graph::Canonicalize).

#ifndef PENSTOCK_PLANNER_SHARDING_AXIS_LIST_H_
#define PENSTOCK_PLANNER_SHARDING_AXIS_LIST_H_

#include <cstdint>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"

#include "graph/sharding.h"

namespace penstock::planner {

using AxisList = absl::InlinedVector<graph::AxisRef, 3>;
using AxisSpan = absl::Span<const graph::AxisRef>;

// Whether `a` begins where `b` does and lies within it.
bool IsPrefix(const graph::AxisRef& a, const graph::AxisRef& b);

// Whether `a` lies within `b`.
bool IsWithin(const graph::AxisRef& a, const graph::AxisRef& b);

// Whether the list `a` is a prefix of the list `b`, equality included.
bool IsPrefix(AxisSpan a, AxisSpan b);
// The same, equality excluded.
bool IsStrictPrefix(AxisSpan a, AxisSpan b);

// The largest prefix of `axis` that one tensor may use beside every axis of `others`; none when
// nothing is left. Beside "a:(2)2", "a" of size 4 leaves "a:(1)2".
std::optional<graph::AxisRef> PrefixBeside(const graph::AxisRef& axis, AxisSpan others);

// Product of the sizes.
int64_t NumParts(AxisSpan axes);

// Appends an axis, joining it with the last one where they are adjacent pieces of one axis.
void AppendAxis(const graph::AxisRef& axis, AxisList* axes);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_AXIS_LIST_H_
