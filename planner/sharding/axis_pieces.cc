#include "planner/sharding/axis_pieces.h"

#include "absl/types/span.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::DimSharding;
using graph::Mesh;
using graph::PartialSpec;
using graph::Sharding;

void Collect(absl::Span<const AxisRef> axes, Cuts* cuts) {
  for (const AxisRef& axis : axes) {
    (*cuts)[axis.axis].insert(axis.pre);
    (*cuts)[axis.axis].insert(axis.pre * axis.size);
  }
}

void Collect(const Sharding& sharding, Cuts* cuts) {
  for (const DimSharding& dim : sharding.dims) Collect(dim.axes, cuts);
  for (const PartialSpec& partial : sharding.partials) Collect(partial.axes, cuts);
}

// True when each cut divides the next: then all pieces between cuts can exist side by side.
bool FormsChain(const Cuts& cuts) {
  for (const auto& [axis, points] : cuts) {
    int64_t previous = 1;
    for (const int64_t point : points) {
      if (point % previous != 0) return false;
      previous = point;
    }
  }
  return true;
}

Pieces InPieces(absl::Span<const AxisRef> axes, const Cuts& cuts) {
  Pieces pieces;
  for (const AxisRef& axis : axes) {
    int64_t begin = axis.pre;
    for (const int64_t point : cuts.at(axis.axis)) {
      if (point <= begin) continue;
      if (point > axis.pre * axis.size) break;
      pieces.push_back({axis.axis, begin, point / begin});
      begin = point;
    }
  }
  return pieces;
}

}  // namespace

std::optional<Cuts> CommonCuts(const Sharding& a, const Sharding& b) {
  Cuts cuts;
  Collect(a, &cuts);
  Collect(b, &cuts);
  if (!FormsChain(cuts)) return std::nullopt;
  return cuts;
}

Cuts PrimeCuts(const Mesh& mesh, Cuts cuts) {
  for (auto& [axis, points] : cuts) {
    if (mesh.axes[static_cast<size_t>(axis)].is_temporal) continue;
    std::set<int64_t> more;
    int64_t begin = *points.begin();
    for (const int64_t end : points) {
      for (int64_t prime = 2; begin < end; ++prime) {
        while (end / begin % prime == 0) {
          begin *= prime;
          more.insert(begin);
        }
      }
    }
    points.merge(more);
  }
  return cuts;
}

int NumPieces(const Cuts& cuts) {
  size_t count = 0;
  for (const auto& [axis, points] : cuts) count += points.size() - 1;
  return static_cast<int>(count);
}

Sharding InPieces(const Sharding& sharding, const Cuts& cuts) {
  Sharding pieces = sharding;
  for (DimSharding& dim : pieces.dims) dim.axes = InPieces(dim.axes, cuts);
  for (PartialSpec& partial : pieces.partials) partial.axes = InPieces(partial.axes, cuts);
  return pieces;
}

}  // namespace penstock::planner
