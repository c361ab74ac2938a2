#include "planner/search/winning_change.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "fmt/format.h"

#include "base/format.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/search/rank_candidates.h"
#include "planner/search/strategy_work.h"

namespace penstock::planner {
namespace {

// Of those that fit, so many are compared with one that may win.
constexpr size_t kMostRivals = 6;

// The candidates of a search, estimated on machines that differ from the one that was searched for.
class Rerun {
 public:
  Rerun(const SearchProblem& problem, StrategyWork work)
      : problem_(problem), order_(problem), work_(std::move(work)) {}

  // Forgets the estimates on the machine before.
  void UseMachine(Machine machine) {
    machine_ = std::move(machine);
    work_.UseMachine(*machine_);
    links_ = LinkCache();
    known_.clear();
  }

  absl::StatusOr<Candidate> Estimate(const Candidate& on_other) {
    const auto it = known_.find(&on_other);
    if (it != known_.end()) return it->second;
    ASSIGN_OR_RETURN(const StrategyWork::Cutting cutting,
                     work_.CuttingOf(on_other.strategy, on_other.microbatches));
    ASSIGN_OR_RETURN(
        Candidate candidate,
        EstimateCandidate(problem_, *machine_, cutting,
                          {on_other.strategy, on_other.microbatches, on_other.policy}, &links_));
    if (on_other.strategy.pp > 1 && on_other.strategy.vpp == 1 && candidate.estimate.fits()) {
      RETURN_IF_ERROR(RefineCandidate(problem_, *machine_, cutting, &links_, &candidate).status());
    }
    known_.emplace(&on_other, candidate);
    return candidate;
  }

  // Whether a candidate is chosen among it and the rivals.
  bool Wins(const Candidate& candidate, absl::Span<const Candidate* const> rivals) {
    // As in the search, what is refused on this machine is no choice.
    absl::StatusOr<Candidate> estimated = Estimate(candidate);
    if (!estimated.ok() || !estimated->estimate.fits()) return false;
    std::vector<Candidate> all = {*std::move(estimated)};
    for (const Candidate* rival : rivals) {
      absl::StatusOr<Candidate> other = Estimate(*rival);
      if (!other.ok()) continue;
      all.push_back(*std::move(other));
      if (order_.IndexOfBest(all) != 0) return false;
    }
    return true;
  }

 private:
  const SearchProblem& problem_;
  const CandidateOrder order_;
  StrategyWork work_;
  std::optional<Machine> machine_;
  LinkCache links_;
  std::map<const Candidate*, Candidate> known_;  // by what they are on the other machine
};

class ChangeFinder {
 public:
  ChangeFinder(const SearchProblem& problem, const SearchResult& result, Rerun rerun)
      : problem_(problem), result_(result), order_(problem), rerun_(std::move(rerun)) {}

  WinningChange Find(const Candidate& other) {
    if (!result_.best.estimate.fits()) return WinningChange();
    if (!other.estimate.fits()) return FindMemory(other);
    const double limit = order_.Seconds(result_.best) * (1 + kTieTolerance);
    if (order_.Seconds(other) <= limit) return WinningChange{WinningChange::Kind::kTies};
    return FindLinkRate(other);
  }

  // The change, if a search on the machine with it chooses the candidate's strategy.
  WinningChange Confirm(WinningChange change, const Candidate& other) const {
    const bool is_memory = change.kind == Kind::kDeviceMemory || change.kind == Kind::kHostMemory;
    if (!is_memory && change.kind != Kind::kLinkRate) return change;
    if (problem_.num_devices > kMostDevicesToConfirm) return change;
    const Machine machine = WithChange(*problem_.machine, change);
    SearchProblem changed = problem_;
    changed.machine = &machine;
    const absl::StatusOr<SearchResult> result = FindStrategy(changed);
    if (!result.ok()) return change;
    if (result->best.strategy != other.strategy) {
      return WinningChange{is_memory ? Kind::kNoMemory : Kind::kNoLinkRate};
    }
    change.is_confirmed = true;
    return change;
  }

 private:
  using Kind = WinningChange::Kind;

  // Those that may be chosen instead when the machine changes: the chosen one, the fastest of those
  // that fit, and what would be faster and may come to fit.
  std::vector<const Candidate*> RivalsOf(const Candidate& other, bool with_more_memory) const {
    std::vector<const Candidate*> rivals = {&result_.best};
    const StepEstimate& step = other.estimate;
    const double used = step.groups[step.fullest_group()].used_bytes();
    for (const Candidate& rival : result_.others) {
      if (&rival == &other) continue;
      const StepEstimate& estimate = rival.estimate;
      if (!estimate.fits()) {
        if (!with_more_memory || estimate.groups[estimate.fullest_group()].used_bytes() > used ||
            order_.Seconds(rival) > order_.Seconds(other) * (1 + kTieTolerance)) {
          continue;
        }
      } else if (rivals.size() > kMostRivals) {
        continue;
      }
      rivals.push_back(&rival);
    }
    return rivals;
  }

  bool WinsWith(const WinningChange& change, const Candidate& other,
                absl::Span<const Candidate* const> rivals) {
    if (machine_change_ != change) {
      rerun_.UseMachine(WithChange(*problem_.machine, change));
      machine_change_ = change;
    }
    return rerun_.Wins(other, rivals);
  }

