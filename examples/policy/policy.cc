// A scheduling policy as a plug-in library:
//
//     penstock schedule build/policy.so --stages 4 --microbatches 8 --svg timeline.svg
//     penstock run JOB.toml --strategy pp=4 --policy build/policy.so
//
// Input gradients (B) come first, because the stage before waits for them, then forwards (F), as
// long as no stage keeps more micro-batches than there are stages. Weight gradients (W), for which
// nobody waits, run when there is nothing else to do, and free the memory for the next forward.

#include "planner/policy/policy_plugin.h"

namespace {

int32_t Rank(const penstock_ready_phase* ready) {
  switch (ready->phase.kind) {
    case PENSTOCK_BACKWARD:
      return 0;
    case PENSTOCK_FORWARD:
      return 1;
    default:
      return 2;
  }
}

int32_t Before(const penstock_ready_phase* a, const penstock_ready_phase* b) {
  return Rank(a) < Rank(b) ? 1 : 0;
}

double MostHeld(const penstock_pipeline* pipeline, int32_t /*group*/) {
  double largest = 0;
  for (size_t i = 0; i < pipeline->num_stages; ++i) {
    if (pipeline->stages[i].activation > largest) largest = pipeline->stages[i].activation;
  }
  return largest * pipeline->num_groups;
}

constexpr penstock_policy kPolicy = {
    PENSTOCK_POLICY_VERSION,
    PENSTOCK_PLACEMENT_LOOP,
    1,  // splits_backward
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
