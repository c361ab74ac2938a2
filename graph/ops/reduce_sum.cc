// reduce_sum(x) {axes, keepdims=false}.

#include "graph/ops/reduction.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeReduceSum() {
  return MakeReduction({.name = "reduce_sum",
                        .is_linear = true,
                        .takes_integers = true,
                        .gradient = BroadcastReduced});
}

}  // namespace penstock::graph::ops
