// random_normal {shape, stream, dtype=f32}: standard normal, one draw of base/random.h an element.

#include "graph/ops/source.h"

namespace penstock::graph::ops {

// Box-Muller takes a pair of words for a pair of elements: a logarithm, a square root, a sine and a
// cosine, and 8 more.
std::unique_ptr<const Op> MakeRandomNormal() {
  return MakeRandom("random_normal", kFlopsPerDraw + (8 + 4 + 10 + 10 + 8) / 2.0);
}

}  // namespace penstock::graph::ops
