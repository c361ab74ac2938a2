// parameter {init="normal", std=0.02, stream, memory="device"}: a trainable value that outlives a
// step. memory="host": it lives in the memory of its device's host.

#include "graph/ops/source.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeParameter() {
  return MakeDeclared({.name = "parameter", .role = OpRole::kParameter, .has_initializer = true});
}

}  // namespace penstock::graph::ops
