#include "planner/lower/communication.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/shape.h"
#include "base/status_macros.h"
#include "graph/op.h"
#include "planner/plan/coordinates.h"
#include "planner/sharding/halo.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::DimSharding;
using graph::Mesh;
using graph::Sharding;
using graph::TileDesc;

std::vector<AxisRef> AxesOfDims(const Sharding& sharding) {
  std::vector<AxisRef> axes;
  for (const DimSharding& dim : sharding.dims) {
    axes.insert(axes.end(), dim.axes.begin(), dim.axes.end());
  }
  return axes;
}

std::vector<AxisRef> AxesOfPartials(const Sharding& sharding) {
  std::vector<AxisRef> axes;
  for (const graph::PartialSpec& partial : sharding.partials) {
    axes.insert(axes.end(), partial.axes.begin(), partial.axes.end());
  }
  return axes;
}

int64_t LeadingElements(const Shape& shape, int dim) {
  int64_t count = 1;
  for (int d = 0; d < dim; ++d) count *= shape[d];
  return count;
}

// The first axes of a dimension, of `parts` parts together.
std::vector<AxisRef> MajorAxes(const std::vector<AxisRef>& axes, int64_t parts) {
  std::vector<AxisRef> major;
  for (AxisRef axis : axes) {
    if (parts == 1) break;
    axis.size = std::gcd(axis.size, parts);
    parts /= axis.size;
    major.push_back(axis);
  }
  return major;
}

// Index of the device's part of every dimension, micro-batches left out.
std::vector<int64_t> PartIndices(const Mesh& mesh, const Sharding& sharding, int64_t device) {
  std::vector<int64_t> indices;
  for (const DimSharding& dim : sharding.dims) {
    int64_t index = 0;
    for (const AxisRef& axis : dim.axes) {
      index = index * axis.size + graph::Coordinate(mesh, axis, device, 0);
    }
    indices.push_back(index);
  }
  return indices;
}

// The dimension whose axes differ between the two, where `longer` has more.
int GrownDim(const Sharding& shorter, const Sharding& longer) {
  for (size_t d = 0; d < shorter.dims.size(); ++d) {
    if (graph::NumParts(longer.dims[d]) > graph::NumParts(shorter.dims[d])) {
      return static_cast<int>(d);
    }
  }
  return 0;
}

graph::Reduction ReductionOf(const Sharding& from, const std::vector<AxisRef>& reduced) {
  for (const graph::PartialSpec& partial : from.partials) {
    for (const AxisRef& axis : partial.axes) {
      if (graph::Overlap(axis, reduced[0])) return partial.reduction;
    }
  }
  return graph::Reduction::kSum;
}

// Elements of a tile for each along one dimension.
int64_t RowElements(const TileDesc& tile, int dim) {
  int64_t count = 1;
  for (int d = 0; d < static_cast<int>(tile.shape.size()); ++d) {
    if (d != dim) count *= tile.shape[d];
  }
  return count;
}

// Ranks are the parts of `dim`.
void PlanHaloExchange(int dim, const Sharding& from, const Sharding& to, const TensorType& type,
                      absl::Span<const TileDesc> in, const std::vector<uint32_t>& devices,
                      CollectiveSpec* spec, Communication* communication) {
  const auto n = static_cast<int64_t>(devices.size());
  spec->counts.assign(static_cast<size_t>(n * n), 0);
  const std::vector<std::vector<HaloPiece>> pieces =
      HaloPieces(from.dims[dim], to.dims[dim], type.shape[dim]);
  for (int64_t rank = 0; rank < n; ++rank) {
    for (const HaloPiece& piece : pieces[rank]) {
      const TileDesc& tile = in[devices[piece.source]];
      spec->counts[piece.source * n + rank] += piece.range.size() * RowElements(tile, dim);
      // Receivers come in the order of their ranks.
      Communication::HaloCopies& sent = communication->halo[devices[piece.source]];
      sent.starts.push_back(piece.range.begin - tile.offset[dim]);
      sent.sizes.push_back(piece.range.size());
      communication->halo[devices[rank]].received.push_back(piece.range.size());
    }
  }
}

}  // namespace

