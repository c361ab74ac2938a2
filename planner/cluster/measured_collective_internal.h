// Reads one section [[collective]] of a cluster file.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_CLUSTER_MEASURED_COLLECTIVE_INTERNAL_H_
#define PENSTOCK_PLANNER_CLUSTER_MEASURED_COLLECTIVE_INTERNAL_H_

#include "absl/status/statusor.h"

#include "planner/cluster/measured_collective.h"
#include "planner/cluster/toml_section_internal.h"

namespace penstock::planner {

absl::StatusOr<MeasuredCollective> ReadMeasuredCollective(const Section& section);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_CLUSTER_MEASURED_COLLECTIVE_INTERNAL_H_
