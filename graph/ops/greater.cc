// greater(x, y): x > y, as bool.

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeGreater() { return MakeComparison("greater"); }

}  // namespace penstock::graph::ops
