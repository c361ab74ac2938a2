// random_normal {shape, stream, dtype=f32}: standard normal, one draw of base/random.h an element.

#include "graph/ops/source.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeRandomNormal() { return MakeRandom("random_normal"); }

}  // namespace penstock::graph::ops
