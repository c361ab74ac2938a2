// What of a lowered graph is worth drawing: a box for each computation, an edge for each value that
// another computation reads, and on the edges the communication that the value takes part in.
//
// - Redistributions are no boxes: the steps between two computations are on the edge. Where several
//   computations read what a step makes, a *junction* stands after it, so that each communication
//   is on one edge.
// - What a model repeats is drawn once a stage. Boxes and edges say how often they stand for one of
//   the graph: layers alike are found by repeated_layers.h, and backward nodes belong to the layer
//   of their forward nodes. A graph of few nodes is drawn in full. The update is drawn by operator.
// - Parameters, states and constants are left out, unless they are redistributed.
//
// Worked example. Of x -> matmul -> all_reduce -> {gelu, add} there are the boxes x, matmul, gelu,
// add and a junction; the edge from matmul to the junction has the label all_reduce and its bytes.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_DRAW_DRAWN_GRAPH_H_
#define PENSTOCK_PLANNER_DRAW_DRAWN_GRAPH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "base/collective.h"
#include "graph/graph.h"

namespace penstock::planner {

// Of the drawing, from left to right. Forward goes down, backward up.
enum class DrawnColumn : uint8_t { kForward, kBackward, kWeightBackward, kUpdate };
inline constexpr int kNumDrawnColumns = 4;

struct DrawnBox {
  DrawnColumn column = DrawnColumn::kForward;
  int stage = 0;
  bool is_junction = false;
  std::string op;
  std::string name;   // of its first result
  std::string title;  // its statement, with types and shardings
  // Of its first result: "f32[8, 16]" and "@[dp, _]".
  std::string type;
  std::string sharding;
  int count = 1;  // nodes of the graph that it stands for
};

struct DrawnEdge {
  int from = 0;  // boxes
  int to = 0;
  std::string label;     // "all_reduce", "send, all_gather"; empty: nothing is communicated
  int64_t bytes = 0;     // that a device receives at most, each time
  bool is_loop = false;  // from one repeated layer to the next
  std::string title;
  int count = 1;
};

struct DrawnGraph {
  std::vector<DrawnBox> boxes;  // a box after those that it reads from, but for loops
  std::vector<DrawnEdge> edges;
  int num_stages = 1;
};

// Graphs of more boxes have their layers folded.
inline constexpr int kMaxBoxesInFull = 90;

// `max_boxes_in_full`: a graph of more boxes has its layers folded.
// REQUIRES: the graph has been through lower-reshards.
absl::StatusOr<DrawnGraph> ToDraw(const graph::Graph& graph,
                                  int max_boxes_in_full = kMaxBoxesInFull);

// Bytes that a member of a collective receives from others, whatever the algorithm.
int64_t ReceivedBytes(const CollectiveSpec& spec, int rank);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_DRAW_DRAWN_GRAPH_H_