std::vector<AxisRef> Difference(absl::Span<const AxisRef> a, absl::Span<const AxisRef> b) {
  std::vector<AxisRef> difference;
  for (const AxisRef& axis : a) {
    std::set<int64_t> cuts = {axis.pre, axis.pre * axis.size};
    for (const AxisRef& other : b) {
      if (other.axis != axis.axis) continue;
      for (int64_t cut : {other.pre, other.pre * other.size}) {
        if (cut > axis.pre && cut < axis.pre * axis.size) cuts.insert(cut);
      }
    }
    for (auto it = cuts.begin(); std::next(it) != cuts.end(); ++it) {
      const AxisRef piece = {axis.axis, *it, *std::next(it) / *it};
      const bool in_b = std::any_of(
          b.begin(), b.end(), [&](const AxisRef& other) { return graph::Overlap(piece, other); });
      if (!in_b) difference.push_back(piece);
    }
  }
  return difference;
}

std::optional<TileRoll> TileRollOf(const graph::Graph& graph, const graph::Node& node) {
  if (node.op->role() != graph::OpRole::kPermute || node.attributes.Find("shift") == nullptr) {
    return std::nullopt;
  }
  const Shape& shape = graph.value(node.results[0]).type.shape;
  int64_t axis = node.attributes.GetInt("axis", 0);
  if (axis < 0) axis += static_cast<int64_t>(shape.size());
  const int64_t extent = shape[static_cast<size_t>(axis)];
  const int64_t shift = node.attributes.GetInt("shift", 0);
  const int64_t part = std::gcd(shift, extent);
  const int64_t parts = extent / part;
  return TileRoll{static_cast<int>(axis), parts, (shift / part % parts + parts) % parts};
}

std::vector<AxisRef> MovedAxes(CollectiveKind kind, const Sharding& from, const Sharding& to,
                               const std::optional<TileRoll>& roll) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return Difference(AxesOfPartials(from), AxesOfPartials(to));
    case CollectiveKind::kReduceScatter: {
      // The order in which the target dimension takes the axes is the order of the ranks.
      const int dim = GrownDim(from, to);
      return Difference(to.dims[dim].axes, from.dims[dim].axes);
    }
    case CollectiveKind::kAllGather:
      return Difference(AxesOfDims(from), AxesOfDims(to));
    case CollectiveKind::kAllToAll: {
      if (const int dim = ExchangedDim(from, to); dim >= 0) return to.dims[dim].axes;
      std::vector<AxisRef> moving;
      for (size_t d = 0; d < from.dims.size(); ++d) {
        for (const AxisRef& axis : Difference(from.dims[d].axes, to.dims[d].axes)) {
          moving.push_back(axis);
        }
      }
      return moving;
    }
    case CollectiveKind::kPermute:
      return roll.has_value() ? MajorAxes(from.dims[roll->dim].axes, roll->parts)
                              : AxesOfDims(from);
    case CollectiveKind::kBroadcast:
      break;
  }
  return {};
}

std::optional<CollectiveKind> CollectiveOf(graph::OpRole role) {
  switch (role) {
    case graph::OpRole::kAllReduce:
      return CollectiveKind::kAllReduce;
    case graph::OpRole::kReduceScatter:
      return CollectiveKind::kReduceScatter;
    case graph::OpRole::kAllGather:
      return CollectiveKind::kAllGather;
    case graph::OpRole::kAllToAll:
    case graph::OpRole::kHaloExchange:
      return CollectiveKind::kAllToAll;
    case graph::OpRole::kPermute:
      return CollectiveKind::kPermute;
    default:
      return std::nullopt;
  }
}

std::optional<CollectiveKind> CollectiveOf(std::string_view op) {
  if (op == "halo_exchange") return CollectiveKind::kAllToAll;
  for (CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter, CollectiveKind::kAllGather,
        CollectiveKind::kAllToAll, CollectiveKind::kPermute}) {
    if (Name(kind) == op) return kind;
  }
  return std::nullopt;
}

