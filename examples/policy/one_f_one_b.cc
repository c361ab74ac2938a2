// 1F1B as a comparison and a bound: backwards (B) come first, and a stage keeps no more
// micro-batches than there are stages from it to the last.
//
//     penstock schedule build/one_f_one_b.so --stages 4 --microbatches 8

#include "planner/policy/policy_plugin.h"

namespace {

int32_t Before(const penstock_ready_phase* a, const penstock_ready_phase* b) {
  return a->phase.kind > b->phase.kind;  // B, then F
}

// One chunk a group, so stage g is that of group g.
double MostHeld(const penstock_pipeline* pipeline, int32_t group) {
  return pipeline->stages[group].activation * (pipeline->num_groups - group);
}

constexpr penstock_policy kPolicy = {
    PENSTOCK_POLICY_VERSION,
    PENSTOCK_PLACEMENT_LOOP,
    0,  // splits_backward
    1,  // min_chunks
    1,  // max_chunks
    Before,
    nullptr,  // plan
    MostHeld,
    nullptr,  // next
    nullptr,  // most_microbatches
};

}  // namespace

extern "C" const penstock_policy* penstock_policy_plugin() { return &kPolicy; }
