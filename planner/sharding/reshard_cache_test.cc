#include "planner/sharding/reshard_cache.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"

#include "graph/sharding.h"

namespace penstock::planner {
namespace {

using graph::Mesh;
using graph::Sharding;

Sharding SplitCacheOver(const Mesh& mesh, int axis, int dim) {
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
    const Sharding from = SplitCacheOver(mesh, 0, 0);
    const Sharding to = Sharding::Replicated(2);
    ReshardCache& cache = caches.Of(mesh);
    EXPECT_EQ(cache.Steps(from, to), PlanReshard(mesh, from, to)) << size;
    costs[size == 8] = cache.Cost(from, to);
    EXPECT_EQ(costs[size == 8], ReshardCost(mesh, from, PlanReshard(mesh, from, to))) << size;
    EXPECT_EQ(cache.Cost(from, from), 0);
  }
  EXPECT_NE(costs[0], costs[1]);
}

// Each of the axes on a dimension or nowhere.
std::vector<Sharding> AllShardings(const Mesh& mesh) {
  std::vector<Sharding> all = {Sharding::Replicated(2)};
  for (int axis = 0; axis < static_cast<int>(mesh.axes.size()); ++axis) {
    std::vector<Sharding> more = all;
    for (const Sharding& sharding : all) {
      for (int dim = 0; dim < 2; ++dim) {
        more.push_back(sharding);
        more.back().dims[dim].axes.push_back(WholeAxis(mesh, axis));
      }
    }
    all = std::move(more);
  }
  return all;
}

// Chains that were planned for one mesh serve others, with other axes beside them and other numbers
// of micro-batches.
TEST(ReshardCachesTest, SharedChainsAreThoseOfTheMesh) {
  const Mesh meshes[] = {
      {"m", {{"mb", 4, true}, {"x", 4, false}, {"y", 2, false}}},
      {"m", {{"mb", 9, true}, {"x", 4, false}, {"y", 2, false}}},
      {"m", {{"y", 2, false}, {"x", 4, false}}},
      {"m", {{"mb", 2, true}, {"x", 4, false}, {"cp", 3, false}, {"y", 2, false}}},
  };
  ReshardCaches caches;
  for (const Mesh& mesh : meshes) {
    ReshardCache& cache = caches.Of(mesh);
    for (const Sharding& from : AllShardings(mesh)) {
      for (const Sharding& to : AllShardings(mesh)) {
        ASSERT_EQ(cache.Steps(from, to), PlanReshard(mesh, from, to))
            << ToString(mesh, from) << " to " << ToString(mesh, to);
        ASSERT_DOUBLE_EQ(cache.Cost(from, to), ReshardCost(mesh, from, cache.Steps(from, to)));
      }
    }
  }
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
