#include "graph/sharding.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::graph {
namespace {

using ::testing::HasSubstr;

Mesh TrainingMesh() { return {"m", {{"mb", 4, true}, {"dp", 2, false}, {"tp", 2, false}}}; }

DimSharding Split(std::vector<AxisRef> axes) { return {std::move(axes), false, std::nullopt}; }

std::string CheckError(const Mesh& mesh, const Sharding& sharding, const Shape& shape) {
  return std::string(CheckSharding(mesh, sharding, shape).message());
}

TEST(MeshTest, CountsDevicesAndMicrobatchesApart) {
  const Mesh mesh = TrainingMesh();
  EXPECT_EQ(mesh.num_devices(), 4);
  EXPECT_EQ(mesh.num_microbatches(), 4);
  EXPECT_EQ(mesh.FindAxis("tp"), 2);
  EXPECT_EQ(mesh.FindAxis("pp"), -1);
}

TEST(MeshTest, CheckMeshNamesWhatIsWrong) {
  EXPECT_TRUE(CheckMesh(TrainingMesh()).ok());
  EXPECT_TRUE(CheckMesh({"m", {}}).ok());
  EXPECT_THAT(CheckMesh({"m", {{"a", 2}, {"a", 2}}}).message(), HasSubstr("axis a is declared"));
  EXPECT_THAT(CheckMesh({"m", {{"a", 0}}}).message(), HasSubstr("size 0"));
  EXPECT_THAT(CheckMesh({"m", {{"_", 2}}}).message(), HasSubstr("not an identifier"));
  EXPECT_THAT(CheckMesh({"m", {{"a", 1 << 20}, {"b", 2}}}).message(), HasSubstr("limit"));
}

TEST(CoordinateTest, SpatialAxesAreRowMajorOverDevices) {
  const Mesh mesh = TrainingMesh();
  for (int device = 0; device < 4; ++device) {
    EXPECT_EQ(Coordinate(mesh, WholeAxis(mesh, 1), device, 3), device / 2);
    EXPECT_EQ(Coordinate(mesh, WholeAxis(mesh, 2), device, 3), device % 2);
  }
}

TEST(CoordinateTest, TemporalAxesReadTheMicrobatch) {
  const Mesh mesh = {"m", {{"o", 2, true}, {"dp", 3}, {"i", 5, true}}};
  EXPECT_EQ(Coordinate(mesh, WholeAxis(mesh, 0), 2, 7), 1);
  EXPECT_EQ(Coordinate(mesh, WholeAxis(mesh, 2), 2, 7), 2);
  EXPECT_EQ(Coordinate(mesh, WholeAxis(mesh, 1), 2, 7), 2);
}

TEST(CoordinateTest, SubAxesAreDigitsOfTheCoordinate) {
  const Mesh mesh = {"m", {{"tp", 16}}};
  const AxisRef piece = {0, 2, 4};
  for (int device = 0; device < 16; ++device) {
    EXPECT_EQ(Coordinate(mesh, piece, device, 0), device / 2 % 4);
  }
  // The digits put together give the coordinate back.
  for (int device = 0; device < 16; ++device) {
    const int64_t high = Coordinate(mesh, {0, 1, 2}, device, 0);
    const int64_t low = Coordinate(mesh, {0, 8, 2}, device, 0);
    EXPECT_EQ((high * 4 + Coordinate(mesh, piece, device, 0)) * 2 + low, device);
  }
}

TEST(LocalRangeTest, HeaderExample) {
  const Mesh mesh = TrainingMesh();
  const DimSharding rows = Split({WholeAxis(mesh, 0), WholeAxis(mesh, 1)});
  for (int mb = 0; mb < 4; ++mb) {
    EXPECT_EQ(LocalRange(mesh, rows, 16, /*device=*/2, mb), (Range{4 * mb + 2, 4 * mb + 4}));
  }
  EXPECT_EQ(LocalRange(mesh, Split({WholeAxis(mesh, 2)}), 8, 2, 0), (Range{0, 4}));
}

TEST(LocalRangeTest, TemporalAxisMayBeMinor) {
  const Mesh mesh = TrainingMesh();
  const DimSharding rows = Split({WholeAxis(mesh, 1), WholeAxis(mesh, 0)});
  EXPECT_EQ(LocalRange(mesh, rows, 16, /*device=*/0, 3), (Range{6, 8}));
  EXPECT_EQ(LocalRange(mesh, rows, 16, /*device=*/3, 0), (Range{8, 10}));
}

TEST(LocalRangeTest, UnevenPartsCoverTheDimensionInOrder) {
  const Mesh mesh = {"m", {{"a", 3}, {"b", 4}}};
  for (int64_t extent : {0, 1, 5, 7, 12, 13, 100}) {
    const DimSharding dim = Split({WholeAxis(mesh, 0), WholeAxis(mesh, 1)});
    const DimSharding major = Split({WholeAxis(mesh, 0)});
    int64_t next = 0;
    for (int device = 0; device < 12; ++device) {
      const Range range = LocalRange(mesh, dim, extent, device, 0);
      EXPECT_EQ(range.begin, next);
      next = range.end;
      // Splitting further stays inside the coarser part.
      const Range coarse = LocalRange(mesh, major, extent, device, 0);
      EXPECT_LE(coarse.begin, range.begin);
      EXPECT_LE(range.end, coarse.end);
    }
    EXPECT_EQ(next, extent);
  }
}

TEST(LocalRangeTest, SubBatchesDivideEachPart) {
  const Mesh mesh = TrainingMesh();
  DimSharding rows = Split({WholeAxis(mesh, 0), WholeAxis(mesh, 1)});
  for (int64_t index = 0; index < 3; ++index) {
    rows.sub_batch = SubBatch{3, index};
    const int64_t begin = (2 * 3 + 1) * 6 + 2 * index;  // of the device (1, 0) in micro-batch 3
    EXPECT_EQ(LocalRange(mesh, rows, 48, /*device=*/2, 3), (Range{begin, begin + 2}));
  }
}

TEST(LocalRangeTest, UnsplitIsWhole) {
  const Mesh mesh = TrainingMesh();
  EXPECT_EQ(LocalRange(mesh, Split({}), 7, 3, 2), (Range{0, 7}));
}

TEST(OverlapTest, PiecesOfOneAxis) {
  EXPECT_TRUE(Overlap({0, 1, 4}, {0, 2, 2}));
  EXPECT_FALSE(Overlap({0, 1, 2}, {0, 2, 2}));
  EXPECT_FALSE(Overlap({0, 1, 2}, {1, 1, 2}));
  EXPECT_TRUE(Overlap({0, 1, 1}, {0, 1, 1}));  // an axis of size 1
  EXPECT_FALSE(CanCoexist({0, 1, 2}, {0, 3, 2}));
  EXPECT_TRUE(CanCoexist({0, 1, 2}, {0, 2, 3}));
  EXPECT_TRUE(CanCoexist({0, 1, 2}, {0, 8, 2}));
}

TEST(CheckShardingTest, AcceptsUnevenAndSubAxes) {
  const Mesh mesh = {"m", {{"a", 4}, {"b", 3}}};
  Sharding sharding = Sharding::Open(2);
  sharding.dims[0].axes = {{0, 2, 2}, WholeAxis(mesh, 1)};
  sharding.partials = {{Reduction::kSum, {{0, 1, 2}}}};
  EXPECT_TRUE(CheckSharding(mesh, sharding, {7, 1}).ok());
}

TEST(CheckShardingTest, MessagesNameDimensionAndAxis) {
  const Mesh mesh = TrainingMesh();
  Sharding sharding = Sharding::Replicated(2);
  EXPECT_THAT(CheckError(mesh, sharding, {8}), HasSubstr("2 dimensions"));

  sharding.dims[1].axes = {{7, 1, 2}};
  EXPECT_THAT(CheckError(mesh, sharding, {8, 8}), HasSubstr("dimension 1: mesh m has no axis"));

  sharding.dims[1].axes = {{2, 1, 3}};
  EXPECT_THAT(CheckError(mesh, sharding, {8, 8}), HasSubstr("tp:(1)3"));
  sharding.dims[1].axes = {{2, int64_t{1} << 62, int64_t{1} << 62}};
  EXPECT_FALSE(CheckSharding(mesh, sharding, {8, 8}).ok());

  sharding.dims[0].axes = {WholeAxis(mesh, 1)};
  sharding.dims[1].axes = {WholeAxis(mesh, 1)};
  EXPECT_EQ(CheckError(mesh, sharding, {8, 8}),
            "dimension 1: axis dp is already used by dimension 0");

  sharding.dims[1].axes = {};
  sharding.replicated = {WholeAxis(mesh, 1)};
  EXPECT_EQ(CheckError(mesh, sharding, {8, 8}),
            "replicated: axis dp is already used by dimension 0");

  sharding.replicated = {};
  sharding.partials = {{Reduction::kMax, {WholeAxis(mesh, 1)}}};
  EXPECT_THAT(CheckError(mesh, sharding, {8, 8}), HasSubstr("partial(max)"));
}

TEST(CheckShardingTest, TemporalAxesDivideWithEverythingMajorToThem) {
  const Mesh mesh = TrainingMesh();
  Sharding sharding = Sharding::Replicated(1);
  sharding.dims[0].axes = {WholeAxis(mesh, 0), WholeAxis(mesh, 1)};
  EXPECT_TRUE(CheckSharding(mesh, sharding, {12}).ok());  // dp splits 3 rows unevenly
  EXPECT_THAT(CheckError(mesh, sharding, {10}), HasSubstr("dimension 0: the temporal axis mb"));
  sharding.dims[0].axes = {WholeAxis(mesh, 1), WholeAxis(mesh, 0)};
  EXPECT_FALSE(CheckSharding(mesh, sharding, {12}).ok());
  EXPECT_TRUE(CheckSharding(mesh, sharding, {16}).ok());
}

TEST(CheckShardingTest, SubBatchesDivideTheParts) {
  const Mesh mesh = TrainingMesh();
  Sharding sharding = Sharding::Replicated(1);
  sharding.dims[0].axes = {WholeAxis(mesh, 1)};
  sharding.dims[0].sub_batch = SubBatch{2, 1};
  EXPECT_TRUE(CheckSharding(mesh, sharding, {12}).ok());
  EXPECT_EQ(CheckError(mesh, sharding, {10}),
            "dimension 0: sub-batch 1 of 2 of each of 2 parts does not divide 10");
  sharding.dims[0].is_open = true;
  EXPECT_THAT(CheckError(mesh, sharding, {12}), HasSubstr("is none of a closed dimension"));
  sharding.dims[0].is_open = false;
  for (const SubBatch wrong :
       {SubBatch{0, 0}, SubBatch{2, 2}, SubBatch{2, -1}, SubBatch{int64_t{1} << 60, 0}}) {
    sharding.dims[0].sub_batch = wrong;
    EXPECT_THAT(CheckError(mesh, sharding, {12}), HasSubstr("is none of a closed dimension"));
  }
}

TEST(CanonicalizeTest, JoinsAdjacentPieces) {
  const Mesh mesh = {"m", {{"a", 4}, {"b", 8}}};
  Sharding sharding = Sharding::Open(2);
  sharding.dims[0].axes = {{0, 1, 2}, {0, 2, 2}};
  sharding.dims[1].axes = {{1, 2, 2}, {1, 4, 2}};
  Canonicalize(mesh, &sharding);
  EXPECT_EQ(ToString(mesh, sharding), "@[a?, b:(2)4?]");
  sharding.dims[0].axes = {{0, 2, 2}, {0, 1, 2}};  // minor piece first: another layout
  Canonicalize(mesh, &sharding);
  EXPECT_EQ(ToString(mesh, sharding), "@[a:(2)2.a:(1)2?, b:(2)4?]");
}

TEST(CanonicalizeTest, PartialAndReplicatedAreSets) {
  const Mesh mesh = {"m", {{"a", 4}, {"b", 2}, {"c", 2}, {"d", 4}}};
  Sharding sharding = Sharding::Replicated(0);
  sharding.partials = {{Reduction::kMax, {WholeAxis(mesh, 2)}},
                       {Reduction::kSum, {WholeAxis(mesh, 1)}},
                       {Reduction::kSum, {WholeAxis(mesh, 0)}}};
  sharding.replicated = {{3, 2, 2}, {3, 1, 2}};
  Canonicalize(mesh, &sharding);
  EXPECT_EQ(ToString(mesh, sharding), "@[] partial(sum, a, b) partial(max, c) replicated(d)");
}

TEST(ToStringTest, EntriesOfEveryKind) {
  const Mesh mesh = TrainingMesh();
  Sharding sharding = Sharding::Open(4);
  sharding.dims[0].axes = {WholeAxis(mesh, 0), WholeAxis(mesh, 1)};
  sharding.dims[0].is_open = false;
  sharding.dims[1].axes = {WholeAxis(mesh, 2)};
  sharding.dims[1].priority = 1;
  sharding.dims[2].is_open = false;
  EXPECT_EQ(ToString(mesh, sharding), "@[mb.dp, tp? p1, _, ?]");
}

TEST(ReductionTest, NamesRoundTrip) {
  for (Reduction reduction :
       {Reduction::kSum, Reduction::kMax, Reduction::kMin, Reduction::kProd}) {
    EXPECT_EQ(ParseReduction(Name(reduction)), reduction);
  }
  EXPECT_EQ(ParseReduction("mean"), std::nullopt);
}

}  // namespace
}  // namespace penstock::graph
