// When the phases of one step run, in seconds, if every group of devices follows its order: the
// pipeline's time with its bubbles, before a plan exists.
//
// A phase begins when the phases before it in its group's order have ended and what it reads has
// arrived. Transfers run beside phases; those of one edge follow one another.
//
// Groups whose devices share the cores of a host slow each other down while both run phases.
//
// Example: 2 groups, 1 micro-batch, forward phases of 1 s and 2 s, backward phases of 2 s and 4 s,
// no transfers: F0 ends at 1, F0 of group 1 at 3, B0 of group 1 at 7, B0 of group 0 at 9.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_SEARCH_SCHEDULE_SECONDS_H_
#define PENSTOCK_PLANNER_SEARCH_SCHEDULE_SECONDS_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"

#include "planner/policy/policy.h"

namespace penstock::planner {

// What passes from a phase of one virtual stage to the same kind of phase of another, once a
// micro-batch.
struct ScheduleEdge {
  int from = 0;
  int to = 0;
  bool is_forward = true;
  double seconds = 0;  // of the transfer
};

// A host with fewer cores than devices.
struct SharedCores {
  std::vector<double> devices_of_group;  // by group: devices on this host
  double at_once = 1;                    // that the cores can serve
};

struct ScheduleInput {
  int num_groups = 1;
  int num_microbatches = 1;
  // By virtual stage: stage v is chunk v / num_groups of group v % num_groups.
  std::vector<double> forward_s;
  std::vector<double> backward_s;  // empty: there are no backward phases
  std::vector<double> ready_s;     // when its first forward phase can begin; empty: at once
  std::vector<ScheduleEdge> edges;
  std::vector<SharedCores> cores;
};

struct ScheduleOutcome {
  std::vector<double> end_s;   // by group: when its last phase ends
  std::vector<int> in_flight;  // by virtual stage: most micro-batches whose backward is to come
};

// The orders of a policy for every group. A policy that decides as it goes is represented by 1f1b.
absl::StatusOr<std::vector<std::vector<PhaseChoice>>> OrdersOf(const Policy& policy, int num_groups,
                                                               int num_chunks, int num_microbatches,
                                                               bool has_backward);

// Nothing if the orders wait for each other for ever.
std::optional<ScheduleOutcome> RunSchedule(const ScheduleInput& input,
                                           const std::vector<std::vector<PhaseChoice>>& orders);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_SCHEDULE_SECONDS_H_
