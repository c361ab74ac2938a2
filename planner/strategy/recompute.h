// Recomputation (activation checkpointing; Chen et al., "Training deep nets with sublinear memory
// cost", 2016): what backward reads of the forward pass is computed again in the backward pass
// instead of being kept.
//
// Two steps. A strategy marks forward nodes with the attribute `recompute`, a number. After
// propagation the pass `recompute` makes clones of marked nodes and removes the attribute. The
// clones are nodes of the backward pass, with the attributes, stage and shardings of the originals;
// random draws depend on stream, step and element alone, so they are the same.
//
//   recompute=0      computed again for every backward node of its stage that reads a result
//   recompute=k > 0  a *segment*: computed again for the backward nodes of forward nodes with the
//                    same number on the same stage. All other readers get the original: what
//                    enters a segment is kept, what is inside is not.
//
// A clone stands right before the first node that needs it, so it lives briefly. It is of the phase
// W if only weight gradients need it, else of B. Only what is needed is computed again: not the
// last product of a segment, as nothing inside reads it. What is computed once a step although
// there are several micro-batches is never computed again, nor is what is kept for other readers.
//
// Worked example, segments 1 and 2 of one product and one activation each:
//
//     %p1 = matmul(%x, %w1) {recompute=1}      %h2.grad = ...
//     %h1 = gelu(%p1) {recompute=1}            %p2.recomputed = matmul(%h1, %w2)
//     %p2 = matmul(%h1, %w2) {recompute=2}     %p2.grad = gelu_grad(%p2.recomputed, %h2.grad)
//     %h2 = gelu(%p2) {recompute=2}            ...
//
// Kept are %x and %h1; %p1 and %p2 are computed again.
//
// Levels: `full` makes each repeated layer a segment, and the operators between two runs of layers
// another; without repetition, the graph is cut into about the square root of the number of
// operators, where little crosses. `selective` marks operators that are cheap for what they make
// (Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022),
// norms and activation functions, where backward reads their operands anyway: no products and no
// communication.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_STRATEGY_RECOMPUTE_H_
#define PENSTOCK_PLANNER_STRATEGY_RECOMPUTE_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

#include "graph/graph.h"

namespace penstock::planner {

// Levels of recomputation; the comment at the top explains each.
enum class Recompute : uint8_t { kNone, kSelective, kFull };

std::string_view Name(Recompute level);  // "none", "selective", "full"
// The level of that name; nullopt: there is none.
std::optional<Recompute> FindRecompute(std::string_view name);

// Of each node, the segment of the level `full` from 1 on; 0 for the others. REQUIRES: forward
// nodes come first.
std::vector<int> RecomputeSegments(const graph::Graph& graph);

// Marks the forward nodes of a training step. REQUIRES: forward nodes come first.
void MarkRecompute(Recompute level, graph::Graph& graph);

// By value, whether the backward pass is to read it as the forward pass made it: what is not is
// kept for nothing. REQUIRES: shardings propagated, the attributes not removed yet.
std::vector<bool> ReadAsMade(const graph::Graph& graph);

// The pass `recompute`. REQUIRES: shardings propagated.
absl::Status AddRecomputation(graph::Graph& graph);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_STRATEGY_RECOMPUTE_H_
