// accumulate(x) {reduction="sum"}: the running sum over micro-batches, or their "max", "min" or
// "prod".

#include "graph/ops/identity.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeAccumulate() {
  return MakeIdentity({.name = "accumulate",
                       .role = OpRole::kAccumulate,
                       .work = IdentityWork::kFold,
                       .attributes = {{"reduction", Kind::kString}}});
}

}  // namespace penstock::graph::ops
