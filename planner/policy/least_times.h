// Bounds on how early the groups of a pipeline can end, whatever their orders.
//
// A group begins when the first micro-batch can have reached it, and then has all its phases to
// run. After its last B, the gradients go on to the groups before it. Bounds cost a pass over the
// stages, where a timeline (pipeline.h) costs one over the phases: a search need not run schedules
// that cannot win.
//
// Example: 2 groups with a stage each, 3 micro-batches, F takes 1 s, B 2 s. Group 1 begins at 1 s
// and ends at 10 s or later, group 0 takes the last B after it: 12 s. If B is split into B and W of
// 1 s each, W of group 1 may fill that time: 10 s.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_POLICY_LEAST_TIMES_H_
#define PENSTOCK_PLANNER_POLICY_LEAST_TIMES_H_

#include <vector>

#include "planner/policy/pipeline.h"

namespace penstock::planner {

struct LeastTimes {
  std::vector<double> end_s;  // by group
  double makespan_s = 0;
};

// Of all orders that RunPipeline accepts. REQUIRES: forward edges go to later stages, backward
// edges to earlier ones.
LeastTimes LeastTimesOf(const Pipeline& pipeline);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_POLICY_LEAST_TIMES_H_
