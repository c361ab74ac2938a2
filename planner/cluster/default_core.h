// A core of a processor, for predictions about a machine that was not measured.
//
// Thread rule: a constant.

#ifndef PENSTOCK_PLANNER_CLUSTER_DEFAULT_CORE_H_
#define PENSTOCK_PLANNER_CLUSTER_DEFAULT_CORE_H_

#include "planner/cluster/cluster_model.h"

namespace penstock::planner {

// What is written in default_core.toml.
const DeviceKind& DefaultCore();

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_CLUSTER_DEFAULT_CORE_H_
