// The part of a plan that one process needs: a plan in which the devices of others are empty.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_ACTORS_CLUSTER_PLAN_SLICE_H_
#define PENSTOCK_ACTORS_CLUSTER_PLAN_SLICE_H_

#include <cstdint>

#include "planner/plan/plan.h"

namespace penstock::actors {

// Devices keep their numbers, stages and registers, and the kinds of their phases, by which the
// controllers of a stage come to the same choices; the others' actors and channels are left out,
// and with them the kernels that only they use.
planner::Plan SlicePlan(const planner::Plan& plan, uint32_t first_device, uint32_t num_devices);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_PLAN_SLICE_H_
