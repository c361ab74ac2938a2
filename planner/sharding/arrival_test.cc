#include "planner/sharding/arrival.h"

#include <string>

#include "gtest/gtest.h"

namespace penstock::planner {
namespace {

using graph::Mesh;
using graph::Sharding;

const Mesh kWide = {"wide", {{"dp", 4}, {"mb", 2, true}}};
const Mesh kDeep = {"deep", {{"mb", 2, true}, {"tp", 2}, {"cp", 3}}};

// By the axes of each dimension.
Sharding Split(const Mesh& mesh, const std::vector<std::vector<std::string>>& dims) {
  Sharding sharding = Sharding::Replicated(static_cast<int>(dims.size()));
  for (size_t d = 0; d < dims.size(); ++d) {
    for (const std::string& axis : dims[d]) {
      sharding.dims[d].axes.push_back(graph::WholeAxis(mesh, mesh.FindAxis(axis)));
    }
  }
  return sharding;
}

TEST(ArrivalTest, MicrobatchesAreSentWhereTheyAreOnePart) {
  const Sharding over_time = Split(kWide, {{"mb", "dp"}, {}});
  EXPECT_EQ(Sendable(kWide, over_time), over_time);
  EXPECT_EQ(Sendable(kWide, Split(kWide, {{"dp", "mb"}, {}})), Split(kWide, {{"dp"}, {}}));
  Sharding sum = over_time;
  sum.dims[0].axes.pop_back();
  sum.partials = {{graph::Reduction::kSum, {graph::WholeAxis(kWide, 0)}}};
  EXPECT_EQ(Sendable(kWide, sum), Split(kWide, {{"mb"}, {}}));
}

TEST(ArrivalTest, TemporalAxesOfTheMeshesAreTheSame) {
  EXPECT_EQ(OverTime(kWide, Split(kWide, {{}, {"mb", "dp"}}), kDeep), Split(kDeep, {{}, {"mb"}}));
  const Mesh three = {"three", {{"mb", 3, true}, {"tp", 2}}};
  EXPECT_EQ(OverTime(kWide, Split(kWide, {{}, {"mb", "dp"}}), three), Split(three, {{}, {}}));
}

// 1024 x 64 floats are worth a gather, 64 are not. Where 3 divides neither dimension, parts are
// uneven.
TEST(ArrivalTest, LargeValuesArriveSplitOverIdleAxes) {
  const Sharding over_time = Split(kDeep, {{"mb"}, {}});
  const Sharding whole = Split(kDeep, {{}, {}});
  EXPECT_EQ(Arrival({DType::kF32, {1024, 64}}, kDeep, over_time, whole),
            Split(kDeep, {{"mb", "tp", "cp"}, {}}));
  EXPECT_EQ(Arrival({DType::kF32, {1024, 48}}, kDeep, over_time, whole),
            Split(kDeep, {{"mb", "tp"}, {"cp"}}));
  EXPECT_EQ(Arrival({DType::kF32, {8, 8}}, kDeep, over_time, whole), over_time);
  // What the reader splits stays so, evenly or not.
  const Sharding needed = Split(kDeep, {{}, {"cp"}});
  EXPECT_EQ(Arrival({DType::kF32, {1024, 64}}, kDeep, over_time, needed),
            Split(kDeep, {{"mb", "tp"}, {"cp"}}));
  EXPECT_EQ(ArrivalAsNeeded(kDeep, over_time, needed), Split(kDeep, {{"mb"}, {"cp"}}));
}

}  // namespace
}  // namespace penstock::planner
