// state {init="zeros", std, stream, memory="device"}: a value that outlives a step and is not
// trained. memory="host": it lives in the memory of its device's host.

#include "graph/ops/source.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeState() {
  return MakeDeclared({.name = "state", .role = OpRole::kState, .has_initializer = true});
}

}  // namespace penstock::graph::ops
