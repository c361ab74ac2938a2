// all_gather(x): joins the parts of a dimension that is split less in the result.

#include "graph/ops/identity.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeAllGather() {
  return MakeIdentity(
      {.name = "all_gather", .role = OpRole::kAllGather, .attributes = {{"per_use", Kind::kBool}}});
}

}  // namespace penstock::graph::ops
