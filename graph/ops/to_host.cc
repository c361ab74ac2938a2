// to_host(x): the same value in the memory of the device's host.

#include "graph/ops/identity.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeToHost() {
  return MakeIdentity({.name = "to_host", .role = OpRole::kToHost});
}

}  // namespace penstock::graph::ops
