#include "planner/strategy/move_optimizer.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"

#include "graph/text.h"
#include "graph/verify.h"
#include "planner/opt.h"
#include "planner/strategy/mixed_precision.h"
#include "tests/support/gpt_plan.h"
#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::HasSubstr;

class MoveOptimizerTest : public testing::PlannerFixture {
 protected:
  graph::Graph TrainingStep(const std::string& strategy) const {
    return testing::SmallGptStep(ops_, {.strategy = strategy, .microbatches = 2, .batch = 8});
  }

  static graph::Graph Moved(const graph::OpRegistry& ops, graph::Graph graph) {
    const absl::Status status = MoveOptimizer(ops, graph);
    EXPECT_TRUE(status.ok()) << status;
    const absl::Status verified = graph::VerifyGraph(graph);
    EXPECT_TRUE(verified.ok()) << verified << graph::PrintGraph(graph);
    return graph;
  }
};

TEST_F(MoveOptimizerTest, WeightsAreCastOnTheHostAndSplitWhereTheyAreRead) {
  graph::Graph graph = MustParse(R"(mesh m = [mb=2 temporal, dp=2, tp=2]
graph g {
  %x = input : f32[8, 4] @[mb.dp, _]
  %w = parameter : f32[4, 8] @[_, tp]
  %b = parameter : f32[8]
  %p = matmul(%x, %w) : f32[8, 8]
  %y = bias_add(%p, %b) : f32[8, 8]
  %loss = sum_squares(%y) : f32[]
  return %loss @[]
})");
  ASSERT_TRUE(MixPrecision(ops_, DType::kBF16, graph).ok());
  const graph::Graph moved = Moved(ops_, std::move(graph));
  for (const char* name : {"w", "w.bf16", "b"}) {
    const graph::ValueId value = moved.FindValue(name);
    ASSERT_NE(value, graph::kNoValue) << name << graph::PrintGraph(moved);
    const graph::Node& node = moved.node(moved.value(value).producer);
    EXPECT_EQ(node.stage, 0) << name;
    EXPECT_EQ(moved.meshes()[node.mesh].num_devices(), 1) << name;
    EXPECT_FALSE(moved.value(value).sharding.has_value()) << name;
  }
  ASSERT_EQ(CountOps(moved)["reshard"], 1) << graph::PrintGraph(moved);
  for (const graph::Node& node : moved.nodes()) {
    if (node.op->name() == "matmul" || node.op->name() == "reshard") {
      EXPECT_EQ(node.stage, 1);
    }
    if (node.op->name() != "reshard") continue;
    EXPECT_EQ(moved.value(node.operands[0]).name, "w.bf16");
    EXPECT_EQ(ShardingOf(moved, moved.value(node.results[0]).name), "@[_, tp]");
    const graph::Node& product = moved.node(moved.value(moved.FindValue("p")).producer);
    EXPECT_EQ(product.operands[1], node.results[0]);
  }
}

TEST_F(MoveOptimizerTest, TheUpdateIsOnTheHostAndAllElseAfterIt) {
  for (const char* strategy : {"dp=2", "dp=2,tp=2", "pp=2", "dp=2,pp=2"}) {
    SCOPED_TRACE(strategy);
    const graph::Graph before = TrainingStep(strategy);
    const graph::Graph moved = Moved(ops_, TrainingStep(strategy));
    const auto node_of = [](const graph::Graph& graph, graph::ValueId value) -> const graph::Node& {
      return graph.node(graph.value(value).producer);
    };
    for (const graph::Node& node : moved.nodes()) {
      EXPECT_EQ(moved.meshes()[node.mesh].num_devices() == 1,
                node.stage == 0 || moved.meshes().size() == 1);
      const bool is_parameter = node.op->role() == graph::OpRole::kParameter;
      const bool is_update = node.op->name() == "adamw" || node.op->name() == "assign" ||
                             node.op->role() == graph::OpRole::kState;
      if (is_parameter || is_update) {
        EXPECT_EQ(node.stage, 0) << graph::PrintNode(moved, node);
      }
      // The norm of gradients is computed where they are.
      if (node.op->name() == "sum_squares") {
        EXPECT_GT(node.stage, 0);
      }
      if (node.phase == graph::Phase::kUpdate || is_parameter) continue;
      if (node.op->role() == graph::OpRole::kReshard) continue;
      const graph::ValueId same = before.FindValue(moved.value(node.results[0]).name);
      EXPECT_EQ(node.stage, node_of(before, same).stage + 1) << graph::PrintNode(moved, node);
    }
    EXPECT_EQ(moved.meshes().size(), before.meshes()[0].num_devices() == 1 ? 1u : 2u);
  }
}

