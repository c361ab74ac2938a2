// What a redistribution step is between devices: its groups, its collective, and the local copies
// before and after it.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_LOWER_COMMUNICATION_H_
#define PENSTOCK_PLANNER_LOWER_COMMUNICATION_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "base/collective.h"
#include "graph/graph.h"
#include "graph/kernel_spec.h"
#include "graph/op_role.h"
#include "graph/sharding.h"

namespace penstock::planner {

// Pieces of axes that `a` has and `b` lacks, in the order of `a`. Both may cut axes differently:
// the answer is in pieces of the common refinement.
std::vector<graph::AxisRef> Difference(absl::Span<const graph::AxisRef> a,
                                       absl::Span<const graph::AxisRef> b);

// The kinds that need other devices. A halo_exchange is an all_to_all of few and uneven counts.
std::optional<CollectiveKind> CollectiveOf(graph::OpRole role);
// The same of the operator of a ReshardStep.
std::optional<CollectiveKind> CollectiveOf(std::string_view op);

// Of a permute that is a roll (graph/ops/roll.cc): the parts of `dim` move on by `by` of `parts`.
struct TileRoll {
  int dim = 0;
  int64_t parts = 1;
  int64_t by = 0;
  friend bool operator==(const TileRoll&, const TileRoll&) = default;
};

// None of other nodes.
std::optional<TileRoll> TileRollOf(const graph::Graph& graph, const graph::Node& node);

// The axes that a redistribution step moves data over, or reduces over. Devices that differ in no
// other coordinate form a group. REQUIRES: the step is one that PlanReshard makes, or a roll.
std::vector<graph::AxisRef> MovedAxes(CollectiveKind kind, const graph::Sharding& from,
                                      const graph::Sharding& to,
                                      const std::optional<TileRoll>& roll = std::nullopt);

// The collective of one redistribution step. Devices are those of the mesh; a plan adds the first
// device of the stage, numbers the channels and chooses the algorithms. The copies are kernels
// `pack` and `unpack` along one dimension: a rank's data lie one part after another for the others.
struct Communication {
  // Of a device in a halo exchange: the ranges of its tile that go to others, in the order of their
  // ranks, and the sizes of what it gets, in the order of the dimension.
  struct HaloCopies {
    std::vector<int64_t> starts;
    std::vector<int64_t> sizes;
    std::vector<int64_t> received;
    friend auto operator<=>(const HaloCopies&, const HaloCopies&) = default;
  };

  std::vector<CollectiveSpec> groups;  // every device is in one
  std::vector<graph::AxisRef> axes;    // the groups are GroupDevices(mesh, axes)
  std::optional<int> pack_dim;         // input tile -> parts
  std::optional<int> unpack_dim;       // parts -> output tile
  // Of each group, the sizes of the parts along pack_dim and unpack_dim.
  std::vector<std::vector<int64_t>> pack_sizes;
  std::vector<std::vector<int64_t>> unpack_sizes;
  // Of a halo exchange along this dimension, instead of those: each device packs what it sends
  // (kernel `pack`), and joins what it gets with what it has (kernel `join_halo`).
  std::optional<int> halo_dim;
  std::vector<HaloCopies> halo;  // of each device
};

// REQUIRES: CollectiveOf(op); the step is one that PlanReshard makes, or a roll.
absl::StatusOr<Communication> PlanCommunication(const graph::Mesh& mesh, CollectiveKind kind,
                                                const TensorType& type, const graph::Sharding& from,
                                                const graph::Sharding& to,
                                                const std::optional<TileRoll>& roll = std::nullopt);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_LOWER_COMMUNICATION_H_
