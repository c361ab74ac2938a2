#include "planner/sharding/temporal_sharding.h"

#include <algorithm>

namespace penstock::planner {

using graph::AxisRef;
using graph::Mesh;
using graph::PartialSpec;
using graph::Sharding;

void DropTemporal(const Mesh& mesh, Sharding* sharding) {
  for (graph::DimSharding& dim : sharding->dims) {
    const auto first = std::find_if(dim.axes.begin(), dim.axes.end(), [&](const AxisRef& axis) {
      return graph::IsTemporal(mesh, axis);
    });
    dim.axes.erase(first, dim.axes.end());
  }
}

Sharding WithoutTemporalPartials(const Mesh& mesh, Sharding sharding) {
  for (PartialSpec& partial : sharding.partials) {
    std::erase_if(partial.axes, [&](const AxisRef& axis) { return graph::IsTemporal(mesh, axis); });
  }
  std::erase_if(sharding.partials, [](const PartialSpec& p) { return p.axes.empty(); });
  return sharding;
}

Sharding WithoutOtherSums(const Mesh& mesh, Sharding sharding, const Sharding& made) {
  for (PartialSpec& partial : sharding.partials) {
    std::erase_if(partial.axes, [&](const AxisRef& axis) {
      return graph::IsTemporal(mesh, axis) &&
             std::none_of(
                 made.partials.begin(), made.partials.end(), [&](const PartialSpec& other) {
                   return other.reduction == partial.reduction &&
                          std::find(other.axes.begin(), other.axes.end(), axis) != other.axes.end();
                 });
    });
  }
  std::erase_if(sharding.partials, [](const PartialSpec& p) { return p.axes.empty(); });
  return sharding;
}

bool HasTemporalPartials(const Mesh& mesh, const Sharding& sharding) {
  return WithoutTemporalPartials(mesh, sharding).partials != sharding.partials;
}

int64_t SpatialParts(const Mesh& mesh, const Sharding& sharding) {
  int64_t parts = 1;
  for (const graph::DimSharding& dim : sharding.dims) {
    for (const AxisRef& axis : dim.axes) parts *= graph::IsTemporal(mesh, axis) ? 1 : axis.size;
  }
  return parts;
}

bool HasTemporalAxes(const Mesh& mesh, const Sharding& sharding) {
  const auto is_temporal = [&](const AxisRef& axis) { return graph::IsTemporal(mesh, axis); };
  return HasTemporalPartials(mesh, sharding) ||
         std::any_of(sharding.dims.begin(), sharding.dims.end(),
                     [&](const graph::DimSharding& dim) {
                       return std::any_of(dim.axes.begin(), dim.axes.end(), is_temporal);
                     });
}

}  // namespace penstock::planner
