// How a value lies where it passes from one mesh of devices to another, as pipeline stages with
// different numbers of devices have. The temporal axes of both meshes are the same micro-batches;
// their spatial axes have nothing in common, so the receiving side chooses.
//
// Worked example. x is f32[1024, 64] @[mb.dp, _] on [mb=2 temporal, dp=4] and is read as @[mb, _]
// on [mb=2 temporal, tp=2]. It is sent as it is, a micro-batch at a time, and arrives as
// @[mb.tp, _]: each element is sent once, and the devices along tp gather the rest from each other.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_SHARDING_ARRIVAL_H_
#define PENSTOCK_PLANNER_SHARDING_ARRIVAL_H_

#include "base/tensor.h"
#include "graph/sharding.h"

namespace penstock::planner {

// What is sent of a value that is held so: no sums and no windows, and what one micro-batch makes
// only if that is one part of the tensor. (Of @[d.mb] it is a part of each device's part, so all
// micro-batches are gathered first.)
graph::Sharding Sendable(const graph::Mesh& mesh, graph::Sharding held);

// The temporal axes of a value that is sent as `sent`, as axes of the mesh `to`; nothing is split
// over devices. None unless `to` has the same temporal axes.
graph::Sharding OverTime(const graph::Mesh& from, const graph::Sharding& sent,
                         const graph::Mesh& to);

// How a value arrives on `mesh` for a reader that needs it as `needed`: over time as OverTime says,
// over devices as needed. What devices would receive more than once is split further, over each
// axis for whose parts a dimension is long enough, unless the value is small.
graph::Sharding Arrival(const TensorType& type, const graph::Mesh& mesh,
                        const graph::Sharding& over_time, const graph::Sharding& needed);

// Arrival without splitting further.
graph::Sharding ArrivalAsNeeded(const graph::Mesh& mesh, const graph::Sharding& over_time,
                                const graph::Sharding& needed);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_ARRIVAL_H_
