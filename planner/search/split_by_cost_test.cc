#include "planner/search/split_by_cost.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "graph/op.h"
#include "graph/text.h"
#include "graph/training.h"
#include "planner/cluster/presets.h"

namespace penstock::planner {
namespace {

using ::testing::HasSubstr;

class SplitByCostTest : public ::testing::Test {
 protected:
  // The example of the header, trained.
  graph::Graph Prepare(const Strategy& strategy, int64_t microbatches) {
    graph::Graph forward = *graph::ParseGraph(R"(graph mlp {
  %x = input : f32[16, 512]
  %u = parameter : f32[512, 2048]
  %v = parameter : f32[2048, 512]
  %a = matmul(%x, %u) : f32[16, 2048]
  %h = relu(%a) : f32[16, 2048]
  %y = matmul(%h, %v) : f32[16, 512]
  %loss = reduce_mean(%y) {axes=[0, 1]} : f32[]
  return %loss
}
)",
                                              "mlp.pst", ops_);
    graph::Graph graph = *graph::BuildTrainingGraph(ops_, std::move(forward), {});
    EXPECT_TRUE(ApplyStrategy(strategy, microbatches, {}, graph).ok());
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

}  // namespace
}  // namespace penstock::planner
