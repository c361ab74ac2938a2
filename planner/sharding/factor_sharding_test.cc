#include "planner/sharding/factor_sharding.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::Factor;
using graph::Mesh;
using graph::Sharding;
using graph::TensorFactors;

Sharding Open(std::vector<std::vector<AxisRef>> dims) {
  Sharding sharding = Sharding::Open(static_cast<int>(dims.size()));
  for (size_t i = 0; i < dims.size(); ++i) sharding.dims[i].axes = dims[i];
  return sharding;
}

// "x:(1)2 | x:(2)2.y" for the factors of a projection, overflow behind "!".
std::string Show(const Mesh& mesh, const TensorProjection& projection) {
  std::string text;
  for (const FactorSharding& factor : projection.factors) {
    if (!text.empty()) text += " | ";
    for (const AxisRef& axis : factor.axes) text += ToString(mesh, axis) + " ";
    if (!factor.overflow.empty()) text += "! ";
    for (const AxisRef& axis : factor.overflow) text += ToString(mesh, axis) + " ";
  }
  return text;
}

const std::vector<Factor> kTwoByFour = {{2}, {4}};
const TensorFactors kMerged = {{0, 1}};
const TensorFactors kSplit = {{0}, {1}};

TEST(FactorShardingTest, HeaderExample) {
  const Mesh mesh = {"m", {{"x", 4}, {"y", 2}}};
  const Sharding operand = Open({{WholeAxis(mesh, 0), WholeAxis(mesh, 1)}});
  const TensorProjection projection = ProjectTensor(kMerged, kTwoByFour, operand);
  EXPECT_EQ(Show(mesh, projection), "x:(1)2  | x:(2)2 y ");
  EXPECT_FALSE(projection.factors[0].is_minor_most);
  EXPECT_TRUE(projection.factors[1].is_minor_most);

  EXPECT_EQ(UnprojectTensor(mesh, kMerged, kTwoByFour, projection, {8}, operand), operand);
  TensorProjection result = ProjectTensor(kSplit, kTwoByFour, Open({{}, {}}));
  for (int i = 0; i < 2; ++i) result.factors[i].axes = projection.factors[i].axes;
  const Sharding split = UnprojectTensor(mesh, kSplit, kTwoByFour, result, {2, 4}, Open({{}, {}}));
  EXPECT_EQ(ToString(mesh, split), "@[x:(1)2?, x:(2)2.y?]");
}

TEST(FactorShardingTest, AxesThatDoNotDivideOverflow) {
  const Mesh mesh = {"m", {{"a", 3}, {"b", 2}}};
  const Sharding sharding = Open({{WholeAxis(mesh, 0), WholeAxis(mesh, 1)}});
  const TensorProjection projection = ProjectTensor(kMerged, kTwoByFour, sharding);
  EXPECT_EQ(Show(mesh, projection), "! a b  | ");
  EXPECT_TRUE(projection.factors[1].is_closed);
  EXPECT_EQ(UnprojectTensor(mesh, kMerged, kTwoByFour, projection, {8}, sharding), sharding);
}

TEST(FactorShardingTest, PartOfAnAxisMayOverflow) {
  const Mesh mesh = {"m", {{"a", 6}}};
  const std::vector<Factor> factors = {{4}, {4}};
  const Sharding sharding = Open({{WholeAxis(mesh, 0)}});
  const TensorProjection projection = ProjectTensor(kMerged, factors, sharding);
  EXPECT_EQ(Show(mesh, projection), "a:(1)2 ! a:(2)3  | ");
  EXPECT_EQ(UnprojectTensor(mesh, kMerged, factors, projection, {16}, sharding), sharding);
}

TEST(FactorShardingTest, MinorMostFactorTakesEverythingLeft) {
  const Mesh mesh = {"m", {{"a", 16}, {"b", 3}}};
  const TensorProjection projection =
      ProjectTensor(kMerged, kTwoByFour, Open({{WholeAxis(mesh, 0), WholeAxis(mesh, 1)}}));
  EXPECT_EQ(Show(mesh, projection), "a:(1)2  | a:(2)8 b ");
}

TEST(FactorShardingTest, StridedFactorsAreLeftOut) {
  const Mesh mesh = {"m", {{"a", 2}, {"b", 2}}};
  const std::vector<Factor> factors = {{4}, {4}};
  TensorProjection merged = ProjectTensor(kMerged, factors, Open({{}}));
  merged.factors[0].axes = {WholeAxis(mesh, 0)};
  merged.factors[1].axes = {WholeAxis(mesh, 1)};
  // Factor 0 is split in 2 of 4 only, so factor 1 cannot be.
  EXPECT_EQ(ToString(mesh, UnprojectTensor(mesh, kMerged, factors, merged, {16}, Open({{}}))),
            "@[a?]");
}

TEST(FactorShardingTest, DimensionsWithoutFactorKeepTheirAxes) {
  const Mesh mesh = {"m", {{"a", 2}, {"b", 2}}};
  const std::vector<Factor> factors = {{4}};
  const TensorFactors mapping = {{}, {0}};
  Sharding sharding = Open({{WholeAxis(mesh, 0)}, {}});
  sharding.replicated = {WholeAxis(mesh, 1)};
  TensorProjection projection = ProjectTensor(mapping, factors, sharding);
  EXPECT_EQ(projection.fixed, (AxisList{WholeAxis(mesh, 0)}));
  EXPECT_EQ(projection.blocked, (AxisList{WholeAxis(mesh, 1)}));
  EXPECT_EQ(UnprojectTensor(mesh, mapping, factors, projection, {4, 4}, sharding), sharding);
}

TEST(FactorShardingTest, TemporalAxesMustDivideTheDimension) {
  const Mesh mesh = {"m", {{"mb", 4, true}, {"dp", 2}}};
  const std::vector<Factor> factors = {{8}};
  const TensorFactors mapping = {{0}};
  TensorProjection projection = ProjectTensor(mapping, factors, Open({{}}));
  projection.factors[0].axes = {WholeAxis(mesh, 0), WholeAxis(mesh, 1)};
  const auto unproject = [&](int64_t extent) {
    return ToString(mesh,
                    UnprojectTensor(mesh, mapping, factors, projection, {extent}, Open({{}})));
  };
  EXPECT_EQ(unproject(4), "@[mb.dp?]");
  EXPECT_EQ(unproject(6), "@[?]");
  EXPECT_EQ(unproject(7), "@[?]");
}

}  // namespace
}  // namespace penstock::planner