absl::StatusOr<Communication> PlanCommunication(const Mesh& mesh, CollectiveKind kind,
                                                const TensorType& type, const Sharding& from,
                                                const Sharding& to,
                                                const std::optional<TileRoll>& roll) {
  std::vector<TileDesc> in;
  std::vector<TileDesc> out;
  for (int64_t device = 0; device < mesh.num_devices(); ++device) {
    ASSIGN_OR_RETURN(TileDesc tile_in, TileOf(mesh, from, type, device));
    ASSIGN_OR_RETURN(TileDesc tile_out, TileOf(mesh, to, type, device));
    in.push_back(std::move(tile_in));
    out.push_back(std::move(tile_out));
  }

  if (kind == CollectiveKind::kBroadcast) {
    return absl::InternalError("a broadcast is no redistribution step");
  }
  const std::vector<AxisRef> moving = MovedAxes(kind, from, to, roll);

  Communication communication;
  communication.axes = moving;
  if (const int dim = ExchangedDim(from, to); kind == CollectiveKind::kAllToAll && dim >= 0) {
    communication.halo_dim = dim;
    communication.halo.resize(in.size());
  }
  for (std::vector<uint32_t>& devices : GroupDevices(mesh, moving)) {
    CollectiveSpec spec;
    spec.kind = kind;
    spec.dtype = type.dtype;
    const int n = static_cast<int>(devices.size());
    switch (kind) {
      case CollectiveKind::kAllReduce:
        spec.reduce = ReductionOf(from, moving);
        for (int r = 0; r < n; ++r) {
          spec.counts.push_back(PartOf(in[devices[0]].num_elements(), r, n).size());
        }
        break;
      case CollectiveKind::kReduceScatter: {
        spec.reduce = ReductionOf(from, moving);
        const int dim = GrownDim(from, to);
        communication.pack_dim = dim;
        std::vector<int64_t> sizes;
        for (uint32_t device : devices) {
          spec.counts.push_back(out[device].num_elements());
          sizes.push_back(out[device].shape[dim]);
        }
        communication.pack_sizes.push_back(std::move(sizes));
        break;
      }
      case CollectiveKind::kAllGather: {
        const int dim = GrownDim(to, from);
        communication.unpack_dim = dim;
        std::vector<int64_t> sizes;
        for (uint32_t device : devices) {
          spec.counts.push_back(in[device].num_elements());
          sizes.push_back(in[device].shape[dim]);
        }
        communication.unpack_sizes.push_back(std::move(sizes));
        break;
      }
      case CollectiveKind::kAllToAll: {
        if (communication.halo_dim.has_value()) {
          PlanHaloExchange(*communication.halo_dim, from, to, type, in, devices, &spec,
                           &communication);
          break;
        }
        const int source_dim = GrownDim(to, from);
        const int target_dim = GrownDim(from, to);
        communication.pack_dim = target_dim;
        communication.unpack_dim = source_dim;
        std::vector<int64_t> send_sizes;
        std::vector<int64_t> recv_sizes;
        for (uint32_t device : devices) {
          send_sizes.push_back(out[device].shape[target_dim]);
          recv_sizes.push_back(in[device].shape[source_dim]);
        }
        for (uint32_t source : devices) {
          for (int destination = 0; destination < n; ++destination) {
            Shape piece = in[source].shape;
            piece[target_dim] = send_sizes[destination];
            spec.counts.push_back(NumElements(piece));
          }
        }
        communication.pack_sizes.push_back(std::move(send_sizes));
        communication.unpack_sizes.push_back(std::move(recv_sizes));
        break;
      }
      case CollectiveKind::kPermute:
        for (uint32_t source : devices) {
          spec.counts.push_back(in[source].num_elements());
          if (roll.has_value()) {
            // Ranks are in the order of the parts.
            const auto rank = static_cast<int64_t>(spec.peers.size());
            spec.peers.push_back(static_cast<uint32_t>((rank + roll->by) % roll->parts));
            continue;
          }
          const std::vector<int64_t> wanted = PartIndices(mesh, from, source);
          for (int r = 0; r < n; ++r) {
            if (PartIndices(mesh, to, devices[r]) == wanted) spec.peers.push_back(r);
          }
        }
        if (spec.peers.size() != devices.size()) {
          return absl::InternalError("a permute step does not permute");
        }
        break;
      case CollectiveKind::kBroadcast:
        break;
    }
    spec.devices = std::move(devices);
    communication.groups.push_back(std::move(spec));
  }

  // Parts along the outermost dimension that matters lie one after another already.
  auto is_outermost = [&](const std::vector<TileDesc>& tiles, int dim) {
    return std::all_of(tiles.begin(), tiles.end(),
                       [&](const TileDesc& tile) { return LeadingElements(tile.shape, dim) <= 1; });
  };
  if (communication.pack_dim && is_outermost(in, *communication.pack_dim)) {
    communication.pack_dim.reset();
    communication.pack_sizes.clear();
  }
  if (communication.unpack_dim && is_outermost(out, *communication.unpack_dim)) {
    communication.unpack_dim.reset();
    communication.unpack_sizes.clear();
  }
  return communication;
}

}  // namespace penstock::planner