TEST_F(MoveOptimizerTest, RefusesWhatItCannotMove) {
  const auto message = [&](const std::string& text) {
    const auto moved = Optimize(text, "in.pst", "move-optimizer,verify", ops_);
    return std::string(moved.status().message());
  };
  EXPECT_THAT(message("mesh m = [dp=2]\nmesh n = [dp=3]\ngraph g {\n"
                      "  %w = parameter : f32[4] on m stage 0\n"
                      "  %y = neg(%w) : f32[4] on n stage 1\n  return %y\n}"),
              HasSubstr("optimizer=host: the stages of the graph lie on several meshes"));
  EXPECT_THAT(message("mesh m = [dp=2]\ngraph g {\n  %x = input : f32[4] on m\n"
                      "  %y = neg(%x) : f32[4] on m\n  return %y\n}"),
              HasSubstr("optimizer=host: graph g has no parameters"));
  graph::Graph split = TrainingStep("dp=2");
  const graph::ValueId moment = split.FindValue("h0.mlp.w1.m");
  ASSERT_NE(moment, graph::kNoValue);
  graph::Sharding sharding = graph::Sharding::Replicated(2);
  sharding.dims[0].axes = {graph::WholeAxis(split.meshes()[0], split.meshes()[0].FindAxis("dp"))};
  split.mutable_value(moment).sharding = sharding;
  EXPECT_THAT(std::string(MoveOptimizer(ops_, split).message()),
              HasSubstr("optimizer=host: %h0.mlp.w1.m is to be split @[dp, _], but the states"));
}

// What the pass has made can be read back, whatever the axes are called.
TEST_F(MoveOptimizerTest, TheMeshOfTheHostHasNamesOfItsOwn) {
  const absl::StatusOr<std::string> moved = Optimize(
      "mesh host = [one=2 temporal, dp=2]\ngraph g {\n"
      "  %w = parameter : f32[4] on host\n  %y = neg(%w) : f32[4] on host\n"
      "  return %y\n}",
      "in.pst", "move-optimizer", ops_);
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_THAT(*moved, HasSubstr("mesh host0 = [one=2 temporal, one0=1]"));
  const auto again = Optimize(*moved, "moved.pst", "verify", ops_);
  EXPECT_TRUE(again.ok()) << again.status() << *moved;
}

TEST_F(MoveOptimizerTest, PoliciesRunOneStageOnEachGroup) {
  for (const char* name : {"1f1b", "gpipe", "zb-h1"}) {
    EXPECT_TRUE(CheckMovedOptimizer(*policies_.Find(name), 1).ok()) << name;
    EXPECT_THAT(std::string(CheckMovedOptimizer(*policies_.Find(name), 2).message()),
                HasSubstr("cannot be run as 2 chunks"));
  }
  for (const char* name : {"interleaved", "dualpipe", "chimera", "zb-v"}) {
    ASSERT_NE(policies_.Find(name), nullptr) << name;
    EXPECT_THAT(std::string(CheckMovedOptimizer(*policies_.Find(name), 1).message()),
                HasSubstr("runs several stages on each group of devices"))
        << name;
  }
}

}  // namespace
}  // namespace penstock::planner
