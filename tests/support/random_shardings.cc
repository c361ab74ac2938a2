#include "tests/support/random_shardings.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace penstock::testing {
namespace {

using graph::AxisRef;
using graph::Mesh;
using graph::Sharding;

// All axes and sub-axes that a sharding may name.
std::vector<AxisRef> Pieces(const Mesh& mesh) {
  std::vector<AxisRef> pieces;
  for (int axis = 0; axis < static_cast<int>(mesh.axes.size()); ++axis) {
    const int64_t size = mesh.axes[axis].size;
    if (mesh.axes[axis].is_temporal) {
      pieces.push_back(graph::WholeAxis(mesh, axis));
      continue;
    }
    for (int64_t pre = 1; pre < size; ++pre) {
      for (int64_t piece = 2; pre * piece <= size; ++piece) {
        if (size % (pre * piece) == 0) pieces.push_back({axis, pre, piece});
      }
    }
  }
  return pieces;
}

bool Fits(const AxisRef& axis, absl::Span<const AxisRef> used) {
  return std::none_of(used.begin(), used.end(), [&](const AxisRef& other) {
    return graph::Overlap(axis, other) || !graph::CanCoexist(axis, other);
  });
}

std::vector<AxisRef> UsedAxes(const Sharding& sharding) {
  std::vector<AxisRef> used = sharding.replicated;
  for (const graph::DimSharding& dim : sharding.dims) {
    used.insert(used.end(), dim.axes.begin(), dim.axes.end());
  }
  for (const graph::PartialSpec& partial : sharding.partials) {
    used.insert(used.end(), partial.axes.begin(), partial.axes.end());
  }
  return used;
}

}  // namespace

std::optional<AxisRef> UnusedAxis(Random& random, const Mesh& mesh, const Sharding& sharding) {
  const std::vector<AxisRef> used = UsedAxes(sharding);
  const bool whole = random.Chance(0.75);
  std::vector<AxisRef> unused;
  for (const AxisRef& axis : Pieces(mesh)) {
    if (whole && axis.size != mesh.axes[axis.axis].size) continue;
    if (Fits(axis, used)) unused.push_back(axis);
  }
  if (unused.empty()) return std::nullopt;
  return random.Pick(unused);
}

Mesh RandomMesh(Random& random, int64_t max_devices, int64_t num_microbatches) {
  static constexpr std::string_view kNames[] = {"a", "b", "c"};
  static constexpr int64_t kSizes[] = {2, 2, 3, 4, 5, 6, 8};
  Mesh mesh;
  mesh.name = "m";
  const int64_t num_axes = random.Between(1, 3);
  while (static_cast<int64_t>(mesh.axes.size()) < num_axes) {
    std::vector<int64_t> fitting;
    for (int64_t size : kSizes) {
      if (mesh.num_devices() * size <= max_devices) fitting.push_back(size);
    }
    if (fitting.empty()) break;
    mesh.axes.push_back({std::string(kNames[mesh.axes.size()]), random.Pick(fitting)});
  }
  if (num_microbatches > 1) {
    mesh.axes.insert(mesh.axes.begin() + random.Below(mesh.axes.size() + 1),
                     {"mb", num_microbatches, /*is_temporal=*/true});
  }
  return mesh;
}

Sharding RandomSharding(Random& random, const Mesh& mesh, const Shape& shape) {
  Sharding sharding = Sharding::Replicated(static_cast<int>(shape.size()));
  for (size_t attempts = shape.size() + 1; attempts > 0 && !shape.empty(); --attempts) {
    if (random.Chance(0.35)) continue;
    const std::optional<AxisRef> axis = UnusedAxis(random, mesh, sharding);
    if (!axis) break;
    // The first dimension is the batch as often as not.
    const bool is_temporal = graph::IsTemporal(mesh, *axis);
    const int64_t d = is_temporal && random.Chance(0.7) ? 0 : random.Below(shape.size());
    Sharding longer = sharding;
    std::vector<AxisRef>& axes = longer.dims[d].axes;
    axes.insert(is_temporal && random.Chance(0.7) ? axes.begin() : axes.end(), *axis);
    if (graph::CheckSharding(mesh, longer, shape).ok()) sharding = std::move(longer);
  }
  graph::Canonicalize(mesh, &sharding);
  return sharding;
}

Sharding RearrangedSharding(Random& random, const Mesh& mesh, const Shape& shape,
                            Sharding sharding) {
  sharding.partials.clear();
  std::vector<graph::DimSharding>& dims = sharding.dims;
  if (dims.size() > 1 && random.Chance(0.6)) {
    const int64_t a = random.Below(dims.size());
    const int64_t b = random.Below(dims.size());
    if (random.Chance(0.5) || dims[a].axes.empty() || a == b) {
      std::swap(dims[a].axes, dims[b].axes);
    } else {
      dims[b].axes.push_back(dims[a].axes.back());
      dims[a].axes.pop_back();
    }
  } else if (!dims.empty()) {
    random.Shuffle(dims[random.Below(dims.size())].axes);
  }
  graph::Canonicalize(mesh, &sharding);
  return graph::CheckSharding(mesh, sharding, shape).ok() ? sharding
                                                          : RandomSharding(random, mesh, shape);
}

void AddRandomPartial(Random& random, const Mesh& mesh, graph::Reduction reduction,
                      bool allow_temporal, Sharding* sharding) {
  const std::optional<AxisRef> axis = UnusedAxis(random, mesh, *sharding);
  if (!axis || (graph::IsTemporal(mesh, *axis) && !allow_temporal)) return;
  sharding->partials.push_back({reduction, {*axis}});
  graph::Canonicalize(mesh, sharding);
}

}  // namespace penstock::testing
