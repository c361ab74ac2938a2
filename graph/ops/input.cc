// input: a value fed anew each step.

#include "graph/ops/source.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeInput() { return MakeDeclared({.name = "input"}); }

}  // namespace penstock::graph::ops
