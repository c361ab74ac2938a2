#include "graph/init_streams.h"

#include <map>
#include <set>
#include <string>

#include "gtest/gtest.h"

#include "base/strings.h"
#include "graph/op.h"
#include "graph/text.h"

namespace penstock::graph {
namespace {

class InitStreamsTest : public ::testing::Test {
 protected:
  // By name, of the declared values of a graph with these statements.
  std::map<std::string, uint32_t> Streams(const std::string& statements) const {
    const absl::StatusOr<Graph> graph =
        ParseGraph(StrCat("graph g {\n", statements, "}\n"), "g.pst", ops_);
    EXPECT_TRUE(graph.ok()) << graph.status();
    const std::vector<uint32_t> streams = InitStreams(*graph);
    std::map<std::string, uint32_t> by_name;
    for (NodeId id = 0; id < graph->num_nodes(); ++id) {
      by_name[graph->value(graph->node(id).results[0]).name] = streams[id];
    }
    return by_name;
  }

  const OpRegistry ops_ = BuiltinOps();
};

TEST_F(InitStreamsTest, EveryParameterHasAStreamOfItsOwn) {
  std::string statements;
  std::set<uint32_t> distinct;
  for (int i = 0; i < 2000; ++i) StrAppend(&statements, "%w", i, " = parameter : f32[2]\n");
  for (const auto& [name, stream] : Streams(statements)) distinct.insert(stream);
  EXPECT_EQ(distinct.size(), 2000);
}

TEST_F(InitStreamsTest, AStreamDependsOnTheNameAlone) {
  const std::string b = "%b = parameter : f32[2]\n";
  const std::string c = "%c = state {init=\"normal\"} : f32[3]\n";
  const auto alone = Streams(b);
  const auto with_others = Streams(StrCat("%a = parameter : f32[2]\n", c, b));
  EXPECT_EQ(alone.at("b"), with_others.at("b"));
  EXPECT_EQ(Streams(c).at("c"), with_others.at("c"));
}

TEST_F(InitStreamsTest, AStreamThatIsWrittenIsKept) {
  const auto streams =
      Streams("%a = parameter {stream=0} : f32[2]\n%b = parameter {stream=7} : f32[2]\n");
  EXPECT_EQ(streams.at("a"), 0);
  EXPECT_EQ(streams.at("b"), 7);
}

TEST_F(InitStreamsTest, ADerivedStreamAvoidsThoseThatAreWritten) {
  const uint32_t first = StreamOfName("b");
  const auto streams =
      Streams(StrCat("%b = parameter : f32[2]\n%a = parameter {stream=", first, "} : f32[2]\n"));
  EXPECT_EQ(streams.at("a"), first);
  EXPECT_EQ(streams.at("b"), StreamOfName("b", 1));
}

}  // namespace
}  // namespace penstock::graph
