#include "planner/draw/graph_blocks.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"

#include "base/strings.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// "ln0 mul0 x3; loss" of a column.
std::string Text(const std::vector<Block>& blocks) {
  std::vector<std::string> texts;
  for (const Block& block : blocks) {
    std::vector<std::string> steps;
    for (const BlockStep& step : block.steps) {
      steps.push_back(step.name);
      for (const BlockTransfer& transfer : step.transfers) {
        StrAppend(&steps.back(), "(", transfer.label, " ", transfer.bytes);
        if (transfer.copies < block.count) {
          StrAppend(&steps.back(), ", ", transfer.copies, " of ", block.count);
        }
        steps.back() += ")";
      }
    }
    texts.push_back(StrJoin(steps, " "));
    if (block.count > 1) StrAppend(&texts.back(), " x", block.count, " to ", block.last_name);
  }
  return StrJoin(texts, "; ");
}

int Add(DrawnGraph& graph, const std::string& op, const std::string& name, int stage = 0,
        DrawnColumn column = DrawnColumn::kForward) {
  DrawnBox box;
  box.column = column;
  box.stage = stage;
  box.op = op;
  box.name = name;
  box.type = "f32[8]";
  box.sharding = "@[dp]";
  graph.boxes.push_back(box);
  return static_cast<int>(graph.boxes.size()) - 1;
}

void Join(DrawnGraph& graph, int from, int to, const std::string& label = "", int64_t bytes = 0) {
  DrawnEdge edge;
  edge.from = from;
  edge.to = to;
  edge.label = label;
  edge.bytes = bytes;
  graph.edges.push_back(edge);
}

TEST(FindRepeatsTest, TheRepeatThatCoversMostComesFirst) {
  EXPECT_THAT(FindRepeats({}), IsEmpty());
  EXPECT_THAT(FindRepeats({1, 2, 3}), ElementsAre(Repeat{0, 3, 1}));
  EXPECT_THAT(FindRepeats({7, 7, 7}), ElementsAre(Repeat{0, 1, 3}));
  EXPECT_THAT(FindRepeats({9, 1, 2, 1, 2, 1, 2, 8}),
              ElementsAre(Repeat{0, 1, 1}, Repeat{1, 2, 3}, Repeat{7, 1, 1}));
  // 1 1 2 twice, rather than 1 twice.
  EXPECT_THAT(FindRepeats({1, 1, 2, 1, 1, 2, 5, 5}), ElementsAre(Repeat{0, 3, 2}, Repeat{6, 1, 2}));
}

// All of the sequence is covered, in bounded time, however many repeats there are.
TEST(FindRepeatsTest, ManyShortRepeatsTakeNoQuadraticTime) {
  std::vector<int> sequence;
  for (int i = 0; i < 50'000; ++i) sequence.insert(sequence.end(), {3 * i, 3 * i, 3 * i + 1});
  size_t at = 0;
  for (const Repeat& repeat : FindRepeats(sequence)) {
    EXPECT_EQ(repeat.first, at);
    at += repeat.count * repeat.period;
  }
  EXPECT_EQ(at, sequence.size());
}

TEST(GraphBlocksTest, LayersAreListedOnce) {
  DrawnGraph graph;
  int last = Add(graph, "embedding", "embed");
  for (int layer = 0; layer < 12; ++layer) {
    const int norm = Add(graph, "layer_norm", StrCat("h", layer, ".ln"));
    Join(graph, last, norm);
    last = Add(graph, "matmul", StrCat("h", layer, ".out"));
    Join(graph, norm, last, "all_gather", 64);
  }
  // The last one is sent to another stage.
  Join(graph, last, Add(graph, "mean", "loss", 1), "send", 32);
  const std::vector<StageBlocks> stages = FoldBlocks(graph);
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_THAT(stages[0].stages, ElementsAre(0));
  EXPECT_EQ(stages[0].num_steps, 25);
  EXPECT_EQ(Text(stages[0].columns[0]),
            "embed; h0.ln(all_gather 64) h0.out(send 32, 1 of 12) x12 to h11.ln");
  EXPECT_THAT(stages[0].columns[1], IsEmpty());
}

// However many terms their updates sum up.
TEST(GraphBlocksTest, StagesAlikeAreListedOnce) {
  DrawnGraph graph;
  graph.num_stages = 4;
  for (int stage = 0; stage < 4; ++stage) {
    const int y = Add(graph, stage == 3 ? "gelu" : "matmul", StrCat("h", stage, ".y"), stage);
    const int g = Add(graph, "matmul", StrCat("h", stage, ".g"), stage, DrawnColumn::kBackward);
    for (int i = 0; i <= stage; ++i) {
      Add(graph, "add", StrCat("norm", i), stage, DrawnColumn::kUpdate);
    }
    Join(graph, y, g);
  }
  const std::vector<StageBlocks> stages = FoldBlocks(graph);
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_THAT(stages[0].stages, ElementsAre(0, 1, 2));
  EXPECT_EQ(stages[0].num_steps, 2);
  EXPECT_EQ(Text(stages[0].columns[1]), "h0.g");
  EXPECT_EQ(Text(stages[0].columns[3]), "norm0");
  EXPECT_THAT(stages[1].stages, ElementsAre(3));
}

// What differs in its sharding is not alike.
TEST(GraphBlocksTest, StepsThatDifferAreListed) {
  DrawnGraph graph;
  const int a = Add(graph, "neg", "a0");
  const int b = Add(graph, "neg", "a1");
  const int c = Add(graph, "neg", "a2");
  graph.boxes[static_cast<size_t>(b)].sharding = "@[tp]";
  Join(graph, a, b);
  Join(graph, b, c);
  EXPECT_EQ(Text(FoldBlocks(graph)[0].columns[0]), "a0 a1 a2");
}

// A junction passes on what its source communicates.
TEST(GraphBlocksTest, JunctionsBelongToTheirSource) {
  DrawnGraph graph;
  const int a = Add(graph, "matmul", "a");
  const int junction = Add(graph, "all_reduce", "a.sum");
  graph.boxes[static_cast<size_t>(junction)].is_junction = true;
  Join(graph, a, junction, "all_reduce", 512);
  Join(graph, junction, Add(graph, "gelu", "b"));
  Join(graph, junction, Add(graph, "tanh", "c"), "send", 256);
  EXPECT_EQ(Text(FoldBlocks(graph)[0].columns[0]), "a(all_reduce 512)(send 256) b c");
}

}  // namespace
}  // namespace penstock::planner
