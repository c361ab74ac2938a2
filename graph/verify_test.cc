#include "graph/verify.h"

#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/text.h"

namespace penstock::graph {
namespace {

using ::testing::HasSubstr;

class VerifyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<Graph> graph = ParseGraph(R"(mesh m = [a=2, b=2]
graph g {
  %x = input : f32[8, 4] @[a, ?]
  %w = parameter : f32[4, 4]
  %y = matmul(%x, %w) : f32[8, 4]
  %v = neg(%w) : f32[4, 4]
  assign(%w, %v)
  return %y
})",
                                             "v.pst", ops_);
    ASSERT_TRUE(graph.ok()) << graph.status().message();
    graph_ = *std::move(graph);
    ASSERT_TRUE(VerifyGraph(graph_).ok()) << VerifyGraph(graph_).message();
  }

  void ExpectRefused(std::string_view part) {
    const absl::Status status = VerifyGraph(graph_);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(part)));
  }

  const OpRegistry ops_ = BuiltinOps();
  Graph graph_;
};

TEST_F(VerifyTest, TypesAreInferredAgain) {
  graph_.mutable_value(2).type.shape[1] = 5;
  ExpectRefused("v.pst:5:3: %y has type f32[8, 5], but matmul gives f32[8, 4]");
  ExpectRefused("in: %y = matmul(%x, %w)");
}

TEST_F(VerifyTest, OperandsComeFirst) {
  graph_.mutable_node(2).operands[0] = 3;
  ExpectRefused("reads %v before it is produced");
  graph_.mutable_node(2).operands[0] = 99;
  ExpectRefused("reads value 99 of 4");
}

TEST_F(VerifyTest, ResultsBelongToTheirProducer) {
  graph_.mutable_value(2).producer = 1;
  ExpectRefused("is not its own");
}

TEST_F(VerifyTest, NamesAreUnique) {
  graph_.mutable_value(2).name = "x";
  ExpectRefused("two values are named %x");
}

TEST_F(VerifyTest, ShardingsFitTheirMesh) {
  graph_.mutable_value(0).sharding->dims[1].axes = {{0, 1, 2}};
  ExpectRefused("%x: dimension 1: axis a is already used by dimension 0");
}

TEST_F(VerifyTest, ReturnShardingsFitToo) {
  graph_.mutable_returns()[0].sharding = Sharding::Open(1);
  ExpectRefused("return 0, %y: the sharding has 1 dimension, ");
  graph_.mutable_returns()[0] = {17, std::nullopt};
  ExpectRefused("return 0 is value 17 of 4");
}

TEST_F(VerifyTest, StagesMeshesAndForwardNodes) {
  graph_.mutable_node(2).stage = -2;
  ExpectRefused("stage -2");
  graph_.mutable_node(2).stage = 0;
  graph_.mutable_node(2).mesh = 1;
  ExpectRefused("mesh 1 of 1");
  graph_.mutable_node(2).mesh = 0;
  graph_.mutable_node(2).forward = 2;
  ExpectRefused("not before node 2");
}

TEST_F(VerifyTest, AttributesAreChecked) {
  graph_.mutable_node(2).attributes.Set("transpose_a", AttrValue(3));
  ExpectRefused("transpose_a");
}

TEST_F(VerifyTest, AssignWritesStateOnce) {
  graph_.mutable_node(4).operands[0] = 3;
  ExpectRefused("%v is made by neg; only a parameter or a state can be assigned");
  graph_.mutable_node(4).operands[0] = 1;
  Node again;
  again.op = graph_.node(4).op;
  again.operands = graph_.node(4).operands;
  graph_.AddTyped(std::move(again), {}, {});
  ExpectRefused("%w is assigned twice");
}

TEST_F(VerifyTest, MeshesAreChecked) {
  graph_.mutable_meshes().push_back(graph_.meshes()[0]);
  ExpectRefused("two meshes are named m");
}

}  // namespace
}  // namespace penstock::graph
