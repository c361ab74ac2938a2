#include "planner/sharding/halo.h"

#include <algorithm>

namespace penstock::planner {
namespace {

using graph::DimSharding;
using graph::Sharding;

// Whether the axes of `held` are the first of `needed`'s.
bool IsMajor(const DimSharding& held, const DimSharding& needed) {
  if (held.window.has_value()) return false;
  size_t i = 0;
  for (; i < held.axes.size() && i < needed.axes.size(); ++i) {
    if (held.axes[i] != needed.axes[i]) break;
  }
  if (i == held.axes.size()) return true;
  // A piece of an axis may be major to the rest of it: a:(1)2 to a.
  return i + 1 == held.axes.size() && i < needed.axes.size() &&
         held.axes[i].axis == needed.axes[i].axis && held.axes[i].pre == needed.axes[i].pre &&
         needed.axes[i].size % held.axes[i].size == 0;
}

Range PartOfDim(const DimSharding& dim, int64_t extent, int64_t part, int64_t parts) {
  if (!dim.window.has_value()) return PartOf(extent, part, parts);
  return dim.window->Reads(PartOf(dim.window->extent, part, parts), extent);
}

// Whether each part of `needed` lies in the part of `held` on the same devices.
bool Holds(const DimSharding& held, const DimSharding& needed, int64_t extent) {
  if (held == needed) return true;
  if (!IsMajor(held, needed)) return false;
  const int64_t parts = graph::NumParts(needed);
  const int64_t held_parts = graph::NumParts(held);
  for (int64_t p = 0; p < parts; ++p) {
    const Range own = PartOf(extent, p / (parts / held_parts), held_parts);
    const Range window = PartOfDim(needed, extent, p, parts);
    if (window.size() > 0 && (window.begin < own.begin || window.end > own.end)) return false;
  }
  return true;
}

}  // namespace

bool IsHaloBase(const Sharding& held, const Sharding& needed) {
  for (size_t d = 0; d < needed.dims.size(); ++d) {
    const bool fits =
        needed.dims[d].window.has_value()
            ? held.dims[d] == needed.dims[d] || IsMajor(held.dims[d], needed.dims[d])
            : held.dims[d].axes == needed.dims[d].axes && !held.dims[d].window.has_value();
    if (!fits) return false;
  }
  return held.partials == needed.partials;
}

Sharding HaloBase(const Sharding& held, const Sharding& needed) {
  if (IsHaloBase(held, needed)) return held;
  Sharding base = needed;
  for (DimSharding& dim : base.dims) dim.window.reset();
  return base;
}

Sharding LeastNeeded(const Shape& shape, const Sharding& held, const Sharding& needed) {
  Sharding least = needed;
  if (!needed.has_windows()) return least;
  Sharding same_partials = needed;
  same_partials.partials = held.partials;
  if (!IsHaloBase(held, same_partials)) return least;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (needed.dims[d].window.has_value() && Holds(held.dims[d], needed.dims[d], shape[d])) {
      least.dims[d] = held.dims[d];
    }
  }
  return least;
}

std::vector<std::vector<HaloPiece>> HaloPieces(const DimSharding& held, const DimSharding& needed,
                                               int64_t extent) {
  const int64_t parts = graph::NumParts(needed);
  const int64_t held_parts = graph::NumParts(held);
  const int64_t copies = parts / held_parts;  // of each part of `held`
  std::vector<std::vector<HaloPiece>> pieces(static_cast<size_t>(parts));
  for (int64_t p = 0; p < parts; ++p) {
    const Range window = PartOfDim(needed, extent, p, parts);
    int64_t begin = window.begin;
    if (window.size() <= 0) continue;
    // Element i is in part floor(i * k / n), as that is where i >= p n / k holds for p last.
    for (int64_t part = begin * held_parts / extent; begin < window.end; ++part) {
      const int64_t end = std::min(PartOf(extent, part, held_parts).end, window.end);
      if (end <= begin) continue;
      if (part != p / copies) {
        const int64_t source = part < p / copies ? part * copies + copies - 1 : part * copies;
        pieces[static_cast<size_t>(p)].push_back({source, {begin, end}});
      }
      begin = end;
    }
  }
  return pieces;
}

int64_t HaloBytes(const TensorType& type, const Sharding& base, const Sharding& needed) {
  int64_t bytes = 0;
  Sharding now = base;
  for (size_t d = 0; d < needed.dims.size(); ++d) {
    if (now.dims[d] == needed.dims[d]) continue;
    int64_t most = 0;
    for (const std::vector<HaloPiece>& part :
         HaloPieces(now.dims[d], needed.dims[d], type.shape[d])) {
      int64_t elements = 0;
      for (const HaloPiece& piece : part) elements += piece.range.size();
      most = std::max(most, elements);
    }
    for (size_t other = 0; other < now.dims.size(); ++other) {
      if (other != d) most *= LargestPart(now.dims[other], type.shape[other]);
    }
    bytes += most * static_cast<int64_t>(ByteSize(type.dtype));
    now.dims[d] = needed.dims[d];
  }
  return bytes;
}

int ExchangedDim(const Sharding& from, const Sharding& to) {
  for (size_t d = 0; d < to.dims.size(); ++d) {
    if (to.dims[d].window.has_value() && from.dims[d] != to.dims[d]) return static_cast<int>(d);
  }
  return -1;
}

int64_t LargestPart(const DimSharding& dim, int64_t extent) {
  const int64_t parts = graph::NumParts(dim);
  if (dim.sub_batch.has_value()) return extent / parts / dim.sub_batch->count;
  if (!dim.window.has_value()) return (extent + parts - 1) / parts;
  int64_t most = 0;
  for (int64_t p = 0; p < parts; ++p) {
    most = std::max(most, PartOfDim(dim, extent, p, parts).size());
  }
  return most;
}

}  // namespace penstock::planner
