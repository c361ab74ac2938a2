// all_to_all(x): moves a split from one dimension to another.

#include "graph/ops/identity.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeAllToAll() {
  return MakeIdentity(
      {.name = "all_to_all", .role = OpRole::kAllToAll, .attributes = {{"per_use", Kind::kBool}}});
}

}  // namespace penstock::graph::ops
