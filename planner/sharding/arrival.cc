#include "planner/sharding/arrival.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::DimSharding;
using graph::Mesh;
using graph::Sharding;

// Smaller values arrive whole where they are read whole.
constexpr int64_t kLeastSplitBytes = 32 << 10;

// The axis of `to` that is the same micro-batches as the temporal axis of `from`; -1 if there is
// none.
int SameAxis(const Mesh& from, int axis, const Mesh& to) {
  const int same = to.FindAxis(from.axes[axis].name);
  const bool is_same =
      same >= 0 && to.axes[same].is_temporal && to.axes[same].size == from.axes[axis].size;
  return is_same ? same : -1;
}

bool IsUsed(const Sharding& sharding, const AxisRef& axis) {
  return std::any_of(sharding.dims.begin(), sharding.dims.end(), [&](const DimSharding& dim) {
    return std::any_of(dim.axes.begin(), dim.axes.end(),
                       [&](const AxisRef& other) { return graph::Overlap(axis, other); });
  });
}

// The dimension of which each part is to be split into so many more: the first that they divide,
// else the one whose parts are longest, so that they become the least uneven. None if a part of
// every dimension has fewer elements than that.
std::optional<size_t> DimToSplit(const TensorType& type, const Sharding& sharding, int64_t parts) {
  std::optional<size_t> longest;
  int64_t most = parts - 1;
  for (size_t d = 0; d < type.shape.size(); ++d) {
    const int64_t here = graph::NumParts(sharding.dims[d]);
    if (type.shape[d] % (here * parts) == 0) return d;
    if (type.shape[d] / here > most) {
      most = type.shape[d] / here;
      longest = d;
    }
  }
  return longest;
}

}  // namespace

Sharding Sendable(const Mesh& mesh, Sharding held) {
  held.partials.clear();
  const auto is_temporal = [&](const AxisRef& axis) { return graph::IsTemporal(mesh, axis); };
  for (DimSharding& dim : held.dims) {
    dim.window.reset();
    if (std::is_partitioned(dim.axes.begin(), dim.axes.end(), is_temporal)) continue;
    std::erase_if(dim.axes, is_temporal);
  }
  graph::Canonicalize(mesh, &held);
  return held;
}

Sharding OverTime(const Mesh& from, const Sharding& sent, const Mesh& to) {
  Sharding sharding = Sharding::Replicated(static_cast<int>(sent.dims.size()));
  for (int axis = 0; axis < static_cast<int>(from.axes.size()); ++axis) {
    if (from.axes[axis].is_temporal && SameAxis(from, axis, to) < 0) return sharding;
  }
  for (size_t d = 0; d < sent.dims.size(); ++d) {
    for (const AxisRef& axis : sent.dims[d].axes) {
      if (!graph::IsTemporal(from, axis)) continue;
      sharding.dims[d].axes.push_back(graph::WholeAxis(to, SameAxis(from, axis.axis, to)));
    }
  }
  return sharding;
}

Sharding ArrivalAsNeeded(const Mesh& mesh, const Sharding& over_time, const Sharding& needed) {
  Sharding arrival = over_time;
  for (size_t d = 0; d < arrival.dims.size(); ++d) {
    for (const AxisRef& axis : needed.dims[d].axes) {
      if (!graph::IsTemporal(mesh, axis)) arrival.dims[d].axes.push_back(axis);
    }
  }
  graph::Canonicalize(mesh, &arrival);
  return arrival;
}

Sharding Arrival(const TensorType& type, const Mesh& mesh, const Sharding& over_time,
                 const Sharding& needed) {
  Sharding arrival = ArrivalAsNeeded(mesh, over_time, needed);
  if (static_cast<int64_t>(type.num_bytes()) < kLeastSplitBytes) return arrival;
  for (int a = 0; a < static_cast<int>(mesh.axes.size()); ++a) {
    const AxisRef axis = graph::WholeAxis(mesh, a);
    if (mesh.axes[a].is_temporal || axis.size == 1 || IsUsed(arrival, axis)) continue;
    const std::optional<size_t> d = DimToSplit(type, arrival, axis.size);
    if (!d.has_value()) continue;
    arrival.dims[*d].axes.push_back(axis);
    graph::Canonicalize(mesh, &arrival);
  }
  return arrival;
}

}  // namespace penstock::planner
