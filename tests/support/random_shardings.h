// Random meshes, and random shardings on them.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_TESTS_SUPPORT_RANDOM_SHARDINGS_H_
#define PENSTOCK_TESTS_SUPPORT_RANDOM_SHARDINGS_H_

#include <cstdint>
#include <optional>

#include "base/shape.h"
#include "graph/sharding.h"
#include "tests/support/random.h"

namespace penstock::testing {

// A mesh of one to three spatial axes over at most `max_devices` devices, some of sizes that are no
// power of two. `num_microbatches` above 1 adds a temporal axis of that size.
graph::Mesh RandomMesh(Random& random, int64_t max_devices, int64_t num_microbatches);

// A closed sharding of the shape over axes and sub-axes of the mesh that CheckSharding accepts.
// Uneven and empty parts occur; a temporal axis only where it divides.
graph::Sharding RandomSharding(Random& random, const graph::Mesh& mesh, const Shape& shape);

// The axes of `sharding` moved about between and inside dimensions, without partials: what permutes
// and all-to-alls are made of. A random sharding where that cannot be.
graph::Sharding RearrangedSharding(Random& random, const graph::Mesh& mesh, const Shape& shape,
                                   graph::Sharding sharding);

// Adds a partial over an unused spatial axis or sub-axis, if there is one; over a temporal one too
// where `allow_temporal`.
void AddRandomPartial(Random& random, const graph::Mesh& mesh, graph::Reduction reduction,
                      bool allow_temporal, graph::Sharding* sharding);

// An axis of the mesh that the sharding does not use, or now and then a piece of one.
std::optional<graph::AxisRef> UnusedAxis(Random& random, const graph::Mesh& mesh,
                                         const graph::Sharding& sharding);

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_RANDOM_SHARDINGS_H_
