// Detects that a policy has stalled a plan: a dynamic policy may decline every phase that is ready.
//
// The detector compares two reports of every process of a plan, the second one asked for after all
// first ones had arrived. It finds a stall if
//   - no executor has made progress between the reports, and each has polled in vain since the
//     first one, so it has seen everything that was there by then;
//   - no policy has made a choice between the reports;
//   - no communication may be under way: of every transfer and collective, what one device has
//     started cannot complete until another device starts it;
//   - the policy of a stage declines what could run.
// Then nothing can change any more: what a slow network carries belongs to a communication that
// both sides have started and not completed. The time between the reports does not matter.
//
// Example: a plan sends h from device 0 to device 1.
//   device 0 has started sending h a third time, device 1 has received it twice    nothing moves
//   and has started receiving it a third time                                      h is under way
//   or has received it three times, and device 0 does not know yet                 its ack is
//
// Thread rule: StallDetector is immutable; the functions are pure.

#ifndef PENSTOCK_ACTORS_ENGINE_STALL_DETECTOR_H_
#define PENSTOCK_ACTORS_ENGINE_STALL_DETECTOR_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/plan/plan.h"

namespace penstock::actors {

// How an error about a stalled policy begins; the description of the stage follows.
inline constexpr char kPolicyStalled[] =
    "the policy chooses nothing though a phase could run, and nothing is under way: ";

// What the executors and stages of a process have done so far. All counters only grow.
struct ActivityReport {
  // An entry an executor in each.
  std::vector<int64_t> moves;       // polling rounds in which something happened
  std::vector<int64_t> idle_polls;  // rounds in which nothing did, with no event to come
  int64_t num_decisions = 0;        // rounds in which a policy has chosen
  // The starts and completions of each sending, receiving and collective actor, in the order of
  // devices and actors: odd while it is under way.
  std::vector<uint64_t> communications;
  std::string declined;  // a stage whose policy declines what could run; empty: there is none
};

// Nothing has happened in the process between the reports, and its executors have looked.
bool IsStill(const ActivityReport& before, const ActivityReport& after);

// Knows which counts of a report belong to one communication of the plan.
class StallDetector {
 public:
  // REQUIRES: CheckPlan(plan) is OK.
  explicit StallDetector(const planner::Plan& plan);

  // Length of `communications` in the report of a process with these devices.
  size_t NumCommunications(uint32_t first_device, uint32_t num_devices) const;

  // The first process that has a stage that declines, if the plan has stalled. The reports are
  // those of all processes, in the order of their devices.
  // REQUIRES: the reports have as many communications as the plan.
  std::optional<size_t> FindStall(const std::vector<ActivityReport>& before,
                                  const std::vector<ActivityReport>& after) const;

 private:
  // A transfer or collective.
  struct Communication {
    std::vector<size_t> members;  // among the communications of all reports
    // No member completes it before all have started it.
    bool needs_all = true;
  };

  static bool MayBeUnderWay(const Communication& communication,
                            const std::vector<uint64_t>& counts);

  std::vector<size_t> first_communication_;  // of each device, and their number
  std::vector<Communication> communications_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_STALL_DETECTOR_H_
