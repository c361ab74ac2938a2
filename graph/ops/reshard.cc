// reshard(x): asks for a redistribution to the sharding of its result. Passes lower it to the
// operators below. Its gradient is laid out as propagation finds best.

#include "graph/ops/identity.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeReshard() {
  return MakeIdentity({.name = "reshard",
                       .role = OpRole::kReshard,
                       .is_differentiable = true,
                       .attributes = {{"per_use", Kind::kBool}}});
}

}  // namespace penstock::graph::ops
