// Builds the cost network for choosing shardings: for some axes of the mesh, which dimension of
// every value and which factor of every node each of them splits.
//
// A value has a sharding, in which it is kept; a node has an execution (execution_sharding.h). Both
// are variables. A free axis splits a dimension of a value, or none; it splits a factor of a node,
// or none, as far as parts are equal. A value that a linear operator reads may also stay partial
// over the axis. The split over other axes stays as it is. Costs:
//   node           its kernel on tiles of its execution, in seconds (kernel_seconds.h)
//   operand        the redistribution from the value's sharding to the execution's
//   result         the reductions and redistributions from the execution's sharding to the value's
// A product (an operator that sums over a dimension of two operands) is split over every free axis
// that can split it: devices that repeat each other's work would be wasted.
//
// Weights are the bytes of a device that are kept: states, forward values that the backward pass
// reads, and gradients until the update; of each, the share that the problem states.
//
// Worked example, on [a=2], one free axis: y = matmul(x, w) with x : f32[8, 4], w : f32[4, 2]. x, w
// and y each have 3 options (rows, columns, whole), the node 4 (its factors m, n, k, or none). If
// the node splits k, the pair of node and x costs nothing for columns of x, an all_to_all for rows,
// a slice for the whole; the pair of node and y an all_reduce for the whole.
//
// Where two nodes read a value, each pays its own redistribution: a value that many want whole is
// better kept whole. Collectives are charged in full, whatever they might hide behind.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_SEARCH_SHARDING_NETWORK_H_
#define PENSTOCK_PLANNER_SEARCH_SHARDING_NETWORK_H_

#include <limits>
#include <vector>

#include "graph/graph.h"
#include "graph/sharding.h"
#include "planner/search/cost_network.h"
#include "planner/search/machine.h"
#include "planner/sharding/execution_sharding.h"

namespace penstock::planner {

// What keeping a value partial costs, so that of ties the one is taken that reduces at once.
inline constexpr double kPartialSeconds = 1e-9;

struct ShardingProblem {
  // With one mesh, and a sharding of every value over the axes that are not free (Propagate), none
  // of which is temporal.
  const graph::Graph* graph = nullptr;
  std::vector<int> free_axes;  // of the mesh
  std::vector<bool> is_fixed;  // by value: not to be split further; empty: none
  // By value, of each dimension: whether it is not to be split further; empty: may be. No factor of
  // such a dimension is.
  std::vector<std::vector<bool>> fixed_dims;
  const Machine* machine = nullptr;
  // By node, the first node that is to have the same execution, and whose results the same
  // shardings; and how many nodes it stands for, such as those of layers that are left out. Empty:
  // each node for itself.
  std::vector<graph::NodeId> alike;
  std::vector<double> times;
  int num_groups = 1;  // groups of devices with such a mesh that work at once
  // Of a device, for all that is kept; of activations, this part.
  double memory_bytes = std::numeric_limits<double>::infinity();
  double part_of_activations = 1;
  // By value, whether the backward pass reads it as the forward pass made it; empty: what a node of
  // the backward pass has as an operand.
  std::vector<bool> is_read_backward;
  // By value, of the bytes of its tile, the share that a device keeps: less than 1 if replicas
  // divide it in ways that its sharding does not say, 0 on the host. Empty: all.
  std::vector<double> kept_share;
};

struct ShardingNetwork {
  std::vector<std::vector<graph::Sharding>> values;  // the options of each value
  std::vector<int> variables;                        // by value, in the network
  CostNetwork costs;
};

// Seconds of redistributing a tensor, of one collective after another. REQUIRES: as PlanReshard.
double RedistributionSeconds(const Machine& machine, const graph::Mesh& mesh, int num_groups,
                             const TensorType& type, const graph::Sharding& from,
                             const graph::Sharding& to);

ShardingNetwork BuildShardingNetwork(const ShardingProblem& problem);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_SHARDING_NETWORK_H_
