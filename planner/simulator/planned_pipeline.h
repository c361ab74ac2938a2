// What a plan says of its pipeline, for a policy that orders it anew.
//
// Where no estimate is made before a plan (stages with different numbers of devices, bidirectional
// pipelines), the first plan has the times by which its policy decides for the final one.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_SIMULATOR_PLANNED_PIPELINE_H_
#define PENSTOCK_PLANNER_SIMULATOR_PLANNED_PIPELINE_H_

#include <vector>

#include "planner/plan/plan.h"
#include "planner/policy/pipeline.h"
#include "planner/policy/placement.h"

namespace penstock::planner {

// The pipeline of a plan whose phases have predicted times (phase_times.h). A phase takes as long
// as on the slowest device of its group, a transfer as long as the slowest message between two
// groups. There is no limit of memory, and all stages keep as much of a micro-batch.
//
// `device_groups`: see CompileOptions. REQUIRES: the plan is not folded, and its stages lie as
// `placement` says.
Pipeline PipelineOfPlan(const Plan& plan, const StagePlacement& placement,
                        const std::vector<int>& device_groups);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SIMULATOR_PLANNED_PIPELINE_H_
