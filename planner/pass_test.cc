#include "planner/pass.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/builder.h"
#include "graph/op.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Advances by one microsecond a look.
class StepClock : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_ += 1000; }

 private:
  mutable int64_t now_ns_ = 0;
};

class PassTest : public ::testing::Test {
 protected:
  void SetUp() override {
    graph::GraphBuilder builder(ops_, graph_);
    builder.Declare("input", "x", {DType::kF32, {4}});
    ASSERT_TRUE(builder.status().ok());
  }

  // Appends neg of the last value.
  Pass Negate(std::string name) const {
    return {std::move(name), [this](graph::Graph& graph) {
              return graph.Add(ops_.Find("neg"), {graph.num_values() - 1}).status();
            }};
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
  graph::Graph graph_;
};

TEST_F(PassTest, RunsInOrderWithTimingsAndDumps) {
  StepClock clock;
  std::vector<std::string> log;
  PassOptions options;
  options.clock = &clock;
  options.dump_after = {"second"};
  options.on_dump = [&](std::string_view pass, std::string_view text) {
    log.push_back("dump " + std::string(pass));
    EXPECT_THAT(std::string(text), HasSubstr("neg(%neg)"));
  };
  options.on_timing = [&](const PassTiming& timing) {
    log.push_back(timing.name + " " + std::to_string(timing.num_nodes));
    EXPECT_EQ(timing.wall_ns, 1000);
    EXPECT_EQ(timing.verify_ns, 1000);
  };
  const std::vector<Pass> passes = {Negate("first"), Negate("second")};
  ASSERT_TRUE(RunPasses(passes, options, &graph_).ok());
  EXPECT_THAT(log, ElementsAre("first 2", "second 3", "dump second"));
}

TEST_F(PassTest, ErrorsNameThePassAndStop) {
  const Pass fails = {"break-things", [](graph::Graph&) { return absl::UnimplementedError("no"); }};
  const absl::Status status = RunPasses({fails, Negate("after")}, {}, &graph_);
  EXPECT_EQ(status, absl::UnimplementedError("pass break-things: no"));
  EXPECT_EQ(graph_.num_nodes(), 1);
}

TEST_F(PassTest, APassThatBreaksTheGraphIsCaught) {
  const Pass breaks = {"break-types", [](graph::Graph& graph) {
                         graph.mutable_value(1).type.shape = {5};
                         return absl::OkStatus();
                       }};
  const absl::Status status = RunPasses({Negate("negate"), breaks}, {}, &graph_);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("pass break-types left a graph that does not verify: %neg has type"));
}

}  // namespace
}  // namespace penstock::planner
