// GPipe as a comparison, which is a whole policy: all forwards (F), then all backwards (B).
//
//     penstock schedule build/gpipe.so --stages 4 --microbatches 8

#include "planner/policy/policy_plugin.h"

namespace {

int32_t Before(const penstock_ready_phase* a, const penstock_ready_phase* b) {
  return a->phase.kind < b->phase.kind;  // F, then B
}

constexpr penstock_policy kPolicy = {
    PENSTOCK_POLICY_VERSION,
    PENSTOCK_PLACEMENT_LOOP,
    0,  // splits_backward
    1,  // min_chunks
    1,  // max_chunks
    Before,
    nullptr,  // plan
    nullptr,  // most_held
    nullptr,  // next
    nullptr,  // most_microbatches
};

}  // namespace

extern "C" const penstock_policy* penstock_policy_plugin() { return &kPolicy; }
