#include "planner/lower/unasked_gathers.h"

#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"

#include "graph/models/model.h"
#include "graph/training.h"
#include "planner/strategy/stages.h"
#include "planner/strategy/strategy.h"
#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class UnaskedGathersTest : public testing::PlannerFixture {
 protected:
  std::vector<UnaskedGather> FindIn(const graph::Graph& written) const {
    return FindUnaskedGathers(written, InsertReshards(written));
  }
  std::vector<UnaskedGather> FindIn(std::string_view text) const { return FindIn(MustParse(text)); }
};

TEST_F(UnaskedGathersTest, TheExampleOfTheHeader) {
  const std::vector<UnaskedGather> found = FindIn(R"(mesh m = [a=4]
graph g {
  %x = input : f32[24] @[a]
  %y = reshape(%x) {shape=[6, 4]} : f32[6, 4]
  %z = neg(%y) : f32[6, 4]
  return %z
})");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].value, "x");
  EXPECT_EQ(found[0].reader, "reshape");
  EXPECT_EQ(found[0].location.line, 4);
  EXPECT_EQ(found[0].from, "@[a]");
  EXPECT_EQ(found[0].to, "@[a:(1)2]");
  // Of 24 elements a device has 6 and reads 12.
  EXPECT_EQ(found[0].num_bytes, 24);
}

TEST_F(UnaskedGathersTest, WhatIsWrittenIsAskedFor) {
  EXPECT_THAT(FindIn(R"(mesh m = [a=4]
graph g {
  %x = input : f32[24] @[a]
  %y = reshape(%x) {shape=[6, 4]} : f32[6, 4] @[_, _]
  return %y
})"),
              IsEmpty());
  EXPECT_THAT(FindIn(R"(mesh m = [a=4]
graph g {
  %x = input : f32[24] @[a]
  %w = reshard(%x) : f32[24] @[_]
  %y = reshape(%w) {shape=[6, 4]} : f32[6, 4]
  return %y
})"),
              IsEmpty());
  EXPECT_THAT(FindIn(R"(mesh m = [a=4]
graph g {
  %x = input : f32[24] @[a]
  return %x @[_]
})"),
              IsEmpty());
}

// The product is split over the axis, in the columns of its other operand.
TEST_F(UnaskedGathersTest, WhatRunsSplitOtherwiseIsAskedFor) {
  EXPECT_THAT(FindIn(R"(mesh m = [a=4]
graph g {
  %x = input : f32[16, 64] @[a, _]
  %w = parameter : f32[64, 4096] @[_, a]
  %y = matmul(%x, %w) : f32[16, 4096] @[_, a]
  return %y
})"),
              IsEmpty());
}

TEST_F(UnaskedGathersTest, StrategiesAskForTheirGathers) {
  const graph::ModelRegistry models = graph::BuiltinModels();
  for (const std::string name : {"gpt", "moe"}) {
    const graph::Model& model = *models.FindModel(name);
    graph::ModelConfig config;
    config.layers = 2;
    config.width = 128;
    config.heads = 4;
    config.context = 64;
    config.vocabulary = 256;
    const graph::Graph forward =
        *graph::BuildModelGraph(ops_, model, config, graph::ModelUse::kTrain, 32);
    const graph::Graph training = *graph::BuildTrainingGraph(ops_, forward, {});
    for (const std::string text :
         {"dp=4", "tp=4", "dp=2,tp=2", "dp=4,zero=1", "dp=4,zero=2", "dp=4,zero=3",
          "dp=2,tp=2,zero=3", "tp=2,sp=true", "dp=2,tp=2,sp=true,zero=1", "dp=1,cp=4",
          "dp=1,cp=2,tp=2,ulysses=true", "tp=2,pp=2", "dp=4,ep=4", "dp=4,ep=2,zero=3"}) {
      const Strategy strategy = **ParseStrategy(text);
      if ((strategy.ep > 1) != (name == "moe") || (strategy.cp > 1 && name == "moe")) continue;
      graph::Graph graph = training;
      ASSERT_TRUE(ApplyStrategy(strategy, 2, model.tensor_splits, graph).ok()) << text;
      ASSERT_TRUE(AssignStages(strategy.num_stages(), graph).ok());
      for (const UnaskedGather& gather : FindIn(graph)) {
        ADD_FAILURE() << name << " " << text << ": %" << gather.value << " for " << gather.reader
                      << " from " << gather.from << " to " << gather.to;
      }
    }
  }
}

}  // namespace
}  // namespace penstock::planner
