#include "planner/sharding/reshard_cache.h"

#include "gmock/gmock.h"

#include "graph/sharding.h"

namespace penstock::planner {
namespace {

using graph::Mesh;
using graph::Sharding;

Sharding SplitOver(const Mesh& mesh, int axis, int dim) {
  Sharding sharding = Sharding::Replicated(2);
  sharding.dims[dim].axes = {WholeAxis(mesh, axis)};
  return sharding;
}

// Shardings read the same on both meshes, whose axes have other sizes.
TEST(ReshardCachesTest, MeshesHaveChainsOfTheirOwn) {
  ReshardCaches caches;
  double costs[2];
  for (const int64_t size : {2, 8}) {
    const Mesh mesh = {"m", {{"x", size, false}}};
    const Sharding from = SplitOver(mesh, 0, 0);
    const Sharding to = Sharding::Replicated(2);
    ReshardCache& cache = caches.Of(mesh);
    EXPECT_EQ(cache.Steps(from, to), PlanReshard(mesh, from, to)) << size;
    costs[size == 8] = cache.Cost(from, to);
    EXPECT_EQ(costs[size == 8], ReshardCost(mesh, from, PlanReshard(mesh, from, to))) << size;
    EXPECT_EQ(cache.Cost(from, from), 0);
  }
  EXPECT_NE(costs[0], costs[1]);
}

TEST(ReshardCachesTest, AnEqualMeshHasTheSameCache) {
  ReshardCaches caches;
  const Mesh mesh = {"m", {{"x", 2, false}}};
  const Mesh equal = mesh;
  const Mesh other = {"m", {{"x", 2, true}}};
  EXPECT_EQ(&caches.Of(mesh), &caches.Of(equal));
  EXPECT_NE(&caches.Of(mesh), &caches.Of(other));
}

}  // namespace
}  // namespace penstock::planner
