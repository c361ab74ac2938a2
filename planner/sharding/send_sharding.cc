#include "planner/sharding/send_sharding.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "planner/sharding/execution_sharding.h"
#include "planner/sharding/temporal_sharding.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::DimSharding;
using graph::Mesh;
using graph::Sharding;

// Beyond this many ways to split a value over the free axes, only one is looked at.
constexpr int64_t kMaxCandidates = 1024;

bool IsCollective(std::string_view op) {
  return op == "all_gather" || op == "all_to_all" || op == "permute" || op == "all_reduce" ||
         op == "reduce_scatter";
}

double NumMicrobatches(const Mesh& mesh, const Sharding& sharding) {
  double parts = 1;
  for (const DimSharding& dim : sharding.dims) {
    for (const AxisRef& axis : dim.axes) {
      if (graph::IsTemporal(mesh, axis)) parts *= static_cast<double>(axis.size);
    }
  }
  return parts;
}

// The pieces of spatial axes over which the dimensions are not split, major first.
std::vector<AxisRef> FreeAxes(const Mesh& mesh, const Sharding& sharding) {
  std::vector<AxisRef> free;
  for (int a = 0; a < static_cast<int>(mesh.axes.size()); ++a) {
    const graph::MeshAxis& axis = mesh.axes[static_cast<size_t>(a)];
    if (axis.is_temporal) continue;
    std::vector<AxisRef> used;
    for (const DimSharding& dim : sharding.dims) {
      for (const AxisRef& piece : dim.axes) {
        if (piece.axis == a) used.push_back(piece);
      }
    }
    std::sort(used.begin(), used.end());
    int64_t begin = 1;
    for (const AxisRef& piece : used) {
      if (piece.pre > begin) free.push_back({a, begin, piece.pre / begin});
      begin = piece.pre * piece.size;
    }
    if (axis.size > begin) free.push_back({a, begin, axis.size / begin});
  }
  return free;
}

std::vector<AxisRef> PrimePieces(const AxisRef& axis) {
  std::vector<AxisRef> pieces;
  int64_t pre = axis.pre;
  int64_t rest = axis.size;
  for (int64_t prime = 2; rest > 1; ++prime) {
    while (rest % prime == 0) {
      pieces.push_back({axis.axis, pre, prime});
      pre *= prime;
      rest /= prime;
    }
  }
  return pieces;
}

// Whether the tile's elements before each position of the dimension are more than one: then parts
// along the dimension do not lie one after another.
bool IsInner(const TensorType& tile, size_t dim) {
  return std::any_of(tile.shape.begin(), tile.shape.begin() + static_cast<ptrdiff_t>(dim),
                     [](int64_t extent) { return extent > 1; });
}

// Whether no dimension that `sent` splits further has parts of different sizes.
bool IsEven(const TensorType& type, const Sharding& held, const Sharding& sent) {
  for (size_t d = 0; d < type.shape.size(); ++d) {
    const int64_t parts = graph::NumParts(sent.dims[d]);
    if (parts != graph::NumParts(held.dims[d]) && type.shape[d] % parts != 0) return false;
  }
  return true;
}

// Bytes that a collective's parts are copied for.
double CopiedBytes(const TensorType& type, const Sharding& from, const ReshardStep& step) {
  if (!IsCollective(step.op)) return 0;
  const TensorType before = LargestTile(type, from);
  const TensorType after = LargestTile(type, step.sharding);
  double bytes = 0;
  for (size_t d = 0; d < from.dims.size(); ++d) {
    const int64_t parts_before = graph::NumParts(from.dims[d]);
    const int64_t parts_after = graph::NumParts(step.sharding.dims[d]);
    if (parts_after < parts_before && IsInner(after, d)) {
      bytes += static_cast<double>(after.num_bytes());
    }
    if (parts_after > parts_before && IsInner(before, d)) {
      bytes += static_cast<double>(before.num_bytes());
    }
  }
  return bytes;
}

}  // namespace

SendChooser::SendChooser(const Mesh& mesh, const SendCosts& costs)
    : mesh_(mesh), costs_(costs), chains_(mesh) {}

double SendChooser::SendingCost(const TensorType& type, const Sharding& sent) const {
  return costs_.byte_between_stages * static_cast<double>(LargestTile(type, sent).num_bytes());
}

