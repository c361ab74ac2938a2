// permute(x): exchanges tiles between devices; the parts stay as large.

#include "graph/ops/identity.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakePermute() {
  return MakeIdentity({.name = "permute", .attributes = {{"per_use", Kind::kBool}}});
}

}  // namespace penstock::graph::ops
