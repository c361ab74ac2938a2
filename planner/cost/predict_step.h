// How long a step of a plan is predicted to take, from the predicted times of its phases.
//
// Of a stage, per micro-batch:
//   compute    its compute lane: kernels, the collectives between them, and copies to and from
//              hosts as far as kernels of their phases do not hide them
//   reduced    collectives that float beside it
//   received   receives, which the micro-batch waits for; sent likewise
// and per step: its other lanes, and what floats beside them. Of a stage's devices the slowest
// counts. What floats beside computation counts where it takes longer.
//
//   step = sum over stages of (received + max(compute, reduced))
//        + (micro-batches - 1) * the slowest stage's max(compute, reduced + received + sent)
//        + the slowest stage's max(lanes, floating) per step
//
// The first two lines are a pipeline's: one micro-batch passes through all stages, the others come
// out one by one behind it, as often as the slowest stage lets them. Where stages have c chunks,
// the others follow when the first has left the first chunks: the first line is divided by c, and
// the second has (micro-batches - 1 / c). A policy that keeps fewer in flight is not seen.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_COST_PREDICT_STEP_H_
#define PENSTOCK_PLANNER_COST_PREDICT_STEP_H_

#include "planner/plan/plan.h"

namespace penstock::planner {

// REQUIRES: the plan's phases have their predicted times, and stages, devices, phases and actors
// name each other properly (CheckReferences).
double PredictStepSeconds(const Plan& plan);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_COST_PREDICT_STEP_H_
