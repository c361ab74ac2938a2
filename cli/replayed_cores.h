// How devices that share cores are replayed (planner/cost/replay.h).
//
// The replay can let devices take turns on a core. It cannot share several cores among more devices
// than there are, as the system does from moment to moment: such devices have a core each in the
// replay, which is then a bound still, but a lower one.
//
// A kernel that shares its core takes longer than alone. Where devices take turns in the replay,
// it needs times without that: of the time during which n devices compute on one core, each
// computation gets 1/n.
//
// Example: on one core, device 0 computes from 0 to 6 ms and device 1 from 4 to 10 ms. Both needed
// 4 ms + 2 ms / 2 = 5 ms of the core.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_REPLAYED_CORES_H_
#define PENSTOCK_CLI_REPLAYED_CORES_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "actors/engine/executor.h"
#include "actors/trace/critical_path.h"
#include "planner/plan/plan.h"

namespace penstock::cli {

// ReplayOptions::core_of_device: devices of a group in which one can compute at once have one core,
// all others one each.
std::vector<uint32_t> CoreOfDevice(const actors::SharedCores& cores);

// The events, in which the computations of devices that take turns are as long as the time of the
// core that they got. REQUIRES: events of a device are in the order of their ends, as
// Session::TakeTrace gives them; `cores` has a group for each device of the plan.
std::vector<actors::TraceEvent> WithoutCoreSharing(const planner::Plan& plan,
                                                   absl::Span<const actors::TraceEvent> events,
                                                   const actors::SharedCores& cores);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_REPLAYED_CORES_H_
