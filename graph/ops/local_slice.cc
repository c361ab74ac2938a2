// local_slice(x): the part of the operand's tile that the result's tile covers; no communication.

#include "graph/ops/identity.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeLocalSlice() {
  return MakeIdentity({.name = "local_slice",
                       .role = OpRole::kLocalSlice,
                       .work = IdentityWork::kTakePart,
                       .attributes = {{"per_use", Kind::kBool}}});
}

}  // namespace penstock::graph::ops
