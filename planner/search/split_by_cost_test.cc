#include "planner/search/split_by_cost.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "graph/op.h"
#include "graph/text.h"
#include "graph/training.h"
#include "planner/cluster/presets.h"
#include "planner/strategy/stated_shardings.h"

namespace penstock::planner {
namespace {

using ::testing::HasSubstr;

class SplitByCostTest : public ::testing::Test {
 protected:
  // The example of the header, trained.
  graph::Graph Prepare(const Strategy& strategy, int64_t microbatches, int64_t batch = 16,
                       const std::vector<graph::SplitHint>& hints = {}) {
    const std::string text = absl::StrReplaceAll(R"(graph mlp {
  %x = input : f32[BATCH, 512]
  %u = parameter : f32[512, 2048]
  %v = parameter : f32[2048, 512]
  %a = matmul(%x, %u) : f32[BATCH, 2048]
  %h = relu(%a) : f32[BATCH, 2048]
  %y = matmul(%h, %v) : f32[BATCH, 512]
  %loss = reduce_mean(%y) {axes=[0, 1]} : f32[]
  return %loss
}
)",
                                                 {{"BATCH", StrCat(batch)}});
    graph::Graph forward = *graph::ParseGraph(text, "mlp.pst", ops_);
    graph::Graph graph = *graph::BuildTrainingGraph(ops_, std::move(forward), {});
    EXPECT_TRUE(ApplyStrategy(strategy, microbatches, hints, graph).ok());
    return graph;
  }

  static std::string Of(const graph::Graph& graph, std::string_view name) {
    for (graph::ValueId value = 0; value < graph.num_values(); ++value) {
      if (graph.value(value).name == name) {
        return graph::ToString(graph.meshes()[0], *graph.value(value).sharding);
      }
    }
    return "none";
  }

