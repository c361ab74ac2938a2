#include "tests/support/shrink.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "graph/text.h"
#include "graph/verify.h"

namespace penstock::testing {
namespace {

using ::testing::HasSubstr;

bool HasLive(const graph::Graph& graph, std::string_view op) {
  const std::vector<bool> is_live = LiveNodes(graph);
  for (graph::NodeId id = 0; id < graph.num_nodes(); ++id) {
    if (is_live[id] && graph.node(id).op->name() == op) return true;
  }
  return false;
}

// The first random case that has the operator, and a good deal beside it. Not a training step,
// whose update needs a chain of nodes.
RandomCase CaseWith(const graph::OpRegistry& ops, std::string_view op) {
  for (uint64_t seed = 0;; ++seed) {
    const absl::StatusOr<RandomCase> test = MakeRandomCase(ops, seed);
    EXPECT_TRUE(test.ok()) << test.status();
    if (!test.ok()) return RandomCase();
    if (HasLive(test->graph, op) && !HasLive(test->graph, "assign") &&
        test->graph.num_nodes() > 12) {
      return *test;
    }
  }
}

TEST(ShrinkTest, KeepsWhatTheFailureNeedsAndLittleElse) {
  const graph::OpRegistry ops = graph::BuiltinOps();
  for (const std::string_view op : {"softmax", "attention", "matmul", "cross_entropy"}) {
    SCOPED_TRACE(op);
    const RandomCase failing = CaseWith(ops, op);
    int num_asked = 0;
    const auto fails = [&](const RandomCase& test) {
      ++num_asked;
      EXPECT_TRUE(graph::VerifyGraph(test.graph).ok());
      return HasLive(test.graph, op);
    };
    const RandomCase small = Shrink(failing, fails, 1000);
    EXPECT_LE(num_asked, 1000);
    EXPECT_TRUE(HasLive(small.graph, op));
    // The operator, its operands, and what makes a result of it.
    EXPECT_LE(small.graph.num_nodes(), 8) << Describe(small);
    EXPECT_EQ(small.num_steps, 1);
    for (graph::ValueId value = 0; value < small.graph.num_values(); ++value) {
      const auto& sharding = small.graph.value(value).sharding;
      if (!sharding.has_value()) continue;
      for (const graph::DimSharding& dim : sharding->dims) EXPECT_TRUE(dim.axes.empty());
    }
  }
}

TEST(ShrinkTest, AsksNoMoreOftenThanItMay) {
  const graph::OpRegistry ops = graph::BuiltinOps();
  int num_asked = 0;
  Shrink(
      CaseWith(ops, "matmul"),
      [&](const RandomCase&) {
        ++num_asked;
        return true;
      },
      3);
  EXPECT_EQ(num_asked, 3);
}

TEST(ShrinkTest, ACaseIsDescribedInTheTextFormat) {
  const graph::OpRegistry ops = graph::BuiltinOps();
  const RandomCase test = CaseWith(ops, "softmax");
  const std::string text = Describe(test);
  EXPECT_THAT(text, HasSubstr(test.policy));
  EXPECT_THAT(text, HasSubstr(graph::PrintGraph(test.graph)));
}

}  // namespace
}  // namespace penstock::testing
