// The cores that a node may use, in the messages of the control plane.
//
// Thread rule: the loop's thread.

#ifndef PENSTOCK_ACTORS_CLUSTER_WIRE_CORES_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_WIRE_CORES_INTERNAL_H_

#include "actors/cluster/control.capnp.h"
#include "base/process_cores.h"

namespace penstock::actors::control {

void WriteCores(const ProcessCores& cores, NodeInfo::Builder info);

// Lists and texts are bounded, processors ascend, and quotas are positive.
ProcessCores ReadCores(NodeInfo::Reader info);

}  // namespace penstock::actors::control

#endif  // PENSTOCK_ACTORS_CLUSTER_WIRE_CORES_INTERNAL_H_
