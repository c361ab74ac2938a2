// receive(x): the operand on another mesh of devices, whose axes the sharding of the result names.
// Only plans for several meshes have it (insert-reshards).

#include "graph/ops/identity.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeReceive() {
  return MakeIdentity({.name = "receive", .role = OpRole::kReceive});
}

}  // namespace penstock::graph::ops
