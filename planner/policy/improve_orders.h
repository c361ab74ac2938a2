// Better orders from good ones: a search over moves of single phases.
//
// Simulated annealing (Kirkpatrick et al., "Optimization by Simulated Annealing", 1983): a random
// phase of a random group moves by up to some places; the result is kept if the step gets shorter
// or, with a probability that falls over the search, a little longer. The moves are drawn from a
// fixed seed, so the same input gives the same orders.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_POLICY_IMPROVE_ORDERS_H_
#define PENSTOCK_PLANNER_POLICY_IMPROVE_ORDERS_H_

#include <cstdint>

#include "planner/policy/pipeline.h"

namespace penstock::planner {

// What is minimised: first the span (Timeline::span_s) or the makespan, whichever is a step
// (Pipeline::overlaps_steps), then the other.
double CostOf(const Pipeline& pipeline, const Timeline& timeline);

// Orders that cost no more than `orders`, and keep within the pipeline's memory limit if they do.
// Takes time in proportion to `num_firings`, the phases that may be fired in simulations.
// REQUIRES: RunPipeline accepts the orders.
PipelineOrders ImproveOrders(const Pipeline& pipeline, const PipelineOrders& orders,
                             int64_t num_firings);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_POLICY_IMPROVE_ORDERS_H_
