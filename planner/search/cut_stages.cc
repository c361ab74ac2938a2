#include "planner/search/cut_stages.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "base/status_macros.h"
#include "planner/search/join_stages.h"

namespace penstock::planner {
namespace {

// Rounding is no difference.
constexpr double kCutSlack = 1 + 1e-9;
constexpr double kNoCut = std::numeric_limits<double>::infinity();
constexpr int kMaxRecuts = 4;

// What segments need, and the micro-batches that parts keep in flight. The limits are open. What
// lies on the host counts if some group's devices share its memory.
CutMemory CutMemoryOf(const ModelWork& work, const StepEstimate& estimate,
                      const StagePlacement& placement) {
  const bool shares_host =
      std::any_of(estimate.groups.begin(), estimate.groups.end(),
                  [](const GroupEstimate& group) { return !group.has_host_link; });
  CutMemory memory;
  for (const StageWork& stage : work.stages) {
    memory.kept_bytes.push_back(stage.memory.parameters + stage.memory.optimizer +
                                stage.memory.gradients + (shares_host ? stage.memory.host : 0));
    memory.in_flight_bytes.push_back(stage.memory.activations +
                                     (shares_host ? stage.memory.host_activations : 0));
  }
  for (const StageTransfer& transfer : work.transfers) {
    if (transfer.is_kept_by_reader && !transfer.is_kept_by_source) {
      memory.in_flight_bytes[transfer.to] += transfer.num_bytes;
    }
  }
  for (int part = 0; part < placement.num_stages(); ++part) {
    const GroupEstimate& group = estimate.groups[placement.GroupOf(part)];
    memory.in_flight.push_back(group.chunk_in_flight[placement.ChunkOf(part)]);
  }
  memory.limit_bytes.resize(memory.in_flight.size());
  return memory;
}

// Of what the segments of its group need, the share of each part.
std::vector<double> SharesOf(const CutMemory& memory, const std::vector<int>& starts,
                             const StagePlacement& placement) {
  const auto count = static_cast<int>(memory.kept_bytes.size());
  std::vector<double> shares(starts.size(), 0);
  std::vector<double> totals(static_cast<size_t>(placement.num_groups), 0);
  for (size_t part = 0; part < starts.size(); ++part) {
    const int end = part + 1 < starts.size() ? starts[part + 1] : count;
    for (int i = starts[part]; i < end; ++i) {
      shares[part] += memory.kept_bytes[i] + memory.in_flight[part] * memory.in_flight_bytes[i];
    }
    totals[placement.GroupOf(static_cast<int>(part))] += shares[part];
  }
  for (size_t part = 0; part < starts.size(); ++part) {
    const double total = totals[placement.GroupOf(static_cast<int>(part))];
    shares[part] = total > 0 ? shares[part] / total : 1.0 / placement.num_chunks;
  }
  return shares;
}

// Cuts with a limit on the sum of a part.
class Cutter {
 public:
  Cutter(absl::Span<const std::vector<double>> costs, const CutMemory* memory)
      : num_parts_(static_cast<int>(costs.size())),
        count_(static_cast<int>(costs[0].size())),
        memory_(memory) {
    for (const std::vector<double>& cost : costs) sums_.push_back(PrefixSums(cost));
    is_uniform_ = memory == nullptr &&
                  std::all_of(sums_.begin(), sums_.end(),
                              [&](const std::vector<double>& sums) { return sums == sums_[0]; });
    if (is_uniform_) return;
    can_follow_.assign(costs.size() + 1, std::vector<bool>(costs[0].size() + 1));
    if (memory == nullptr) return;
    kept_ = PrefixSums(memory->kept_bytes);
    in_flight_ = PrefixSums(memory->in_flight_bytes);
  }

  // The cut whose first parts are as large as they can be; empty if there is none.
  std::vector<int> Cut(double limit) { return is_uniform_ ? CutUniform(limit) : CutAny(limit); }

  double LargestOf(const std::vector<int>& starts) const {
    double largest = 0;
    for (int part = 0; part < num_parts_; ++part) {
      const int end = part + 1 < num_parts_ ? starts[part + 1] : count_;
      largest = std::max(largest, sums_[part][end] - sums_[part][starts[part]]);
    }
    return largest;
  }

 private:
  // Where all parts take the same time for an element, none need be smaller than the limit allows,
  // but for an element for each of those behind it.
  std::vector<int> CutUniform(double limit) const {
    std::vector<int> starts;
    int begin = 0;
    for (int part = 0; part < num_parts_; ++part) {
      const int most = count_ - (num_parts_ - 1 - part);
      const int end = std::min(LargestEnd(part, begin, begin, limit), most);
      if (end == begin) return {};
      starts.push_back(begin);
      begin = end;
    }
    return begin == count_ ? starts : std::vector<int>();
  }

