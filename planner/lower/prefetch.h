// When a phase begins to gather the parameters that it reads.
//
// What is gathered per use (insert_reshards.h) needs nothing of its phase, so it could start with
// it; but then all gathered parameters would be held at once. Here each starts as early as it can
// while those that are gathered and still needed take no more than a given number of bytes. It
// always starts before the first use of the one before it, so that it travels while that is used.
//
// Worked example, 4 MB and gathers a, b, c of 3 MB each, read by the kernels A, B and C in turn:
// a starts with the phase, b before A, as one has to be ahead, and c before B.
//
// What a device passes on in a ring (TileRoll), and has been passed itself, waits likewise: for the
// kernel before it, so that a device holds what that needs and what comes next, and no more.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_LOWER_PREFETCH_H_
#define PENSTOCK_PLANNER_LOWER_PREFETCH_H_

#include <cstdint>
#include <vector>

#include "graph/graph.h"
#include "planner/lower/phases.h"

namespace penstock::planner {

// A node in the order in which lowering adds nodes.
struct ScheduledNode {
  enum class Part : uint8_t {
    kAll,
    kStart,   // of a gather that is taken early: its collective
    kFinish,  // the rest, where the node stands
  };
  graph::NodeId node = graph::kNoNode;
  Part part = Part::kAll;
  bool is_gated = false;  // of a start, and of what is passed on: after the kernel before it
};

// All nodes, in their order, but that gathers start early. REQUIRES: reshards lowered; one phase a
// node.
std::vector<ScheduledNode> OrderNodes(const graph::Graph& graph,
                                      const std::vector<NodePhase>& phases, int64_t bytes_ahead);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_LOWER_PREFETCH_H_
