// gather_microbatches(x): copies the operand's tile of this micro-batch into its place in the
// result's larger tile.

#include "graph/ops/identity.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeGatherMicrobatches() {
  return MakeIdentity({.name = "gather_microbatches",
                       .role = OpRole::kGatherMicrobatches,
                       .work = IdentityWork::kPlacePart});
}

}  // namespace penstock::graph::ops
