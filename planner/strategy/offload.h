// Host offload: what a device need not hold all the time lives in the memory of its host and is
// copied to the device where it is used (Ren et al., "ZeRO-Offload", 2021, for the optimiser's
// state; Rhu et al., "vDNN", 2016, for activations).
//
//   states       what the optimiser keeps of each parameter (moments, momentum)
//   activations  what the backward pass reads of the forward pass
//
// Two steps. A strategy marks nodes: a state with the attribute memory="host", a forward node with
// the attribute `offload`, a number of bytes. The pass `offload`, the last of all, makes copies of
// the marks and removes `offload`:
//   - Where something reads a value on the host, it reads to_device of it instead: once a phase.
//     What is assigned to a state on the host is to_host of the new value, made at once.
//     (to_device of what is on the device already is that value.)
//   - A result of a marked forward node of which a device has at least that many bytes goes to_host
//     where it is made, for each stage whose backward pass reads it, which then reads to_device of
//     that. An unmarked node of one operand has the mark of what made that: passes have put
//     it there to redistribute a result, say.
//
// What a node reads is copied to the device before the node before it computes, of those of its
// stage and phase for which something is copied: so the copy overlaps that one's kernel.
//
// Worked example, m on the host and %h of a node marked `offload=4096`:
//
//     %m = state {memory="host"}              %m = state {memory="host"}
//     %h = gelu(%p) {offload=4096}            %h = gelu(%p)
//                                             %h.to_host = to_host(%h)
//     %g = gelu_grad(%h, %d)                  %h.to_device = to_device(%h.to_host)
//                                             %g = gelu_grad(%h.to_device, %d)
//                                             %m.to_device = to_device(%m)
//     %w1, %m1 = sgd(%w, %g, %lr, %s, %m)     %w1, %m1 = sgd(%w, %g, %lr, %s, %m.to_device)
//                                             %m1.to_host = to_host(%m1)
//     assign(%m, %m1)                         assign(%m, %m1.to_host)
//
// Of %h, the device holds what the forward pass uses until it has been copied, and what the
// backward pass uses from there on; the host holds it in between, for as many micro-batches as are
// in flight.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_STRATEGY_OFFLOAD_H_
#define PENSTOCK_PLANNER_STRATEGY_OFFLOAD_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"

#include "graph/graph.h"
#include "graph/op.h"

namespace penstock::planner {

// What lives on the host: nothing, optimiser states, activations, or both.
enum class Offload : uint8_t { kNone, kStates, kActivations, kAll };

std::string_view Name(Offload offload);  // "none", "states", "activations", "all"
// The choice of that name; nullopt: there is none.
std::optional<Offload> FindOffload(std::string_view name);

// Whether what the optimiser keeps lives on the host.
inline bool OffloadsStates(Offload offload) {
  return offload == Offload::kStates || offload == Offload::kAll;
}
// Whether what backward reads of the forward pass does.
inline bool OffloadsActivations(Offload offload) {
  return offload == Offload::kActivations || offload == Offload::kAll;
}

// Smaller tensors stay on the device: starting a copy costs more than their bytes are worth.
inline constexpr int64_t kMinOffloadBytes = 4096;

// Whether the value lies in the memory of its device's host: a state that says so, or what to_host
// has made.
bool IsOnHost(const graph::Graph& graph, graph::ValueId value);

// Likewise, or it is marked to be copied there.
bool GoesToHost(const graph::Graph& graph, graph::ValueId value);

// Marks the optimiser's states and the forward nodes of a training step. Of neither there is a need
// to be any.
void MarkOffload(Offload offload, graph::Graph& graph);

// The pass `offload`. REQUIRES: reshards lowered.
absl::Status AddOffload(const graph::OpRegistry& ops, graph::Graph& graph);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_STRATEGY_OFFLOAD_H_
