// all_reduce(x): combines the terms of a partial value on every device.

#include "graph/ops/identity.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeAllReduce() {
  return MakeIdentity({.name = "all_reduce", .role = OpRole::kAllReduce});
}

}  // namespace penstock::graph::ops