  std::vector<int> CutAny(double limit) {
    // Whether the parts from `part` on can hold what begins with element i: of the last, nothing is
    // left. The end of a part never comes before that of one that begins earlier.
    for (std::vector<bool>& of_part : can_follow_) of_part.assign(count_ + 1, false);
    can_follow_[num_parts_][count_] = true;
    for (int part = num_parts_ - 1; part >= 0; --part) {
      std::vector<int> next(count_ + 2, count_ + 1);  // the first end from there that can be
      for (int i = count_; i >= 0; --i) {
        next[i] = can_follow_[part + 1][i] ? i : next[i + 1];
      }
      int end = 0;
      for (int i = 0; i < count_; ++i) {
        end = LargestEnd(part, i, std::max(end, i), limit);
        can_follow_[part][i] = next[i + 1] <= end;
      }
    }
    if (!can_follow_[0][0]) return {};
    std::vector<int> starts = {0};
    for (int part = 0; part + 1 < num_parts_; ++part) {
      int end = LargestEnd(part, starts.back(), starts.back(), limit);
      while (!can_follow_[part + 1][end]) --end;
      starts.push_back(end);
    }
    return starts;
  }

  static std::vector<double> PrefixSums(const std::vector<double>& values) {
    std::vector<double> sums = {0};
    for (const double value : values) sums.push_back(sums.back() + value);
    return sums;
  }

  // The end of the largest part that begins there and keeps the limits, at least `end`.
  int LargestEnd(int part, int begin, int end, double limit) const {
    while (end < count_ && Fits(part, begin, end + 1, limit)) ++end;
    return end;
  }

  bool Fits(int part, int begin, int end, double limit) const {
    if (sums_[part][end] - sums_[part][begin] > limit) return false;
    return memory_ == nullptr ||
           kept_[end] - kept_[begin] +
                   memory_->in_flight[part] * (in_flight_[end] - in_flight_[begin]) <=
               memory_->limit_bytes[part];
  }

