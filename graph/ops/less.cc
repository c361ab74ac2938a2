// less(x, y): x < y, as bool.

#include "graph/ops/elementwise.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeLess() { return MakeComparison("less"); }

}  // namespace penstock::graph::ops
