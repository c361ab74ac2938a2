// reduce_scatter(x): combines the terms of a partial value; each device keeps a part.

#include "graph/ops/identity.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeReduceScatter() {
  return MakeIdentity({.name = "reduce_scatter", .role = OpRole::kReduceScatter});
}

}  // namespace penstock::graph::ops