  const int num_parts_;
  const int count_;
  const CutMemory* const memory_;
  bool is_uniform_ = false;
  std::vector<std::vector<double>> sums_;  // of the first elements, by part
  std::vector<double> kept_;
  std::vector<double> in_flight_;
  std::vector<std::vector<bool>> can_follow_;  // by part and element
};

}  // namespace

std::vector<int> CutEvenly(absl::Span<const std::vector<double>> costs, const CutMemory* memory) {
  Cutter cutter(costs, memory);
  const auto num_parts = static_cast<double>(costs.size());
  // No limit below `low` can be kept: of the most expensive element, and of the mean.
  double low = 0;
  double least_total = 0;
  double total = 0;
  for (size_t i = 0; i < costs[0].size(); ++i) {
    double least = kNoCut;
    double most = 0;
    for (const std::vector<double>& cost : costs) {
      least = std::min(least, cost[i]);
      most = std::max(most, cost[i]);
    }
    low = std::max(low, least);
    least_total += least;
    total += most;
  }
  low = std::max(low, least_total / num_parts);
  std::vector<int> best = cutter.Cut(low * kCutSlack);
  if (!best.empty()) return best;
  best = cutter.Cut(total * kCutSlack);
  if (best.empty()) return {};
  double high = cutter.LargestOf(best);
  while (high - low > 1e-9 * high) {
    const double middle = (low + high) / 2;
    std::vector<int> starts = cutter.Cut(middle);
    if (starts.empty()) {
      low = middle;
    } else {
      high = std::min(cutter.LargestOf(starts), middle);
      best = std::move(starts);
    }
  }
  return best;
}

std::vector<int> CutEvenly(absl::Span<const double> cost, int num_parts, const CutMemory* memory) {
  const std::vector<std::vector<double>> costs(static_cast<size_t>(num_parts),
                                               {cost.begin(), cost.end()});
  return CutEvenly(costs, memory);
}

absl::StatusOr<StageCut> CutStages(absl::Span<const ModelWork* const> works, const Machine& machine,
                                   const EstimateOptions& options) {
  const size_t num_groups = works.size();
  const StagePlacement placement =
      PlacementOf(*options.policy, static_cast<int>(num_groups), options.chunks_per_group);
  const bool hides = options.overlaps_gradients && !SplitsBackward(options);
  std::vector<std::vector<double>> costs;  // by stage
  for (size_t stage = 0; stage < num_groups * options.chunks_per_group; ++stage) {
    std::vector<double>& cost = costs.emplace_back();
    for (const StageWork& segment : works[placement.GroupOf(static_cast<int>(stage))]->stages) {
      const PhaseWork backward = hides ? segment.overlapped_backward() : segment.backward;
      cost.push_back(segment.forward.seconds() + backward.seconds());
    }
  }
  StageCut cut;
  cut.starts = CutEvenly(costs);
  ASSIGN_OR_RETURN(cut.estimate, EstimateStep(JoinOnGroups(works, cut.starts, placement.placement),
                                              machine, options));
  if (cut.estimate.is_above_limit || cut.estimate.fits() || num_groups == 1) return cut;
  // What a group needs besides what its segments tell, such as workspace, depends on where it is
  // cut: it is taken from the cuts before, of this group, and at last of all.
  CutMemory memory = CutMemoryOf(*works[0], cut.estimate, placement);
  const std::vector<double> shares = SharesOf(memory, cut.starts, placement);
  std::vector<double> rest(num_groups, 0);
  StageCut other = cut;
  other.is_limited = true;
  other.fastest_s = cut.estimate.step_s;
  for (int round = 0; round < kMaxRecuts; ++round) {
    double most = 0;
    for (size_t g = 0; g < num_groups; ++g) {
      const MemoryEstimate& needed = other.estimate.groups[g].memory;
      rest[g] = std::max(rest[g], needed.transfers + needed.workspace);
      most = std::max(most, rest[g]);
    }
    for (size_t part = 0; part < shares.size(); ++part) {
      const int g = placement.GroupOf(static_cast<int>(part));
      const auto limit = static_cast<double>(other.estimate.groups[g].memory_limit_bytes);
      memory.limit_bytes[part] = shares[part] * (limit - (round + 1 < kMaxRecuts ? rest[g] : most));
    }
    std::vector<int> starts = CutEvenly(costs, &memory);
    if (starts.empty()) break;
    if (starts == other.starts) continue;
    other.starts = std::move(starts);
    ASSIGN_OR_RETURN(
        other.estimate,
        EstimateStep(JoinOnGroups(works, other.starts, placement.placement), machine, options));
    if (other.estimate.is_above_limit || other.estimate.fits()) return other;
  }
  return cut;
}

absl::StatusOr<ArrangedCut> CutOnGroups(absl::Span<const ModelWork* const> works,
                                        absl::Span<const std::vector<int>> arrangements,
                                        const Machine& machine, EstimateOptions options) {
  const auto rank = [](const StageCut& cut) {
    return std::tuple(cut.estimate.is_above_limit, cut.estimate.excess_bytes(),
                      cut.estimate.step_s);
  };
  ArrangedCut best;
  for (size_t i = 0; i < arrangements.size(); ++i) {
    std::vector<const ModelWork*> in_order;
    for (const int group : arrangements[i]) in_order.push_back(works[group]);
    options.device_groups = i == 0 ? std::vector<int>() : arrangements[i];
    ASSIGN_OR_RETURN(StageCut cut, CutStages(in_order, machine, options));
    if (i > 0 && rank(cut) >= rank(best.cut)) continue;
    best = {std::move(cut), options.device_groups};
    const StepEstimate& estimate = best.cut.estimate;
    if (!estimate.is_above_limit && estimate.fits()) {
      options.limit_s = std::min(options.limit_s, estimate.step_s);
    }
  }
  return best;
}

absl::Status RefineStages(absl::Span<const ModelWork* const> works, const Machine& machine,
                          const EstimateOptions& options, StageCut* cut) {
  const auto count = static_cast<int>(works[0]->stages.size());
  EstimateOptions faster = options;
  int moves = 0;
  bool has_moved = true;
  while (has_moved) {
    has_moved = false;
    for (size_t stage = 1; stage < cut->starts.size(); ++stage) {
      for (const int step : {1, -1, 2, -2}) {
        StageCut moved = *cut;
        int& start = moved.starts[stage];
        start += step;
        const int end = stage + 1 < cut->starts.size() ? cut->starts[stage + 1] : count;
        if (start <= cut->starts[stage - 1] || start >= end) continue;
        if (++moves > kMaxMoves) return absl::OkStatus();
        faster.limit_s = cut->estimate.step_s;
        ASSIGN_OR_RETURN(moved.estimate,
                         EstimateStep(JoinOnGroups(works, moved.starts), machine, faster));
        if (moved.estimate.step_s >= cut->estimate.step_s || !moved.estimate.fits()) continue;
        *cut = std::move(moved);
        has_moved = true;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace penstock::planner
