// The planned order of the actors of one phase.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_LOWER_PHASE_ORDER_H_
#define PENSTOCK_PLANNER_LOWER_PHASE_ORDER_H_

#include <cstdint>
#include <vector>

#include "planner/lower/device_program.h"

namespace penstock::planner {

// Moves what a collective, send or receive does not need from before it to right behind it, so that
// it starts earlier and that work hides it: the weight gradients of a layer behind the all_reduce
// of its input gradient (Shoeybi et al., "Megatron-LM", 2019, overlaps the same two). Each actor
// moves behind one communication at most, which bounds how much longer its operands live.
// Communication keeps its order, and actors that touch the same buffer, one of them writing, keep
// theirs.
//
// What has been given a place by `after` stays there, and so do copies to and from the host.
//
// `buffers` are those of the device's program.
void StartCommunicationEarly(const std::vector<Buffer>& buffers, std::vector<DraftActor>* actors);

// Lets the bytes that communication reads be used again before the phase ends, where nothing in the
// phase waits for its result: gradients that are scattered for the update. A kernel that makes more
// of such bytes waits for the oldest communication under way while all that are under way have more
// than `waiting_bytes`; the latest one is never waited for.
//
// `home` holds the only phase that touches a buffer, if there is one.
void LimitWaitingBytes(const std::vector<Buffer>& buffers, const std::vector<int>& home, int index,
                       int64_t waiting_bytes, DraftPhase* phase);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_LOWER_PHASE_ORDER_H_
