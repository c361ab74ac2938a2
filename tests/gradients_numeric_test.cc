// Every gradient against central differences in f64, and every decomposition against its operator.

#include <cmath>
#include <map>
#include <set>
#include <string>

#include "gtest/gtest.h"

#include "base/strings.h"
#include "graph/builder.h"
#include "graph/gradients.h"
#include "graph/op.h"
#include "tests/support/interpreter.h"
#include "tests/support/op_cases.h"
#include "tests/support/tested_plugin.h"

namespace penstock::testing {
namespace {

using graph::Graph;
using graph::GraphBuilder;
using graph::OpRegistry;
using graph::ValueId;

constexpr double kStep = 1e-5;
constexpr double kTolerance = 1e-7;

// A graph whose float operands are parameters and whose other operands are inputs, all called "x0",
// "x1", ... The loss is a sum of the float results, each element times the input "c<i>".
struct Program {
  Graph graph;
  std::map<std::string, Tensor> feeds;
  std::vector<std::string> parameters;
};

ValueId DeclareOperand(GraphBuilder& builder, const OpCase& test, uint32_t i, Program* program) {
  const std::string name = "x" + std::to_string(i);
  program->feeds[name] = DrawOperand(test.operands[i], i);
  if (!IsFloat(test.operands[i].type.dtype)) {
    return builder.Declare("input", name, test.operands[i].type);
  }
  program->parameters.push_back(name);
  return builder.Declare("parameter", name, test.operands[i].type);
}

absl::StatusOr<Program> MakeProgram(const OpRegistry& ops, const OpCase& test) {
  Program program;
  GraphBuilder builder(ops, program.graph);
  std::vector<ValueId> operands;
  for (uint32_t i = 0; i < test.operands.size(); ++i) {
    operands.push_back(DeclareOperand(builder, test, i, &program));
  }
  ValueId loss = graph::kNoValue;
  const std::vector<ValueId> results = builder.AddMulti(test.op, operands, test.attributes);
  for (uint32_t i = 0; i < results.size(); ++i) {
    const TensorType type = builder.type(results[i]);
    if (!IsFloat(type.dtype)) continue;
    const std::string name = "c" + std::to_string(i);
    program.feeds[name] = DrawOperand({type, -1, 1}, 100 + i);
    ValueId term = builder.Add("mul", {results[i], builder.Declare("input", name, type)});
    std::vector<int64_t> axes;
    for (size_t d = 0; d < type.shape.size(); ++d) axes.push_back(static_cast<int64_t>(d));
    if (!axes.empty()) {
      term = builder.Add("reduce_sum", {term}, {{"axes", graph::AttrValue::Ints(axes)}});
    }
    loss = loss == graph::kNoValue ? term : builder.Add("add", {loss, term});
  }
  program.graph.mutable_returns() = {{loss, {}}};
  if (!builder.status().ok()) return builder.status();
  return program;
}

class OpCaseTest : public ::testing::TestWithParam<OpCase> {
 protected:
  const Registries registries_ = TestedRegistries();
  const graph::OpRegistry& ops_ = registries_.ops;
  const kernels::KernelRegistry& kernels_ = registries_.kernels;
  const InterpretOptions options_{.seed = 3, .step = 2};
};

class DifferentiableOpTest : public OpCaseTest {};

TEST_P(DifferentiableOpTest, GradientMatchesDifferences) {
  const OpCase& test = GetParam();
  SCOPED_TRACE(ToString(test));
  absl::StatusOr<Program> program = MakeProgram(ops_, test);
  ASSERT_TRUE(program.ok()) << program.status();
  const absl::StatusOr<Graph> gradients = graph::AddGradients(ops_, program->graph);
  ASSERT_TRUE(gradients.ok()) << gradients.status();
  const auto values = Interpret(*gradients, kernels_, program->feeds, options_);
  ASSERT_TRUE(values.ok()) << values.status();
  ASSERT_EQ(values->size(), program->parameters.size() + 1);
  auto loss_at = [&](double* element, double at) {
    const double before = *element;
    *element = at;
    const auto loss = Interpret(program->graph, kernels_, program->feeds, options_);
    *element = before;
    EXPECT_TRUE(loss.ok()) << loss.status();
    return loss.ok() ? *(*loss)[0].As<double>() : NAN;
  };
  for (size_t p = 0; p < program->parameters.size(); ++p) {
    Tensor& parameter = program->feeds[program->parameters[p]];
    ASSERT_EQ((*values)[p + 1].type(), parameter.type());
    for (int64_t i = 0; i < parameter.num_elements(); ++i) {
      double* element = parameter.As<double>() + i;
      const double expected =
          (loss_at(element, *element + kStep) - loss_at(element, *element - kStep)) / (2 * kStep);
      EXPECT_NEAR((*values)[p + 1].As<double>()[i], expected,
                  kTolerance * std::max(1.0, std::abs(expected)))
          << program->parameters[p] << ", element " << i;
    }
  }
}

TEST_P(OpCaseTest, DecompositionMatchesOperator) {
  const OpCase& test = GetParam();
  const graph::Op* op = ops_.Find(test.op);
  Program program;
  GraphBuilder builder(ops_, program.graph);
  std::vector<ValueId> operands;
  for (uint32_t i = 0; i < test.operands.size(); ++i) {
    operands.push_back(DeclareOperand(builder, test, i, &program));
  }
  const absl::StatusOr<graph::NodeId> id = program.graph.Add(op, operands, test.attributes);
  ASSERT_TRUE(id.ok()) << id.status();
  const graph::Node node = program.graph.node(*id);
  const std::vector<TensorType> types = program.graph.OperandTypes(node);
  const auto all_results = op->InferTypes({node.attributes, types, {}});
  ASSERT_TRUE(all_results.ok()) << all_results.status();
  const auto full_id =
      program.graph.Add(op, operands, test.attributes, {}, static_cast<int>(all_results->size()));
  ASSERT_TRUE(full_id.ok()) << full_id.status();
  const graph::Node full = program.graph.node(*full_id);
  std::vector<graph::FactorSplit> splits;
  for (int factor : op->DecomposableFactors({node.attributes, types, *all_results})) {
    for (int64_t parts : {1, 2, 3, 7}) splits.push_back({factor, parts});
  }
  for (const graph::FactorSplit& split : splits) {
    SCOPED_TRACE(StrCat("factor ", split.factor, " in ", split.num_parts, " parts"));
    const auto replacement = op->Decompose(builder, full, split);
    ASSERT_TRUE(replacement.ok()) << replacement.status();
    ASSERT_TRUE(builder.status().ok()) << builder.status();
    ASSERT_EQ(replacement->size(), full.results.size());
    program.graph.mutable_returns().clear();
    for (size_t i = 0; i < full.results.size(); ++i) {
      program.graph.mutable_returns().push_back({full.results[i], {}});
      program.graph.mutable_returns().push_back({(*replacement)[i], {}});
    }
    const auto values = Interpret(program.graph, kernels_, program.feeds, options_);
    ASSERT_TRUE(values.ok()) << values.status();
    for (size_t i = 0; i < values->size(); i += 2) {
      ASSERT_EQ((*values)[i].type(), (*values)[i + 1].type());
      for (int64_t e = 0; e < (*values)[i].num_elements(); ++e) {
        EXPECT_NEAR((*values)[i].As<double>()[e], (*values)[i + 1].As<double>()[e], 1e-12);
      }
    }
  }
}

std::string CaseName(const ::testing::TestParamInfo<OpCase>& info) {
  return info.param.op + "_" + std::to_string(info.index);
}

std::vector<OpCase> DifferentiableCases() {
  const Registries registries = TestedRegistries();
  std::vector<OpCase> cases = OpCases();
  std::erase_if(cases, [&](const OpCase& test) {
    return !registries.ops.Find(test.op)->is_differentiable();
  });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Ops, OpCaseTest, ::testing::ValuesIn(OpCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(Ops, DifferentiableOpTest, ::testing::ValuesIn(DifferentiableCases()),
                         CaseName);

TEST(OpCasesTest, CoverEveryOperatorThatComputes) {
  const OpRegistry ops = graph::BuiltinOps();
  std::set<std::string> covered;
  for (const OpCase& test : OpCases()) covered.insert(test.op);
  const std::set<std::string> exempt = {
      "input",      "parameter",           "state",         "assign",     "local_slice",
      "all_gather", "all_to_all",          "permute",       "all_reduce", "reduce_scatter",
      "accumulate", "gather_microbatches", "halo_exchange", "receive",    "join_sub_batches"};
  for (std::string_view name : ops.Names()) {
    EXPECT_TRUE(covered.contains(std::string(name)) != exempt.contains(std::string(name))) << name;
  }
}

}  // namespace
}  // namespace penstock::testing
