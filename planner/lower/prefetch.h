// The order of nodes, in which collectives of one bucket come together (phase_buckets.h), and when
// a phase begins to gather the parameters that it reads.
//
// What is gathered per use (insert_reshards.h) needs nothing of its phase, so it could start with
// it; but then all gathered parameters would be held at once. Here each starts as early as it can
// while those that are gathered and still needed take no more than a given number of bytes. It
// always starts before the first use of the one before it, so that it travels while that is used.
//
// Worked example, 4 MB and gathers a, b, c of 3 MB each, read by the kernels A, B and C in turn:
// a starts with the phase, b before A, as one has to be ahead, and c before B.
//
// Gathers whose first uses follow each other are one bucket while they take no more than half of
// those bytes, so that the next bucket travels while one is used. The first of a phase is gathered
// by itself, since nothing hides it. Of gathers of 1 MB each, a starts alone, then b with c.
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
#include "planner/lower/phase_buckets.h"
#include "planner/lower/phases.h"

namespace penstock::planner {

// A node in the order in which lowering adds nodes.
struct ScheduledNode {
  enum class Part : uint8_t {
    kAll,
    kStart,   // of what is taken early, or is in a bucket: its collective
    kFinish,  // the rest, where the node stands, or behind the collective
  };
  graph::NodeId node = graph::kNoNode;
  Part part = Part::kAll;
  bool is_gated = false;  // of a start, and of what is passed on: after the kernel before it
  // The nodes of a bucket, whose collectives are one, have the same number and start one behind the
  // other.
  int bucket = -1;
  bool ends_bucket = false;
};

// All nodes, in their order, but that gathers start early, and those of a bucket when the last of
// them could. Gathered parameters may take limits.bytes. REQUIRES: reshards lowered; one phase a
// node.
std::vector<ScheduledNode> OrderNodes(const graph::Graph& graph,
                                      const std::vector<NodePhase>& phases,
                                      const BucketLimits& limits);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_LOWER_PREFETCH_H_
