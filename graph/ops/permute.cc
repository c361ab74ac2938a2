// permute(x) {axis, shift}: exchanges tiles between devices; the parts stay as large. With shift it
// is a roll along the axis (roll.cc), whose parts are on different devices.

#include "graph/ops/identity.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakePermute() {
  return MakeIdentity(
      {.name = "permute",
       .role = OpRole::kPermute,
       .attributes = {{"per_use", Kind::kBool}, {"axis", Kind::kInt}, {"shift", Kind::kInt}}});
}

}  // namespace penstock::graph::ops
