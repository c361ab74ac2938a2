// How a micro-batch moves through a V-shaped pipeline with two chunks a group (Placement::kVee).
//
// It passes the groups four times, and turns round at the ends:
//   pass 0: F of chunk 0, from the first group to the last;
//   pass 1: F of chunk 1, back to the first group, which computes the loss;
//   pass 2: B of chunk 1, to the last group;
//   pass 3: B of chunk 0, back to the first group.
// W of a chunk may follow its B at any time.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_POLICY_VEE_PASSES_H_
#define PENSTOCK_PLANNER_POLICY_VEE_PASSES_H_

#include <array>
#include <cstddef>
#include <optional>

#include "planner/policy/phase.h"

namespace penstock::planner::internal {

inline constexpr size_t kNumVeePasses = 4;

struct VeePass {
  PhaseKind kind = PhaseKind::kForward;
  int chunk = 0;
  bool starts_at_first_group = true;  // and else at the last
};

inline constexpr std::array<VeePass, kNumVeePasses> kVeePasses = {{
    {PhaseKind::kForward, 0, true},
    {PhaseKind::kForward, 1, false},
    {PhaseKind::kBackward, 1, true},
    {PhaseKind::kBackward, 0, false},
}};

// The group that a pass visits before `group`; nothing where the pass starts.
inline std::optional<size_t> GroupBefore(size_t pass, size_t group, size_t num_groups) {
  if (kVeePasses[pass].starts_at_first_group) {
    return group == 0 ? std::nullopt : std::optional(group - 1);
  }
  return group + 1 == num_groups ? std::nullopt : std::optional(group + 1);
}

}  // namespace penstock::planner::internal

#endif  // PENSTOCK_PLANNER_POLICY_VEE_PASSES_H_
