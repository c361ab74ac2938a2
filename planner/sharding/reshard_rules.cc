#include "planner/sharding/reshard_rules.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "planner/sharding/axis_pieces.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::DimSharding;
using graph::Mesh;
using graph::Sharding;

bool Has(const Pieces& pieces, const AxisRef& piece) {
  return std::find(pieces.begin(), pieces.end(), piece) != pieces.end();
}

bool IsPrefix(const Pieces& prefix, const Pieces& whole) {
  return prefix.size() <= whole.size() && std::equal(prefix.begin(), prefix.end(), whole.begin());
}

size_t CommonPrefix(const Pieces& a, const Pieces& b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  return n;
}

class ReshardPlanner {
 public:
  ReshardPlanner(const Mesh& mesh, Sharding from, Sharding to)
      : mesh_(mesh), now_(std::move(from)), to_(std::move(to)) {}

  std::vector<ReshardStep> Plan() {
    ReducePartials();
    while (now_.dims != to_.dims) {
      if (Slice() || AllToAll() || Permute()) continue;
      Gather();
    }
    if (now_.partials != to_.partials) {
      // The target holds the value as a sum of which all terms but one are neutral.
      now_.partials = to_.partials;
      Emit("local_slice");
    }
    return std::move(steps_);
  }

 private:
  bool IsTemporal(const AxisRef& piece) const { return graph::IsTemporal(mesh_, piece); }

  void Emit(std::string op) {
    Sharding canonical = now_;
    graph::Canonicalize(mesh_, &canonical);
    steps_.push_back({std::move(op), std::move(canonical)});
  }

  bool InDims(const AxisRef& piece) const {
    return std::any_of(now_.dims.begin(), now_.dims.end(),
                       [&](const DimSharding& dim) { return Has(dim.axes, piece); });
  }
  bool InPartials(const AxisRef& piece) const {
    return std::any_of(now_.partials.begin(), now_.partials.end(),
                       [&](const graph::PartialSpec& p) { return Has(p.axes, piece); });
  }

  void RemovePartials(const Pieces& pieces) {
    for (graph::PartialSpec& partial : now_.partials) {
      std::erase_if(partial.axes, [&](const AxisRef& a) { return Has(pieces, a); });
    }
    std::erase_if(now_.partials, [](const graph::PartialSpec& p) { return p.axes.empty(); });
  }

  void ReducePartials() {
    const std::vector<graph::PartialSpec> partials = now_.partials;
    for (const graph::PartialSpec& partial : partials) {
      Pieces kept;
      for (const graph::PartialSpec& target : to_.partials) {
        if (target.reduction == partial.reduction) kept = target.axes;
      }
      Pieces temporal;
      Pieces spatial;
      for (const AxisRef& piece : partial.axes) {
        if (Has(kept, piece)) continue;
        (IsTemporal(piece) ? temporal : spatial).push_back(piece);
      }
      if (!temporal.empty()) {
        RemovePartials(temporal);
        Emit("accumulate");
      }
      // Scatter while some dimension wants one of the axes next.
      bool scattered = true;
      while (scattered && !spatial.empty()) {
        scattered = false;
        for (size_t d = 0; d < now_.dims.size() && !scattered; ++d) {
          Pieces& axes = now_.dims[d].axes;
          const Pieces& wanted = to_.dims[d].axes;
          if (!IsPrefix(axes, wanted)) continue;
          Pieces taken;
          while (axes.size() < wanted.size() && Has(spatial, wanted[axes.size()])) {
            taken.push_back(wanted[axes.size()]);
            axes.push_back(taken.back());
          }
          if (taken.empty()) continue;
          RemovePartials(taken);
          std::erase_if(spatial, [&](const AxisRef& a) { return Has(taken, a); });
          Emit("reduce_scatter");
          scattered = true;
        }
      }
      if (!spatial.empty()) {
        RemovePartials(spatial);
        Emit("all_reduce");
      }
    }
  }