  // The least memory of a device, in MiB, with which splits are found, up to 5 %.
  double LeastMemory(const std::string& text, int64_t microbatches, int64_t batch = 16) {
    const Strategy strategy = **ParseStrategy(StrCat(text, ",splits=cost"));
    const graph::Graph graph = Prepare(strategy, microbatches, batch);
    double fits = 1 << 14;
    double fails = 0;
    while (fits - fails > 0.05 * fits) {
      const double middle = (fits + fails) / 2;
      ClusterSpec spec = machine_.cluster.spec();
      spec.kinds[0].memory_bytes = static_cast<int64_t>(middle * (1 << 20));
      const Machine machine = {*Cluster::Create(std::move(spec))};
      SplitOptions options;
      options.machine = &machine;
      options.num_groups = static_cast<int>(strategy.pp);
      graph::Graph split = graph;
      (SplitByCost(strategy, options, split).ok() ? fits : fails) = middle;
    }
    return fits;
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
  const Machine machine_ = {*FindClusterPreset("dgx-a100:1")};
};

TEST_F(SplitByCostTest, TheExampleOfTheHeader) {
  Strategy strategy;
  strategy.tp = 2;
  strategy.splits_by_cost = true;
  SplitOptions options;
  options.machine = &machine_;
  graph::Graph graph = Prepare(strategy, 1);
  ASSERT_TRUE(SplitByCost(strategy, options, graph).ok());
  EXPECT_EQ(Of(graph, "u"), "@[_, tp]");
  EXPECT_EQ(Of(graph, "v"), "@[tp, _]");
  EXPECT_EQ(Of(graph, "h"), "@[_, tp]");
  EXPECT_EQ(Of(graph, "x"), "@[_, _]");
}

TEST_F(SplitByCostTest, KeepsWhatIsStated) {
  Strategy strategy;
  strategy.dp = 2;
  strategy.tp = 2;
  strategy.zero = 1;
  strategy.splits_by_cost = true;
  const std::vector<graph::SplitHint> hints = {*ParseStatedSharding("u @[_, _]"),
                                               *ParseStatedSharding("v.m @[_, dp]")};
  SplitOptions options;
  options.machine = &machine_;
  options.hints = hints;
  graph::Graph graph = Prepare(strategy, 1, 16, hints);
  ASSERT_TRUE(SplitByCost(strategy, options, graph).ok());
  EXPECT_EQ(Of(graph, "u"), "@[_, _]");
  EXPECT_EQ(Of(graph, "v.m"), "@[_, dp]");
  // What nothing is stated for is still split.
  EXPECT_THAT(Of(graph, "v"), HasSubstr("tp"));
}

TEST_F(SplitByCostTest, LeavesTheBatchToDataParallelismAndMicrobatches) {
  Strategy strategy;
  strategy.dp = 2;
  strategy.tp = 2;
  strategy.zero = 1;
  strategy.splits_by_cost = true;
  SplitOptions options;
  options.machine = &machine_;
  graph::Graph graph = Prepare(strategy, 4);
  ASSERT_TRUE(SplitByCost(strategy, options, graph).ok());
  EXPECT_EQ(Of(graph, "x"), "@[mb.dp, _]");
  EXPECT_EQ(Of(graph, "h"), "@[mb.dp, tp]");
  // What zero=1 divides is what the splits leave.
  EXPECT_EQ(Of(graph, "u"), "@[_, tp]");
  EXPECT_THAT(Of(graph, "u.m"), HasSubstr("dp"));
  EXPECT_THAT(Of(graph, "u.m"), HasSubstr("tp"));
}

TEST_F(SplitByCostTest, SaysThatNothingFits) {
  ClusterSpec spec = machine_.cluster.spec();
  spec.kinds[0].memory_bytes = 1 << 20;
  const Machine small = {*Cluster::Create(std::move(spec))};
  Strategy strategy;
  strategy.tp = 2;
  strategy.splits_by_cost = true;
  SplitOptions options;
  options.machine = &small;
  graph::Graph graph = Prepare(strategy, 1);
  const absl::Status status = SplitByCost(strategy, options, graph);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a device needs more than 1.0 MiB"));
}

// Ψ = 8 MiB of parameters, half on each device of tp, and a tenth of a device is left for other
// uses: 4 MiB of parameters, 8 of moments and 4 of gradients.
TEST_F(SplitByCostTest, ReplicasDivideWhatZeroSplits) {
  EXPECT_NEAR(LeastMemory("dp=4,tp=2", 4), 16 / 0.9, 1.2);
  // The sum over micro-batches is whole at level 1.
  EXPECT_NEAR(LeastMemory("dp=4,tp=2,zero=1", 4), 10 / 0.9, 0.8);
  EXPECT_NEAR(LeastMemory("dp=4,tp=2,zero=1", 1), 7 / 0.9, 0.6);
  EXPECT_NEAR(LeastMemory("dp=4,tp=2,zero=2", 4), 7 / 0.9, 0.6);
  EXPECT_NEAR(LeastMemory("dp=4,tp=2,zero=3", 4), 4 / 0.9, 0.5);
}

TEST_F(SplitByCostTest, WhatIsComputedAgainOrGoesToTheHostIsNotKept) {
  const double kept = LeastMemory("dp=1,tp=2", 1, 1 << 14);
  EXPECT_LT(LeastMemory("dp=1,tp=2,recompute=full", 1, 1 << 14), 0.75 * kept);
  // Its devices have memory of their own beside that of their hosts.
  ASSERT_GT(machine_.cluster.spec().kinds[0].host_link_bytes_per_s, 0);
  EXPECT_LT(LeastMemory("dp=1,tp=2,offload=activations", 1, 1 << 14), 0.75 * kept);
  EXPECT_NEAR(LeastMemory("dp=1,tp=2,offload=states", 1, 16), 8 / 0.9, 0.8);
}

// The stages of a pipeline have the memory of all its groups.
TEST_F(SplitByCostTest, GroupsMayDifferInMemory) {
  ClusterSpec spec = machine_.cluster.spec();
  spec.kinds.push_back(spec.kinds[0]);
  spec.kinds[0].memory_bytes = 2 << 20;
  spec.kinds[1].name = "larger";
  spec.devices = {{2, 0}, {6, 1}};
  const Machine machine = {*Cluster::Create(std::move(spec))};
  Strategy strategy;
  strategy.tp = 2;
  strategy.splits_by_cost = true;
  SplitOptions options;
  options.machine = &machine;
  graph::Graph graph = Prepare(strategy, 1);
  EXPECT_EQ(SplitByCost(strategy, options, graph).code(), absl::StatusCode::kResourceExhausted);
  options.num_groups = 2;
  graph = Prepare(strategy, 1);
  EXPECT_TRUE(SplitByCost(strategy, options, graph).ok());
}

}  // namespace
}  // namespace penstock::planner
