// How short a step of a plan would be if its kernels ran at the peak rates and all else took no
// time: what model FLOPs utilisation (MFU) is measured against.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_SIMULATOR_PEAK_STEP_H_
#define PENSTOCK_PLANNER_SIMULATOR_PEAK_STEP_H_

#include "graph/op.h"
#include "planner/plan/plan.h"
#include "planner/search/machine.h"

namespace penstock::planner {

// The mean over the devices of the seconds that their kernels' flops take at the peak rate of the
// type in which they compute. What a recompute pass adds does not count, as usual for MFU
// (Chowdhery et al., "PaLM", 2022, appendix B); the gradient of attention counts as it is computed,
// with the scores that it computes again, and so do elementwise operators. REQUIRES: the machine
// has the plan's devices.
double PeakStepSeconds(const Plan& plan, const graph::OpRegistry& ops, const Machine& machine);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SIMULATOR_PEAK_STEP_H_