double SendChooser::RedistributionCost(const TensorType& type, const Sharding& from,
                                       const Sharding& to) {
  if (from == to) return 0;
  const double microbatches = std::max(NumMicrobatches(mesh_, from), NumMicrobatches(mesh_, to));
  double cost = chains_.Cost(from, to) * static_cast<double>(type.num_bytes()) / microbatches;
  const Sharding* last = &from;
  for (const ReshardStep& step : chains_.Steps(from, to)) {
    if (IsCollective(step.op)) cost += costs_.collective;
    cost += costs_.copied_byte * CopiedBytes(type, *last, step);
    last = &step.sharding;
  }
  return cost;
}

double SendChooser::Cost(const TensorType& type, const Sharding& held, const Sharding& sent,
                         absl::Span<const std::vector<Sharding>> needed) {
  double cost = RedistributionCost(type, held, sent);
  for (const std::vector<Sharding>& of_stage : needed) {
    cost += SendingCost(type, sent);
    const bool is_read_as_held =
        std::find(of_stage.begin(), of_stage.end(), held) != of_stage.end();
    for (const Sharding& each : of_stage) {
      double arriving = RedistributionCost(type, sent, each);
      if (is_read_as_held && each != held) {
        arriving = std::min(arriving, RedistributionCost(type, held, each));
      }
      cost += arriving;
    }
  }
  return cost;
}

// `held`, reduced, with each free axis on one dimension or on none; and with the prime pieces of
// the free axes on the outermost dimension that each divides.
std::vector<Sharding> SendChooser::Candidates(const TensorType& type, const Sharding& held) const {
  Sharding whole = held;
  whole.partials.clear();
  const std::vector<AxisRef> free = FreeAxes(mesh_, whole);
  const size_t rank = type.shape.size();
  int64_t count = 1;
  for (size_t i = 0; i < free.size() && count <= kMaxCandidates; ++i) {
    count *= static_cast<int64_t>(rank) + 1;
  }
  std::vector<Sharding> candidates;
  for (int64_t choice = 0; choice < count && count <= kMaxCandidates; ++choice) {
    Sharding& candidate = candidates.emplace_back(whole);
    int64_t rest = choice;
    for (const AxisRef& axis : free) {
      const auto dim = static_cast<size_t>(rest % (static_cast<int64_t>(rank) + 1));
      rest /= static_cast<int64_t>(rank) + 1;
      if (dim > 0) candidate.dims[dim - 1].axes.push_back(axis);
    }
  }
  Sharding& in_pieces = candidates.emplace_back(whole);
  for (const AxisRef& axis : free) {
    for (const AxisRef& piece : PrimePieces(axis)) {
      for (size_t d = 0; d < rank; ++d) {
        const int64_t parts = graph::NumParts(in_pieces.dims[d]) * piece.size;
        if (type.shape[d] % parts != 0) continue;
        in_pieces.dims[d].axes.push_back(piece);
        break;
      }
    }
  }
  for (Sharding& candidate : candidates) graph::Canonicalize(mesh_, &candidate);
  return candidates;
}

Sharding SendChooser::Choose(const TensorType& type, const Sharding& held,
                             absl::Span<const std::vector<Sharding>> needed) {
  if (HasTemporalPartials(mesh_, held)) return held;
  std::string key = absl::StrCat(penstock::ToString(type), " ", graph::ToString(mesh_, held));
  for (const std::vector<Sharding>& of_stage : needed) {
    absl::StrAppend(&key, ";");
    for (const Sharding& each : of_stage) {
      if (each.is_partial()) return held;
      absl::StrAppend(&key, " ", graph::ToString(mesh_, each));
    }
  }
  const auto [it, is_new] = chosen_.try_emplace(key, held);
  if (!is_new) return it->second;
  double least = Cost(type, held, held, needed);
  std::vector<Sharding> candidates = Candidates(type, held);
  const auto uneven = std::stable_partition(
      candidates.begin(), candidates.end(),
      [&](const Sharding& candidate) { return IsEven(type, held, candidate); });
  const auto try_all = [&](auto begin, auto end) {
    for (auto candidate = begin; candidate != end; ++candidate) {
      // Costs of ways that tie may differ by rounding.
      const double cost = Cost(type, held, *candidate, needed);
      if (cost >= least * (1 - 1e-9)) continue;
      least = cost;
      it->second = std::move(*candidate);
    }
  };
  try_all(candidates.begin(), uneven);
  if (it->second != held) least *= costs_.uneven;
  try_all(uneven, candidates.end());
  return it->second;
}

}  // namespace penstock::planner