  // The end of an interval at which the candidate wins and beyond whose other end it does not, made
  // as short as kChangePrecision.
  WinningChange Bisect(Kind kind, double fails, double wins, const Candidate& other,
                       absl::Span<const Candidate* const> rivals) {
    while (std::abs(wins - fails) > kChangePrecision / 2 * wins) {
      const double middle =
          kind == Kind::kLinkRate ? std::sqrt(fails * wins) : std::floor((fails + wins) / 2);
      if (middle == fails || middle == wins) break;
      const bool is_enough = WinsWith({kind, middle}, other, rivals);
      (is_enough ? wins : fails) = middle;
    }
    return WinningChange{kind, wins};
  }

  WinningChange FindMemory(const Candidate& other) {
    const StepEstimate& estimate = other.estimate;
    const GroupEstimate& fullest = estimate.groups[estimate.fullest_group()];
    const bool is_host = !fullest.fits_on_host();
    const Kind kind = is_host ? Kind::kHostMemory : Kind::kDeviceMemory;
    const double most = std::ceil(is_host ? fullest.memory.host : fullest.used_bytes());
    const std::vector<const Candidate*> rivals = RivalsOf(other, /*with_more_memory=*/true);
    const bool wins = WinsWith({kind, most}, other, rivals);
    if (!wins) return WinningChange{Kind::kNoMemory};
    // Stages that cannot be cut otherwise need what they need.
    if (other.strategy.pp == 1) return WinningChange{kind, most};
    const auto least =
        static_cast<double>(is_host ? fullest.host_limit_bytes : fullest.memory_limit_bytes);
    return Bisect(kind, least, most, other, rivals);
  }

  WinningChange FindLinkRate(const Candidate& other) {
    const std::vector<const Candidate*> rivals = RivalsOf(other, /*with_more_memory=*/false);
    for (double times = 2; times <= kMostTimesAsFast; times *= 2) {
      for (const double rate : {times, 1 / times}) {
        const bool wins = WinsWith({Kind::kLinkRate, rate}, other, rivals);
        if (!wins) continue;
        return Bisect(Kind::kLinkRate, rate > 1 ? rate / 2 : rate * 2, rate, other, rivals);
      }
    }
    return WinningChange{Kind::kNoLinkRate};
  }

  const SearchProblem& problem_;
  const SearchResult& result_;
  const CandidateOrder order_;
  Rerun rerun_;
  WinningChange machine_change_;  // that of rerun_; kNone: no machine
};

// Rounded up to what FormatBytes shows.
std::string AtLeast(double num_bytes) {
  double unit = 1;
  while (num_bytes >= 1024 * unit) unit *= 1024;
  if (unit == 1) return FormatBytes(static_cast<uint64_t>(std::ceil(num_bytes)));
  return FormatBytes(
      static_cast<uint64_t>(std::ceil(std::ceil(10 * num_bytes / unit) * unit / 10)));
}

}  // namespace

Machine WithChange(const Machine& machine, const WinningChange& change) {
  using Kind = WinningChange::Kind;
  ClusterSpec spec = machine.cluster.spec();
  for (DeviceKind& kind : spec.kinds) {
    const auto bytes = static_cast<int64_t>(change.amount);
    if (change.kind == Kind::kDeviceMemory) kind.memory_bytes = std::max(kind.memory_bytes, bytes);
    if (change.kind == Kind::kHostMemory && kind.host_memory_bytes > 0) {
      kind.host_memory_bytes = std::max(kind.host_memory_bytes, bytes);
    }
  }
  if (change.kind == Kind::kLinkRate) {
    for (NetworkLevel& level : spec.levels) {
      level.bytes_per_s =
          std::clamp(level.bytes_per_s * change.amount, kMinBytesPerS, kMaxBytesPerS);
    }
  }
  Machine changed = machine;
  absl::StatusOr<Cluster> cluster = Cluster::Create(std::move(spec));
  if (cluster.ok()) changed.cluster = *std::move(cluster);
  return changed;
}

absl::StatusOr<std::vector<WinningChange>> FindWinningChanges(
    const SearchProblem& problem, const SearchResult& result,
    absl::Span<const Candidate* const> others) {
  ASSIGN_OR_RETURN(StrategyWork work, StrategyWork::Create(problem));
  ChangeFinder finder(problem, result, Rerun(problem, std::move(work)));
  std::vector<WinningChange> changes;
  for (const Candidate* other : others) {
    changes.push_back(finder.Confirm(finder.Find(*other), *other));
  }
  return changes;
}

std::string Describe(const WinningChange& change) {
  using Kind = WinningChange::Kind;
  const std::string_view end = change.is_confirmed ? "" : " (not confirmed by a search)";
  switch (change.kind) {
    case Kind::kNone:
      return "";
    case Kind::kTies:
      return "-";
    case Kind::kNoMemory:
      return "nothing: with that memory another one wins";
    case Kind::kNoLinkRate:
      return "nothing: faster or slower links do not make it win";
    case Kind::kDeviceMemory:
      return StrCat("a device had ", AtLeast(change.amount), end);
    case Kind::kHostMemory:
      return StrCat("a device had ", AtLeast(change.amount), " on its host", end);
    case Kind::kLinkRate:
      return change.amount > 1 ? fmt::format("links were {:.2f} times as fast{}",
                                             std::ceil(100 * change.amount) / 100, end)
                               : fmt::format("links had {:.1f} % of their rate{}",
                                             std::floor(1000 * change.amount) / 10, end);
  }
  return "";
}

}  // namespace penstock::planner
