// The temporal axes of shardings: what is split or partial over micro-batches.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_SHARDING_TEMPORAL_SHARDING_H_
#define PENSTOCK_PLANNER_SHARDING_TEMPORAL_SHARDING_H_

#include <cstdint>

#include "graph/sharding.h"

namespace penstock::planner {

// Keeps the axes that come before the first temporal one, in each dimension.
void DropTemporal(const graph::Mesh& mesh, graph::Sharding* sharding);

graph::Sharding WithoutTemporalPartials(const graph::Mesh& mesh, graph::Sharding sharding);

// Without the sums over micro-batches that the kernel, which leaves `made`, does not make.
graph::Sharding WithoutOtherSums(const graph::Mesh& mesh, graph::Sharding sharding,
                                 const graph::Sharding& made);

bool HasTemporalPartials(const graph::Mesh& mesh, const graph::Sharding& sharding);

// Devices over which a value is split.
int64_t SpatialParts(const graph::Mesh& mesh, const graph::Sharding& sharding);

// Whether the value is split or partial over micro-batches.
bool HasTemporalAxes(const graph::Mesh& mesh, const graph::Sharding& sharding);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_TEMPORAL_SHARDING_H_
