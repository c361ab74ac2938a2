#include "planner/sharding/cross_mesh.h"

#include <map>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "planner/plan/coordinates.h"
#include "tests/support/random_shardings.h"

namespace penstock::planner {
namespace {

using graph::Mesh;
using graph::Sharding;
using testing::Random;

const Mesh kFour = {"m", {{"d", 4}}};
const Mesh kTwo = {"n", {{"e", 2}}};

Sharding SplitOver(const Mesh& mesh, int rank, int dim) {
  Sharding sharding = Sharding::Replicated(rank);
  sharding.dims[dim].axes = {graph::WholeAxis(mesh, 0)};
  return sharding;
}

TEST(CrossMeshTest, EveryReceiverGetsItsParts) {
  const auto messages =
      PlanCrossMesh({DType::kF32, {8}}, kFour, SplitOver(kFour, 1, 0), kTwo, SplitOver(kTwo, 1, 0));
  ASSERT_TRUE(messages.ok()) << messages.status();
  std::vector<std::vector<int64_t>> found;  // source, destination, offset, elements
  for (const CrossMeshMessage& message : *messages) {
    found.push_back(
        {message.source, message.destination, message.part.offset[0], message.part.shape[0]});
  }
  EXPECT_EQ(found, (std::vector<std::vector<int64_t>>{
                       {0, 0, 0, 2}, {1, 0, 2, 2}, {2, 1, 4, 2}, {3, 1, 6, 2}}));
}

TEST(CrossMeshTest, HoldersOfOneTileShareTheWork) {
  const auto messages = PlanCrossMesh({DType::kF32, {8}}, kFour, Sharding::Replicated(1), kTwo,
                                      SplitOver(kTwo, 1, 0));
  ASSERT_TRUE(messages.ok()) << messages.status();
  ASSERT_EQ(messages->size(), 2u);
  EXPECT_NE((*messages)[0].source, (*messages)[1].source);
}

// Random meshes and shardings: every receiver gets each element of its tile once, from a device
// that holds it.
TEST(CrossMeshTest, EveryElementArrivesOnce) {
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    const Mesh from_mesh = testing::RandomMesh(random, 8, 1);
    const Mesh to_mesh = testing::RandomMesh(random, 8, 1);
    TensorType type = {DType::kF32, {}};
    for (int64_t rank = random.Between(1, 3); rank > 0; --rank) {
      type.shape.push_back(random.Between(1, 7));
    }
    const Sharding from = testing::RandomSharding(random, from_mesh, type.shape);
    const Sharding to = testing::RandomSharding(random, to_mesh, type.shape);
    const auto messages = PlanCrossMesh(type, from_mesh, from, to_mesh, to);
    ASSERT_TRUE(messages.ok()) << messages.status();
    std::map<uint32_t, std::map<int64_t, int>> arrived;  // by receiver, element of the tensor
    for (const CrossMeshMessage& message : *messages) {
      const graph::TileDesc held = *TileOf(from_mesh, from, type, message.source);
      for (int64_t e = 0; e < message.part.num_elements(); ++e) {
        int64_t rest = e;
        int64_t element = 0;
        int64_t stride = 1;
        for (size_t d = type.shape.size(); d-- > 0;) {
          const int64_t at = message.part.offset[d] + rest % message.part.shape[d];
          EXPECT_GE(at, held.offset[d]);
          EXPECT_LT(at, held.offset[d] + held.shape[d]);
          rest /= message.part.shape[d];
          element += at * stride;
          stride *= type.shape[d];
        }
        ++arrived[message.destination][element];
      }
    }
    for (int64_t d = 0; d < to_mesh.num_devices(); ++d) {
      const graph::TileDesc needed = *TileOf(to_mesh, to, type, d);
      const auto& elements = arrived[static_cast<uint32_t>(d)];
      EXPECT_EQ(static_cast<int64_t>(elements.size()), needed.num_elements());
      for (const auto& [element, count] : elements) EXPECT_EQ(count, 1);
    }
  }
}

}  // namespace
}  // namespace penstock::planner
