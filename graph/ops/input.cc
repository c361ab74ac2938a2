// input {feed, sub_batches}: a value fed anew each step. `feed` names the input whose value it is,
// if that is another one: the planner makes such where stages on several meshes read an input.
// `sub_batches` says in how many parts a device computes with its first dimension
// (planner/lower/sub_batches.h).

#include "graph/ops/source.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeInput() {
  return MakeDeclared({.name = "input", .role = OpRole::kInput});
}

}  // namespace penstock::graph::ops
