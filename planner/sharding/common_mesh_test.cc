#include "planner/sharding/common_mesh.h"

#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"

#include "tests/support/planner_fixture.h"
#include "tests/support/random_shardings.h"

namespace penstock::planner {
namespace {

using graph::Mesh;
using ::testing::HasSubstr;

class CommonMeshTest : public testing::PlannerFixture {
 protected:
  Mesh MeshOf(std::string_view text) const {
    return MustParse(StrCat("mesh ", text, "\ngraph g {\n}")).meshes()[0];
  }
  std::vector<Mesh> MeshesOf(const std::vector<std::string>& texts) const {
    std::vector<Mesh> meshes;
    for (const std::string& text : texts) meshes.push_back(MeshOf(text));
    return meshes;
  }
  // "axis=size, ...", or the error.
  std::string Create(const std::vector<std::string>& texts) const {
    const absl::StatusOr<CommonMesh> common = CommonMesh::Create(MeshesOf(texts));
    if (!common.ok()) return std::string(common.status().message());
    std::vector<std::string> axes;
    for (const graph::MeshAxis& axis : common->mesh().axes) {
      axes.push_back(StrCat(axis.name, "=", axis.size, axis.is_temporal ? " temporal" : ""));
    }
    return StrJoin(axes, ", ");
  }
};

TEST_F(CommonMeshTest, HasThePiecesThatAllAxesCut) {
  EXPECT_EQ(Create({"m = [dp=4]", "n = [rows=2, tp=2]"}), "rows=2, tp=2");
  EXPECT_EQ(Create({"m = [a=2, b=4]", "n = [c=4, d=2]"}), "a=2, part2=2, d=2");
  EXPECT_EQ(Create({"m = [mb=3 temporal, a=2]", "n = [mb=3 temporal, b=2]"}), "mb=3 temporal, a=2");
  EXPECT_EQ(Create({"m = [a=1, b=2]", "n = [c=2, d=1]"}), "b=2");
}

TEST_F(CommonMeshTest, AnotherMeshMayUseANameForSomethingElse) {
  EXPECT_EQ(Create({"m = [dp=2, tp=4]", "n = [dp=4, tp=2]"}), "dp=2, part2=2, tp=2");
}

TEST_F(CommonMeshTest, SaysWhyThereIsNone) {
  EXPECT_EQ(Create({"m = [a=2]", "n = [b=4]"}), "'m' has 2 devices and 'n' 4");
  EXPECT_EQ(Create({"m = [a=2]", "n = [mb=2 temporal, b=2]"}),
            "'m' and 'n' have different temporal axes");
  EXPECT_EQ(
      Create({"m = [a=2, b=3]", "n = [c=3, d=2]"}),
      "their axes divide the devices after 2 and after 3 parts, and neither divides the other");
}

TEST_F(CommonMeshTest, TranslatesShardings) {
  const std::vector<Mesh> meshes = MeshesOf({"m = [dp=4]", "n = [rows=2, tp=2]"});
  const CommonMesh common = *CommonMesh::Create(meshes);
  graph::Sharding sharding = graph::Sharding::Replicated(2);
  sharding.dims[0].axes = {{0, 1, 4}};
  EXPECT_EQ(ToString(common.mesh(), *common.Translate(0, sharding)), "@[rows.tp, _]");
  sharding.dims[0].axes = {{0, 2, 2}};
  sharding.partials = {{graph::Reduction::kSum, {{0, 1, 2}}}};
  EXPECT_EQ(ToString(common.mesh(), *common.Translate(0, sharding)), "@[tp, _] partial(sum, rows)");
}

TEST_F(CommonMeshTest, RefusesSubAxesThatItCannotExpress) {
  const std::vector<Mesh> meshes = MeshesOf({"m = [a=12]", "n = [b=2, c=6]"});
  const CommonMesh common = *CommonMesh::Create(meshes);
  graph::Sharding sharding = graph::Sharding::Replicated(1);
  sharding.dims[0].axes = {{0, 1, 3}};
  EXPECT_THAT(std::string(common.Translate(0, sharding).status().message()),
              HasSubstr("'a:(1)3' of 'm' and 'c' of another mesh overlap"));
}

// Every device and micro-batch holds the same elements as before.
TEST_F(CommonMeshTest, KeepsWhatEachDeviceHolds) {
  const std::vector<Mesh> meshes =
      MeshesOf({"m = [mb=2 temporal, a=2, b=4]", "n = [c=8, mb=2 temporal]",
                "o = [d=4, mb=2 temporal, e=2]"});
  const CommonMesh common = *CommonMesh::Create(meshes);
  testing::Random random(1);
  const Shape shape = {8, 6};
  for (int i = 0; i < 300; ++i) {
    const int index = i % 3;
    const graph::Sharding sharding = testing::RandomSharding(random, meshes[index], shape);
    const auto translated = common.Translate(index, sharding);
    ASSERT_TRUE(translated.ok()) << translated.status();
    for (int64_t device = 0; device < 8; ++device) {
      for (int64_t microbatch = 0; microbatch < 2; ++microbatch) {
        for (size_t d = 0; d < shape.size(); ++d) {
          const auto before =
              graph::LocalRange(meshes[index], sharding.dims[d], shape[d], device, microbatch);
          const auto after =
              graph::LocalRange(common.mesh(), translated->dims[d], shape[d], device, microbatch);
          EXPECT_EQ(before.begin, after.begin) << ToString(meshes[index], sharding);
          EXPECT_EQ(before.end, after.end) << ToString(meshes[index], sharding);
        }
      }
    }
  }
}

}  // namespace
}  // namespace penstock::planner
