// equal(x, y): x == y, as bool.

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeEqual() { return MakeComparison("equal"); }

}  // namespace penstock::graph::ops
