// How long a step of a plan takes if each device, core and direction of a link does one thing at a
// time (but a device with copy streams copies beside its kernels), and nothing else takes time: a
// bound that a run can be compared with.
//
// The plan is fired in virtual time (fire_plan.h), under the same rules as in the engine: lanes in
// the stages' orders, gates, tokens and credits. What differs from a run: computation takes a given
// time per actor; a communication begins when all its members have started it and its links are
// free, and takes what the alpha-beta model says (communication_cost.h) at the rates of the slowest
// link between its members; threads, wake-ups and messages cost nothing. Steps are submitted
// ahead, so they overlap as far as the plan lets them: the result is the mean time from the end of
// one step to the end of the next, without the last step, behind which nothing follows.
//
// Example: two stages, one micro-batch, forward only. Device 0 computes for 4 ms and sends 8 MB at
// 8 GB/s with 1 us of latency; device 1 computes for 2 ms. One step is complete after 7.001 ms; the
// next one 4 ms later if the plan has credits for two, as device 0 is then the slowest.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_COST_REPLAY_H_
#define PENSTOCK_PLANNER_COST_REPLAY_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"

#include "planner/cost/communication_cost.h"
#include "planner/plan/plan.h"
#include "planner/policy/policy.h"

namespace penstock::planner {

struct ReplayOptions {
  // Of an actor that computes, a feed or a fetch.
  std::function<double(uint32_t device, uint32_t actor)> compute_s;
  // Where devices are. Empty: each in a process, and on cores, of its own.
  std::vector<uint32_t> process_of_device;  // pairs of processes have a link for each direction
  std::vector<uint32_t> core_of_device;     // devices on one core take turns
  // Which devices copy to and from their hosts beside kernels, one copy at a time in each
  // direction. Empty: none; copies then take turns with kernels.
  std::vector<bool> has_copy_streams;
  // Of the link from one process to another, or between devices of one process, where each pair of
  // devices has its own. Null: the defaults of LinkRates.
  std::function<LinkRates(uint32_t from_process, uint32_t to_process)> link;
};

// Seconds a step. Errors are those of FirePlan. REQUIRES: VerifyPlan accepts the plan; the options'
// lists are empty or name something for each device.
absl::StatusOr<double> ReplayStepSeconds(const Plan& plan, const PolicyRegistry& policies,
                                         const ReplayOptions& options);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_COST_REPLAY_H_
