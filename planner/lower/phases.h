// Which phase every node of a lowered graph runs in: the unit that a schedule orders.
//
// A node runs once a micro-batch if it touches a temporal axis, else once a step; where there is
// one micro-batch, everything but the update does. A redistribution that is marked per_use runs
// with its readers, and a cast that is marked so as often as what it reads: of a parameter, once a
// step.
// Its *level* counts how often, on the way from the inputs, a value of all micro-batches was
// formed: a training step has level 0 (forwards, backwards, and what they read) and level 1 (the
// update). Nodes that run once a step are divided further by *order*, the number of stage
// boundaries crossed on the way within one level (gradient clipping: partial norms, their sum on
// one stage, the scaled updates).
//
// Worked example, pp=2: loss = F0, F1 | B1, B0 at level 0; the squared norms of each stage's
// gradients are (level 1, order 0), their sum on stage 0 (1, 1) and AdamW on stage 1 (1, 2).
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_LOWER_PHASES_H_
#define PENSTOCK_PLANNER_LOWER_PHASES_H_

#include <compare>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"

#include "graph/graph.h"
#include "planner/plan/plan.h"
#include "planner/policy/placement.h"

namespace penstock::planner {

// A phase of one stage. The order of keys is the order of the per-step lane.
struct PhaseKey {
  int level = 0;                // see the top of this file
  bool per_microbatch = false;  // else once a step
  int order = 0;                // once a step: as above; once a micro-batch: 0 forward, 1 backward,
                                // 2 weight, 3 and more: update, by the stages crossed
  int chunk = 0;                // of forwards, backwards and weight gradients
  friend bool operator==(const PhaseKey&, const PhaseKey&) = default;
  // Forwards go through the chunks in order, all else in the opposite order.
  friend std::strong_ordering operator<=>(const PhaseKey& a, const PhaseKey& b) {
    const auto rank = [](const PhaseKey& key) {
      return std::tuple(key.level, key.per_microbatch, key.order,
                        key.order == 0 ? key.chunk : -key.chunk);
    };
    return rank(a) <=> rank(b);
  }

  // The policy schedules forwards and backwards of level 0; all else keeps its fixed order.
  Lane lane() const { return per_microbatch && level == 0 ? Lane::kCompute : Lane::kPerStep; }
  // F, B or W, or kBeforeStep and kAfterStep for what runs once a step.
  PhaseKind kind() const;
};

// Where and when one node of a graph runs.
struct NodePhase {
  bool is_live = false;   // something returned or assigned depends on it
  bool is_leaf = false;   // input, constant, iota: made again wherever it is read
  int stage = 0;          // the group of devices
  int virtual_stage = 0;  // the node's own
  PhaseKey key;           // not set if the node is not live, or a leaf
};

// Whether the value is split or partial over a temporal axis.
bool IsPerMicrobatch(const graph::Graph& graph, graph::ValueId value);

// How nodes are divided into phases, and stages onto groups of devices.
struct PhaseOptions {
  bool split_weight_gradients = false;  // into phases of their own (W)
  // The nodes' stages are virtual ones, on these groups. None: each has a group of its own.
  std::optional<StagePlacement> placement = {};
  // Of each of these groups, in the order of the pipeline, the group of devices. Empty: the same.
  std::vector<int> device_groups = {};
};

// The group of devices that runs a virtual stage.
int DeviceGroupOf(const PhaseOptions& options, int virtual_stage);

// One entry a node. An error names nodes whose stages contradict the order of forwards and
// backwards. REQUIRES: reshards lowered.
absl::StatusOr<std::vector<NodePhase>> AssignPhases(const graph::Graph& graph,
                                                    const PhaseOptions& options);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_LOWER_PHASES_H_
