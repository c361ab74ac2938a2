#include "graph/graph.h"

#include "gtest/gtest.h"

#include "graph/builder.h"
#include "graph/op.h"

namespace penstock::graph {
namespace {

class GraphTest : public ::testing::Test {
 protected:
  std::string AddError(std::string_view op, absl::Span<const ValueId> operands,
                       Attributes attributes = {}, int num_results = -1) {
    const auto id = graph_.Add(ops_.Find(op), operands, std::move(attributes), {}, num_results);
    return id.ok() ? "" : std::string(id.status().message());
  }

  const OpRegistry ops_ = BuiltinOps();
  Graph graph_;
  GraphBuilder builder_{ops_, graph_};
  const ValueId x_ = builder_.Declare("input", "x", {DType::kF32, {8, 16}});
  const ValueId w_ = builder_.Declare("parameter", "w", {DType::kF32, {12, 4}});
};

TEST_F(GraphTest, ErrorsAreWordsAUserCanActOn) {
  EXPECT_EQ(AddError("matmul", {x_, w_}),
            "matmul: the inner dimensions differ: 16 in operand 0 f32[8, 16], 12 in operand 1 "
            "f32[12, 4]");
  EXPECT_EQ(AddError("matmul", {x_}), "matmul: takes 2 operands, not 1");
  EXPECT_EQ(AddError("concat", {}, {{"axis", 0}}), "concat: takes at least 1 operand, not 0");
  EXPECT_EQ(AddError("einsum", {x_, x_, x_}), "einsum: takes 1 to 2 operands, not 3");
  EXPECT_EQ(AddError("neg", {99}), "neg: operand 0 is not a value of this graph");
  EXPECT_EQ(AddError("input", {}), "input: the type of its result must be declared");
}

TEST_F(GraphTest, AttributesAreChecked) {
  EXPECT_EQ(AddError("matmul", {x_, w_}, {{"transpose_c", true}}),
            "matmul: unknown attribute 'transpose_c'; did you mean 'transpose_a'?");
  EXPECT_EQ(AddError("neg", {x_}, {{"axis", 1}}),
            "neg: unknown attribute 'axis'; the operator takes none");
  EXPECT_EQ(AddError("slice", {x_}, {{"colour", 1}}),
            "slice: unknown attribute 'colour'; the operator takes start, limit, stride");
  EXPECT_EQ(AddError("reduce_sum", {x_}, {{"axes", 1}}),
            "reduce_sum: attribute 'axes' must be a list of integers");
  EXPECT_EQ(AddError("reduce_sum", {x_}),
            "reduce_sum: attribute 'axes' is missing; it is a list of integers");
}

TEST_F(GraphTest, ResultCountsAreChecked) {
  const ValueId v = builder_.Declare("parameter", "v", {DType::kF32, {16}});
  EXPECT_EQ(AddError("layer_norm", {x_, v, v}, {}, 3), "");
  EXPECT_EQ(AddError("layer_norm", {x_, v, v}, {}, 2), "");
  EXPECT_EQ(AddError("layer_norm", {x_, v, v}, {}, 4), "layer_norm: has 1 to 3 results, not 4");
  EXPECT_EQ(AddError("neg", {x_}, {}, 0), "neg: has 1 result, not 0");
}

TEST_F(GraphTest, NamesAreUnique) {
  const ValueId a = builder_.Add("neg", {x_});
  const ValueId b = builder_.Add("neg", {x_});
  EXPECT_EQ(graph_.value(a).name, "neg");
  EXPECT_EQ(graph_.value(b).name, "neg_1");
  EXPECT_EQ(graph_.FindValue("neg_1"), b);
  EXPECT_EQ(graph_.FindValue("nothing"), kNoValue);
  const std::vector<ValueId> parts =
      builder_.AddMulti("split", {x_}, {{"axis", 0}, {"parts", 2}}, "half");
  ASSERT_EQ(parts.size(), 2);
  EXPECT_EQ(graph_.value(parts[0]).name, "half");
  EXPECT_EQ(graph_.value(parts[1]).name, "half.1");
  const std::string taken = "x";
  const auto id = graph_.Add(ops_.Find("neg"), {x_}, {}, absl::MakeConstSpan(&taken, 1));
  EXPECT_EQ(id.status().message(), "neg: the name %x is taken");
}

TEST_F(GraphTest, UsersAreListedOnce) {
  const ValueId twice = builder_.Add("add", {x_, x_});
  builder_.Add("mul", {twice, x_});
  const auto users = graph_.Users();
  EXPECT_EQ(users[x_], (std::vector<NodeId>{2, 3}));
  EXPECT_EQ(users[twice], (std::vector<NodeId>{3}));
  EXPECT_TRUE(users[w_].empty());
}

TEST_F(GraphTest, BuilderErrorsStick) {
  const ValueId wrong = builder_.Add("matmull", {x_, w_});
  EXPECT_EQ(wrong, kNoValue);
  EXPECT_EQ(builder_.status().message(), "unknown operator 'matmull'; did you mean 'matmul'?");
  const int num_nodes = graph_.num_nodes();
  EXPECT_EQ(builder_.Add("neg", {wrong}), kNoValue);
  EXPECT_EQ(builder_.Constant(1, {DType::kF32, {}}), kNoValue);
  EXPECT_EQ(builder_.Declare("input", "y", {DType::kF32, {}}), kNoValue);
  EXPECT_EQ(graph_.num_nodes(), num_nodes);
  EXPECT_EQ(builder_.status().message(), "unknown operator 'matmull'; did you mean 'matmul'?");
}

TEST_F(GraphTest, BuilderMarksNodes) {
  builder_.set_scope("h0.");
  builder_.set_stage(2);
  builder_.set_phase(Phase::kUpdate);
  builder_.set_forward(1);
  const ValueId y = builder_.Add("neg", {x_}, {}, "y");
  const Node& node = graph_.node(graph_.value(y).producer);
  EXPECT_EQ(graph_.value(y).name, "h0.y");
  EXPECT_EQ(node.stage, 2);
  EXPECT_EQ(node.phase, Phase::kUpdate);
  EXPECT_EQ(node.forward, 1);
}

TEST_F(GraphTest, DeclaredTypesAreChecked) {
  builder_.Declare("input", "huge", {DType::kF32, {int64_t{1} << 40, int64_t{1} << 40}});
  EXPECT_FALSE(builder_.status().ok());
}

}  // namespace
}  // namespace penstock::graph
