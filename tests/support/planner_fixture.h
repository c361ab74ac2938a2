// A fixture for tests of planner passes on graphs written as text.
//
// Thread rule: one thread.

#ifndef PENSTOCK_TESTS_SUPPORT_PLANNER_FIXTURE_H_
#define PENSTOCK_TESTS_SUPPORT_PLANNER_FIXTURE_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

#include "base/strings.h"
#include "graph/gradients.h"
#include "graph/graph.h"
#include "graph/op.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "kernels/kernel.h"
#include "planner/compile.h"
#include "planner/sharding/decompose.h"
#include "planner/sharding/execution_sharding.h"
#include "planner/sharding/insert_reshards.h"
#include "planner/sharding/lower_reshards.h"
#include "planner/sharding/propagate.h"

namespace penstock::testing {

class PlannerFixture : public ::testing::Test {
 protected:
  graph::Graph MustParse(std::string_view text) const {
    absl::StatusOr<graph::Graph> graph = graph::ParseGraph(text, "test.pst", ops_);
    EXPECT_TRUE(graph.ok()) << graph.status();
    return graph.ok() ? *std::move(graph) : graph::Graph();
  }

  // With the gradients of the one returned scalar.
  graph::Graph Differentiate(const graph::Graph& forward) const {
    absl::StatusOr<graph::Graph> graph = graph::AddGradients(ops_, forward);
    EXPECT_TRUE(graph.ok()) << graph.status();
    return graph.ok() ? *std::move(graph) : graph::Graph();
  }

  graph::Graph InsertReshards(graph::Graph graph) const {
    const auto check = [&](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      const absl::Status verified = graph::VerifyGraph(graph);
      EXPECT_TRUE(verified.ok()) << verified << "\n" << graph::PrintGraph(graph);
    };
    check(planner::Propagate(planner::PropagationLevel::kUserPriority, &graph));
    check(planner::DecomposeSplitFactors(ops_, graph));
    check(planner::InsertReshards(ops_, graph));
    return graph;
  }

  // Through all passes up to lower-reshards.
  graph::Graph Lower(graph::Graph graph) const {
    graph = InsertReshards(std::move(graph));
    const absl::Status status = planner::LowerReshards(ops_, graph);
    EXPECT_TRUE(status.ok()) << status;
    const absl::Status verified = graph::VerifyGraph(graph);
    EXPECT_TRUE(verified.ok()) << verified << "\n" << graph::PrintGraph(graph);
    return graph;
  }
  graph::Graph Lower(std::string_view text) const { return Lower(MustParse(text)); }

  static std::map<std::string, int> CountOps(const graph::Graph& graph) {
    std::map<std::string, int> counts;
    for (const graph::Node& node : graph.nodes()) ++counts[std::string(node.op->name())];
    return counts;
  }

  // The statements of operators called `op`, as printed.
  static std::vector<std::string> Statements(const graph::Graph& graph, std::string_view op) {
    std::vector<std::string> statements;
    for (const graph::Node& node : graph.nodes()) {
      if (node.op->name() == op) statements.push_back(graph::PrintNode(graph, node));
    }
    return statements;
  }

  // The sharding of the value called `name`, as printed.
  static std::string ShardingOf(const graph::Graph& graph, std::string_view name) {
    const graph::ValueId value = graph.FindValue(name);
    if (value == graph::kNoValue || !graph.value(value).sharding) return "none";
    return graph::ToString(graph.meshes()[0], *graph.value(value).sharding);
  }

  // A node whose execution is to be chosen, with the shardings written on its operands and results.
  struct NodeToExecute {
    const graph::Mesh& mesh;
    graph::ShardingRule rule;
    std::vector<TensorType> operand_types;
    std::vector<TensorType> result_types;
    std::vector<graph::Sharding> operands;
    std::vector<graph::Sharding> results;
  };

  // "operands -> results" of what `choose`, given the last node of the graph, returns.
  template <typename Choose>
  std::string ChooseForLastNode(std::string_view text, const Choose& choose) const {
    const graph::Graph graph = MustParse(text);
    const graph::Mesh& mesh = graph.meshes()[0];
    const graph::Node& last = graph.nodes().back();
    NodeToExecute node{mesh, {}, graph.OperandTypes(last), graph.ResultTypes(last), {}, {}};
    node.rule = last.op->Rule({last.attributes, node.operand_types, node.result_types});
    for (const graph::ValueId id : last.operands) {
      node.operands.push_back(planner::ClosedSharding(mesh, graph.value(id)));
    }
    for (const graph::ValueId id : last.results) {
      node.results.push_back(planner::ClosedSharding(mesh, graph.value(id)));
    }
    const planner::ExecutionSharding execution = choose(node);
    const auto print = [&mesh](const std::vector<graph::Sharding>& shardings) {
      std::vector<std::string> texts;
      for (const graph::Sharding& sharding : shardings) texts.push_back(ToString(mesh, sharding));
      return StrJoin(texts, ", ");
    };
    return StrCat(print(execution.operands), " -> ", print(execution.results));
  }

  planner::CompileOptions OptionsFor(std::string policy) const {
    planner::CompileOptions options;
    options.policy = std::move(policy);
    options.policies = &policies_;
    options.kernels = kernels::TraitsOf(kernels_, 1);
    return options;
  }

  // A verified plan.
  planner::Plan Compile(graph::Graph graph, std::string policy = "1f1b") const {
    absl::StatusOr<planner::Plan> plan =
        planner::Compile(ops_, std::move(graph), OptionsFor(std::move(policy)));
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *std::move(plan) : planner::Plan();
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
  const kernels::KernelRegistry kernels_ = kernels::CpuKernels();
  const planner::PolicyRegistry policies_ = planner::BuiltinPolicies();
};

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_PLANNER_FIXTURE_H_