  bool Slice() {
    bool sliced = false;
    for (size_t d = 0; d < now_.dims.size(); ++d) {
      Pieces& axes = now_.dims[d].axes;
      const Pieces& wanted = to_.dims[d].axes;
      if (!IsPrefix(axes, wanted)) continue;
      while (axes.size() < wanted.size() && !InDims(wanted[axes.size()]) &&
             !InPartials(wanted[axes.size()])) {
        axes.push_back(wanted[axes.size()]);
        sliced = true;
      }
    }
    if (sliced) Emit("local_slice");
    return sliced;
  }

  bool AllToAll() {
    for (size_t i = 0; i < now_.dims.size(); ++i) {
      Pieces& from = now_.dims[i].axes;
      if (from.size() <= CommonPrefix(from, to_.dims[i].axes)) continue;
      const AxisRef piece = from.back();
      if (IsTemporal(piece)) continue;
      for (size_t j = 0; j < now_.dims.size(); ++j) {
        Pieces& into = now_.dims[j].axes;
        const Pieces& wanted = to_.dims[j].axes;
        if (i == j || !IsPrefix(into, wanted) || into.size() == wanted.size()) continue;
        if (wanted[into.size()] != piece) continue;
        from.pop_back();
        into.push_back(piece);
        Emit("all_to_all");
        return true;
      }
    }
    return false;
  }

  // Applies where every dimension has as many parts as wanted, over the same axes in all, and the
  // temporal axes already stand where they should.
  bool Permute() {
    Pieces have;
    Pieces want;
    for (size_t d = 0; d < now_.dims.size(); ++d) {
      const Pieces& axes = now_.dims[d].axes;
      const Pieces& wanted = to_.dims[d].axes;
      if (graph::NumParts(now_.dims[d]) != graph::NumParts(to_.dims[d])) return false;
      for (size_t i = 0; i < std::max(axes.size(), wanted.size()); ++i) {
        const bool temporal = (i < axes.size() && IsTemporal(axes[i])) ||
                              (i < wanted.size() && IsTemporal(wanted[i]));
        if (temporal && (i >= axes.size() || i >= wanted.size() || axes[i] != wanted[i])) {
          return false;
        }
      }
      // Before a temporal axis the spatial parts must agree in number, or micro-batches would mix.
      int64_t parts_now = 1;
      int64_t parts_wanted = 1;
      for (size_t i = 0; i < std::min(axes.size(), wanted.size()); ++i) {
        if (IsTemporal(axes[i]) && parts_now != parts_wanted) return false;
        parts_now *= axes[i].size;
        parts_wanted *= wanted[i].size;
      }
      have.insert(have.end(), axes.begin(), axes.end());
      want.insert(want.end(), wanted.begin(), wanted.end());
    }
    std::sort(have.begin(), have.end());
    std::sort(want.begin(), want.end());
    if (have != want) return false;
    now_.dims = to_.dims;
    Emit("permute");
    return true;
  }

  void Gather() {
    // The dimension whose obstacle is smallest to gather: fewest parts. Micro-batches come last,
    // however many there are.
    const auto parts = [&](size_t d) {
      const AxisRef& obstacle = now_.dims[d].axes.back();
      return std::pair(IsTemporal(obstacle), IsTemporal(obstacle) ? 0 : obstacle.size);
    };
    std::optional<size_t> best;
    for (size_t d = 0; d < now_.dims.size(); ++d) {
      const Pieces& axes = now_.dims[d].axes;
      if (axes.size() <= CommonPrefix(axes, to_.dims[d].axes)) continue;
      if (!best || parts(d) < parts(*best)) best = d;
    }
    Pieces& axes = now_.dims[*best].axes;
    const bool temporal = IsTemporal(axes.back());
    axes.pop_back();
    Emit(temporal ? "gather_microbatches" : "all_gather");
  }

  const Mesh& mesh_;
  Sharding now_;
  Sharding to_;
  std::vector<ReshardStep> steps_;
};

}  // namespace

std::vector<ReshardStep> ReshardByRules(const Mesh& mesh, const Sharding& from,
                                        const Sharding& to) {
  return ReshardPlanner(mesh, from, to).Plan();
}

}  // namespace penstock::planner
