// random_uniform {shape, stream, dtype=f32}: uniform in [0, 1), one draw of base/random.h an
// element.

#include "graph/ops/source.h"

namespace penstock::graph::ops {

std::unique_ptr<const Op> MakeRandomUniform() {
  return MakeRandom("random_uniform", kFlopsPerDraw + 2);
}

}  // namespace penstock::graph::ops
