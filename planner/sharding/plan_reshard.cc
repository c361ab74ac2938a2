#include "planner/sharding/plan_reshard.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "planner/sharding/axis_pieces.h"
#include "planner/sharding/halo.h"
#include "planner/sharding/reshard_rules.h"
#include "planner/sharding/reshard_search.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::Mesh;
using graph::PartialSpec;
using graph::Sharding;

// Pieces of prime size let an axis move in parts; above this many the search takes too long.
constexpr int kMaxPrimePieces = 8;
constexpr int kMaxPieces = 32;

double NumSpatialParts(const Mesh& mesh, absl::Span<const AxisRef> axes) {
  double parts = 1;
  for (const AxisRef& axis : axes) {
    if (!graph::IsTemporal(mesh, axis)) parts *= static_cast<double>(axis.size);
  }
  return parts;
}

double Tile(const Mesh& mesh, const Sharding& sharding) {
  double parts = 1;
  for (const graph::DimSharding& dim : sharding.dims) parts *= NumSpatialParts(mesh, dim.axes);
  return 1 / parts;
}

double NumTerms(const Mesh& mesh, const Sharding& sharding) {
  double terms = 1;
  for (const PartialSpec& partial : sharding.partials) terms *= NumSpatialParts(mesh, partial.axes);
  return terms;
}

double StepCost(const Mesh& mesh, const Sharding& from, const ReshardStep& step) {
  const double tile = Tile(mesh, from);
  const double tile_after = Tile(mesh, step.sharding);
  if (step.op == "all_gather") return tile_after - tile;
  if (step.op == "reduce_scatter") return tile - tile_after;
  if (step.op == "permute") return tile;
  if (step.op == "all_reduce") {
    return 2 * tile * (1 - NumTerms(mesh, step.sharding) / NumTerms(mesh, from));
  }
  if (step.op == "all_to_all") {
    double n = 1;
    for (size_t d = 0; d < from.dims.size(); ++d) {
      n = std::max(n, NumSpatialParts(mesh, step.sharding.dims[d].axes) /
                          NumSpatialParts(mesh, from.dims[d].axes));
    }
    return tile * (1 - 1 / n);
  }
  return 0;
}

// The cost as the search counts it.
double SearchCost(const Mesh& mesh, const Sharding& from, absl::Span<const ReshardStep> steps) {
  double cost = ReshardCost(mesh, from, steps);
  for (const ReshardStep& step : steps) {
    cost += kReshardStepCost;
    if (step.op == "gather_microbatches") cost += kGatherMicrobatchesCost;
  }
  return cost;
}

// Whether the search understands the partial values of the two.
bool HasSimplePartials(const Mesh& mesh, const Sharding& from, const Sharding& to) {
  int num_ended = 0;
  for (const PartialSpec& partial : from.partials) {
    const bool is_temporal =
        std::any_of(partial.axes.begin(), partial.axes.end(),
                    [&](const AxisRef& axis) { return graph::IsTemporal(mesh, axis); });
    if (is_temporal) return false;
    if (std::find(to.partials.begin(), to.partials.end(), partial) == to.partials.end()) {
      ++num_ended;
    }
  }
  for (const PartialSpec& partial : to.partials) {
    if (std::find(from.partials.begin(), from.partials.end(), partial) == from.partials.end()) {
      return false;
    }
  }
  return num_ended <= 1;
}

Sharding Whole(const Sharding& sharding) {
  return Sharding::Replicated(static_cast<int>(sharding.dims.size()));
}

}  // namespace

double ReshardCost(const Mesh& mesh, const Sharding& from, absl::Span<const ReshardStep> steps) {
  double cost = 0;
  const Sharding* last = &from;
  for (const ReshardStep& step : steps) {
    cost += StepCost(mesh, *last, step);
    last = &step.sharding;
  }
  return cost;
}

std::vector<ReshardStep> PlanReshard(const Mesh& mesh, const Sharding& from, const Sharding& to) {
  if (from == to) return {};
  if (to.has_windows()) {
    Sharding now = HaloBase(from, to);
    std::vector<ReshardStep> steps = PlanReshard(mesh, from, now);
    for (size_t d = 0; d < to.dims.size(); ++d) {
      if (now.dims[d] == to.dims[d]) continue;
      now.dims[d] = to.dims[d];
      steps.push_back({"halo_exchange", now});
    }
    return steps;
  }
  const std::optional<Cuts> cuts = CommonCuts(from, to);
  if (!cuts.has_value()) {
    // Without common pieces: by way of the whole tensor.
    std::vector<ReshardStep> steps = PlanReshard(mesh, from, Whole(from));
    for (ReshardStep& step : PlanReshard(mesh, Whole(from), to)) steps.push_back(std::move(step));
    return steps;
  }
  std::vector<ReshardStep> chain = ReshardByRules(mesh, InPieces(from, *cuts), InPieces(to, *cuts));

  // Sums in time always come first. What follows them may be cheaper in another way.
  size_t num_accumulated = 0;
  while (num_accumulated < chain.size() && chain[num_accumulated].op == "accumulate") {
    ++num_accumulated;
  }
  const Sharding& begin = num_accumulated > 0 ? chain[num_accumulated - 1].sharding : from;
  const auto rest = absl::MakeConstSpan(chain).subspan(num_accumulated);
  if (rest.size() <= 1 || !HasSimplePartials(mesh, begin, to)) return chain;
  Cuts primes = PrimeCuts(mesh, *cuts);
  if (NumPieces(primes) > kMaxPrimePieces) primes = *cuts;
  if (NumPieces(primes) > kMaxPieces) return chain;
  // A rounding error is no saving.
  const double bound = SearchCost(mesh, begin, rest) - kReshardStepCost / 2;
  std::vector<ReshardStep> cheaper =
      SearchReshard(mesh, InPieces(begin, primes), InPieces(to, primes), bound);
  if (cheaper.empty()) return chain;
  chain.resize(num_accumulated);
  for (ReshardStep& step : cheaper) chain.push_back(std::move(step));
  return chain;
}

}  // namespace penstock::planner
