// neg(x): y = -x.

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {
namespace {

ValueId NegGradient(GraphBuilder& builder, const Node& /*node*/, ValueId dy) {
  return builder.Add("neg", {dy});
}

}  // namespace

std::unique_ptr<const Op> MakeNeg() {
  return MakeUnary({.name = "neg",
                    .flops = 1,
                    .gradient = NegGradient,
                    .takes_integers = true,
                    .is_linear = true});
}

}  // namespace penstock::graph::ops
