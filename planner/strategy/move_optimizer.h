// Moves the parameters and the optimiser of a training step to a device of their own, one on the
// host, while the devices of the strategy compute the forward and the backward pass.
//
// The pass adds a stage 0 of one device, and the stages that there were follow it. Stage 0 has the
// parameters, the casts that make them smaller and what the update computes from values of several
// stages. A stage that reads a parameter gets it once a step and returns its gradient, the sum over
// all micro-batches, once a step. Parameters that are to be split are split where they are read.
//
// Worked example, in bf16 on m = [dp=2, tp=2]:
//
//     %w = parameter : f32[8, 8] @[_, tp]    %w = parameter : f32[8, 8] on host stage 0
//     %w.bf16 = cast(%w) : bf16[8, 8]        %w.bf16 = cast(%w) : bf16[8, 8] on host stage 0
//                                            %w.bf16_1 = reshard(%w.bf16) : bf16[8, 8] @[_, tp]
//                                                on m stage 1
//     %p = matmul(%x, %w.bf16)               %p = matmul(%x, %w.bf16_1) on m stage 1
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_STRATEGY_MOVE_OPTIMIZER_H_
#define PENSTOCK_PLANNER_STRATEGY_MOVE_OPTIMIZER_H_

#include "absl/status/status.h"

#include "graph/graph.h"
#include "graph/op.h"
#include "planner/policy/policy.h"

namespace penstock::planner {

// The pass `move-optimizer`. An error names a state that is to be split. REQUIRES: the graph has at
// most one mesh, and shardings are not propagated yet. A graph without stages is one stage.
absl::Status MoveOptimizer(const graph::OpRegistry& ops, graph::Graph& graph);

// Whether the policy can order the stages that MoveOptimizer makes, each a group of devices with
// `chunks` chunks.
absl::Status CheckMovedOptimizer(const Policy& policy, int chunks);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_STRATEGY_MOVE_OPTIMIZER_H_
