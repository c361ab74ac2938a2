// A lowered graph with what its stages run: phases of nodes, users, tiles, and which values share
// bytes.
//
// Thread rule: const once it is created.

#ifndef PENSTOCK_PLANNER_SEARCH_STAGED_GRAPH_INTERNAL_H_
#define PENSTOCK_PLANNER_SEARCH_STAGED_GRAPH_INTERNAL_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "graph/graph.h"
#include "planner/lower/phases.h"

namespace penstock::planner {

// Where a node's work and memory count.
enum class Moment : uint8_t { kForward, kBackward, kUpdate };

Moment MomentOf(const PhaseKey& key);

struct StagedGraph {
  // Errors are those of AssignPhases. `graph` outlives the result.
  static absl::StatusOr<StagedGraph> Create(const graph::Graph& graph);

  double BytesOf(graph::ValueId value) const {
    return static_cast<double>(types[value].num_bytes());
  }
  const graph::Node& ProducerOf(graph::ValueId value) const {
    return graph->node(graph->value(value).producer);
  }
  const NodePhase& PhaseOf(graph::ValueId value) const {
    return phases[graph->value(value).producer];
  }
  bool IsState(graph::ValueId value) const;
  bool IsFromHost(graph::ValueId value) const;
  // Whether the node does nothing when it runs.
  bool IsFree(graph::NodeId id) const;

  const graph::Graph* graph = nullptr;
  const graph::Mesh* mesh = nullptr;
  std::vector<NodePhase> phases;                  // by node
  std::vector<std::vector<graph::NodeId>> users;  // by value
  std::vector<TensorType> types;                  // by value: of its largest tile
  // By value: the one whose bytes it shares, as do reshapes, sums reduced or accumulated in place,
  // next versions of states and sub-batches; itself, if there is none.
  std::vector<graph::ValueId> roots;

 private:
  void FindRoots();
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_STAGED_GRAPH_INTERNAL_H_
