// Snapshots of devices and the status of a job in the messages of the control plane.
//
// Readers check what they read: lists and texts are bounded, and indices of devices are below the
// number of devices.
//
// Thread rule: the loop's thread.

#ifndef PENSTOCK_ACTORS_CLUSTER_WIRE_JOB_STATUS_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_WIRE_JOB_STATUS_INTERNAL_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include <kj/async.h>

#include "actors/cluster/control.capnp.h"
#include "actors/cluster/job_status.h"
#include "actors/cluster/questions_internal.h"

namespace penstock::actors::control {

void WriteDevices(const std::vector<DeviceSnapshot>& devices,
                  Node::InspectResults::Builder results);
// An error unless it tells of these devices, in their order.
absl::StatusOr<std::vector<DeviceSnapshot>> ReadDevices(Node::InspectResults::Reader results,
                                                        uint32_t first_device,
                                                        uint32_t num_devices);

void WriteJobStatus(const actors::JobStatus& status, JobStatus::Builder builder);
absl::StatusOr<actors::JobStatus> ReadJobStatus(JobStatus::Reader reader);

using StatusContext = capnp::CallContext<Monitor::StatusParams, Monitor::StatusResults>;

// The answer to the call Monitor.status.
kj::Promise<void> AnswerStatus(kj::Promise<Questions<actors::JobStatus>::Answer> answer,
                               StatusContext context);

}  // namespace penstock::actors::control

#endif  // PENSTOCK_ACTORS_CLUSTER_WIRE_JOB_STATUS_INTERNAL_H_
