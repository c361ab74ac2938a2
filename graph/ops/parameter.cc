// parameter {init="normal", std=0.02, stream}: a trainable value that outlives a step.

#include "graph/ops/source.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeParameter() {
  return MakeDeclared({.name = "parameter", .has_initializer = true});
}

}  // namespace penstock::graph::ops
