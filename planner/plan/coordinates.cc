#include "planner/plan/coordinates.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"

#include "base/shape.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::Mesh;
using graph::Sharding;
using graph::TileDesc;

int64_t StrideOfDevice(const Mesh& mesh, int axis) {
  int64_t stride = 1;
  for (int a = static_cast<int>(mesh.axes.size()) - 1; a > axis; --a) {
    if (!mesh.axes[a].is_temporal) stride *= mesh.axes[a].size;
  }
  return stride;
}

}  // namespace

absl::StatusOr<TileDesc> TileOf(const Mesh& mesh, const Sharding& sharding, const TensorType& type,
                                int64_t device) {
  TileDesc tile;
  tile.dtype = type.dtype;
  tile.global = type.shape;
  const int64_t microbatches = mesh.num_microbatches();
  for (size_t d = 0; d < type.shape.size(); ++d) {
    const int64_t extent = type.shape[d];
    const Range first = graph::LocalRange(mesh, sharding.dims[d], extent, device, 0);
    tile.shape.push_back(first.size());
    tile.offset.push_back(first.begin);
    int64_t stride = 0;
    const std::vector<AxisRef>& axes = sharding.dims[d].axes;
    if (!axes.empty() && graph::IsTemporal(mesh, axes[0]) && axes[0].size == microbatches &&
        extent % microbatches == 0) {
      // Split over time first, and evenly: each part is split alike.
      tile.microbatch_stride.push_back(extent / microbatches);
      continue;
    }
    const bool is_temporal = std::any_of(axes.begin(), axes.end(), [&](const AxisRef& axis) {
      return graph::IsTemporal(mesh, axis);
    });
    for (int64_t microbatch = 1; is_temporal && microbatch < microbatches; ++microbatch) {
      const Range range = graph::LocalRange(mesh, sharding.dims[d], extent, device, microbatch);
      if (microbatch == 1) stride = range.begin - first.begin;
      if (range.size() != first.size() || range.begin != first.begin + microbatch * stride) {
        return absl::InvalidArgumentError(absl::StrCat(
            "dimension ", d, " of ", ToString(type), " with ", graph::ToString(mesh, sharding),
            ": the ", microbatches, " micro-batches do not divide it evenly"));
      }
    }
    tile.microbatch_stride.push_back(stride);
  }
  return tile;
}

std::optional<uint64_t> ContiguousOffset(const TileDesc& whole, const TileDesc& part) {
  if (part.num_elements() == 0) return 0;
  int64_t elements = 0;
  bool is_split = false;
  for (size_t d = 0; d < whole.shape.size(); ++d) {
    // Behind the split dimension all is taken, before it there is nothing to choose from.
    if (is_split && part.shape[d] != whole.shape[d]) return std::nullopt;
    is_split |= part.shape[d] > 1;
    elements = elements * whole.shape[d] + part.offset[d] - whole.offset[d];
  }
  return static_cast<uint64_t>(elements) * ByteSize(whole.dtype);
}

std::vector<std::vector<uint32_t>> GroupDevices(const Mesh& mesh, std::vector<AxisRef> axes) {
  std::erase_if(axes, [&](const AxisRef& axis) { return graph::IsTemporal(mesh, axis); });
  std::map<int64_t, std::map<int64_t, uint32_t>> groups;
  for (int64_t device = 0; device < mesh.num_devices(); ++device) {
    int64_t rank = 0;
    int64_t rest = device;
    for (const AxisRef& axis : axes) {
      const int64_t coordinate = graph::Coordinate(mesh, axis, device, 0);
      rank = rank * axis.size + coordinate;
      const int64_t minor_parts = mesh.axes[axis.axis].size / (axis.pre * axis.size);
      rest -= coordinate * minor_parts * StrideOfDevice(mesh, axis.axis);
    }
    groups[rest][rank] = static_cast<uint32_t>(device);
  }
  std::vector<std::vector<uint32_t>> result;
  for (const auto& [rest, members] : groups) {
    std::vector<uint32_t>& group = result.emplace_back();
    for (const auto& [rank, device] : members) group.push_back(device);
  }
  return result;
}

}  // namespace penstock::planner
