// A policy that decides while the plan runs: whenever a group of devices is free, it runs a
// backward (B) if one can start, else the forward (F) that can. A group of early stages may be
// ahead of the later ones by no more micro-batches than there are groups from it to the last.
//
//     penstock run JOB.toml --strategy pp=4 --policy build/gradients_first.so
//
// The devices of a group may be in several processes: one of them asks, for all. Each process of a
// job loads the library, at the same path.

#include "planner/policy/policy_plugin.h"

namespace {

int32_t Next(const penstock_group_view* view, penstock_phase* phase) {
  const penstock_chunk_view& chunk = view->chunks[0];
  const int32_t kind = chunk.ready[PENSTOCK_BACKWARD] > 0 ? PENSTOCK_BACKWARD : PENSTOCK_FORWARD;
  if (chunk.ready[kind] == 0) return 0;
  *phase = {kind, chunk.issued[kind], 0};
  return 1;
}

int32_t MostMicrobatches(const penstock_group_view* view) { return view->num_groups - view->group; }

constexpr penstock_policy kPolicy = {
    PENSTOCK_POLICY_VERSION,
    PENSTOCK_PLACEMENT_LOOP,
    0,        // splits_backward
    1,        // min_chunks
    1,        // max_chunks
    nullptr,  // before
    nullptr,  // plan
    nullptr,  // most_held
    Next,
    MostMicrobatches,
};

}  // namespace

extern "C" const penstock_policy* penstock_policy_plugin() { return &kPolicy; }
