// The layouts of virtual stages that a policy chooses among (PolicyNeeds::chooses_layout).
//
// A layout says how many chunks of the model each group of a pipeline has, and how these lie on the
// groups. Where both are open, the layouts are those that the built-in policies use:
//
//   one chunk                 1f1b, zb-h1, zb-1p, ...
//   two in a loop             interleaved, looped-bfs
//   two back and forth        zb-v, v-half, v-min, dualpipev
//
// Thread rule: pure functions; the policies are immutable.

#ifndef PENSTOCK_PLANNER_POLICY_STAGE_LAYOUTS_H_
#define PENSTOCK_PLANNER_POLICY_STAGE_LAYOUTS_H_

#include <memory>
#include <string>
#include <vector>

#include "planner/policy/placement.h"
#include "planner/policy/policy.h"

namespace penstock::planner {

struct StageLayout {
  int num_chunks = 1;  // of each group
  Placement placement = Placement::kLoop;

  friend bool operator==(const StageLayout&, const StageLayout&) = default;
};

// The layouts for so many chunks a group (0: open), the simplest first.
std::vector<StageLayout> LayoutsToTry(int num_chunks);

// The policy for this layout alone: its needs say so. REQUIRES: `policy` takes any placement, and
// outlives the result.
std::shared_ptr<const Policy> WithLayout(const Policy& policy, const StageLayout& layout);

// The policy's name, with the placement where the policy has chosen one: "auto (vee)".
std::string ScheduleName(const Policy& policy);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_POLICY_STAGE_LAYOUTS_H_
