// halo_exchange(x): x split over the same axes, one dimension held in windows (graph/window.h):
// each device gets what its window has and it lacks, and nothing else.

#include "graph/ops/identity.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeHaloExchange() {
  return MakeIdentity({.name = "halo_exchange",
                       .role = OpRole::kHaloExchange,
                       .attributes = {{"per_use", Kind::kBool}}});
}

}  // namespace penstock::graph::ops
