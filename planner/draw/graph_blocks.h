// A lowered graph as lists: for each stage, what it computes in the order of the graph, with what
// repeats listed once. Unlike the drawing of boxes and edges (drawn_graph.h), it stays short for
// graphs of thousands of operators on many stages.
//
// - A step is a computation, with what is communicated of its result.
// - Steps are alike if they have the same operator, type and sharding. Where a sequence of steps
//   follows itself, it is one block with a count (FindRepeats).
// - Stages with the same blocks are listed once, whatever their updates, which differ in how they
//   sum up the gradients' norm.
//
// Worked example. Of embed | ln0 mul0 | ln1 mul1 | ln2 mul2 | loss there are the blocks {embed},
// {ln0 mul0} three times, and {loss}.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_DRAW_GRAPH_BLOCKS_H_
#define PENSTOCK_PLANNER_DRAW_GRAPH_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

#include "planner/draw/drawn_graph.h"

namespace penstock::planner {

struct BlockTransfer {
  std::string label;  // "all_reduce", "send, all_gather"
  int64_t bytes = 0;  // that a device receives at most, each time
  int copies = 1;     // of the block, in which it happens
};

struct BlockStep {
  std::string op;
  std::string name;  // of its first result
  std::string type;
  std::string sharding;
  std::string title;  // its statement
  int count = 1;      // nodes of the graph that it stands for, in each copy of its block
  std::vector<BlockTransfer> transfers;
};

struct Block {
  int count = 1;
  std::string last_name;         // of the first step in the last copy
  std::vector<BlockStep> steps;  // of the first copy
};

struct StageBlocks {
  std::vector<int> stages;                       // that are alike, in order
  std::vector<Block> columns[kNumDrawnColumns];  // by DrawnColumn; of the first stage
  // Nodes of one of the stages, without its update.
  int64_t num_steps = 0;
};

// Stages by their first one. REQUIRES: the layers of `graph` are not folded (ToDraw).
std::vector<StageBlocks> FoldBlocks(const DrawnGraph& graph);

// The positions first .. first + count * period are `count` equal sequences.
struct Repeat {
  size_t first = 0;
  size_t period = 1;
  size_t count = 1;
  friend bool operator==(const Repeat&, const Repeat&) = default;
};

// Longer sequences are not looked for.
inline constexpr size_t kMaxRepeatPeriod = 256;

// Covers the sequence from left to right: first the repeat that covers most, the shortest period
// among equals, then what is left on both sides of it, where count is 1 and period the length of
// what does not repeat. Gives up looking in what is left after a bounded number of comparisons.
std::vector<Repeat> FindRepeats(absl::Span<const int> sequence);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_DRAW_GRAPH_BLOCKS_H_
