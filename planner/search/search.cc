#include "planner/search/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/counted.h"
#include "base/divisors.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/search/enumerate_strategies.h"
#include "planner/search/rank_candidates.h"
#include "planner/search/schedules.h"
#include "planner/search/strategy_bounds.h"
#include "planner/search/strategy_work.h"

namespace penstock::planner {
namespace {

// A bound that is this close to the best time is no reason to skip a strategy: rounding.
constexpr double kSlack = 1 - 1e-9;
constexpr double kNever = std::numeric_limits<double>::infinity();
// So many that fit are known with their steps, where there are as many.
constexpr size_t kNumNextBest = 5;
// If nothing fits, so many of the most divided strategies are estimated.
constexpr size_t kMaxHopeless = 16;
// So many of the fastest are estimated with their options too.
constexpr size_t kMaxRefined = 24;
// And so many of those that split sequences: their lowered graphs are larger.
constexpr int kMaxRefinedContext = 4;
// The cuts of so many of the fastest pipelines are refined, where memory limits them.
constexpr int kMaxRecut = 4;
// Recomputation adds work, and lets a pipeline be cut otherwise.
constexpr double kLeastWithRecompute = 0.98;

// Whether more of dp and less of cp would divide as much: it costs less.
bool CouldSplitTheBatch(const Strategy& strategy, int64_t microbatches, int64_t batch) {
  const int64_t sequences = batch / (strategy.dp * microbatches);
  return strategy.cp > 1 && std::gcd(sequences, strategy.cp) > 1;
}

// A new option takes a case in TryDividing, TryRecompute, TryOffload or TryOptions, a place in
// Simplicity and, if it divides states, a factor in StrategyBounds::StateBytes.
class Searcher {
 public:
  Searcher(const SearchProblem& problem, StrategyWork work, StrategyBounds bounds)
      : problem_(problem), order_(problem), work_(std::move(work)), bounds_(std::move(bounds)) {}

  absl::StatusOr<SearchResult> Run() {
    for (const RepeatedLayers& run : work_.model().runs()) result_.num_layers += run.num_copies;
    largest_cp_ = LargestContext(problem_.hints, *problem_.forward);
    ListCandidates();
    if (open_.empty()) return NoneDivides();
    for (const Open& open : open_) Try(open);
    if (!problem_.strategy.has_value()) {
      TryDividing();
      TryRecompute();
      TryOffload();
      TryOptions();
    }
    if (best_s_ == kNever) TryHopeless();
    if (kept_.empty()) return failure_.ok() ? NoneDivides() : failure_;
    return Finish();
  }

 private:
  // A candidate that was not looked at yet.
  struct Open {
    Strategy strategy;
    int64_t microbatches = 1;
    double bound_s = 0;
  };

  void ListCandidates() {
    const int64_t batch = BatchOf(*problem_.forward);
    std::vector<Strategy> strategies = {problem_.strategy.value_or(Strategy())};
    if (!problem_.strategy.has_value()) {
      SearchLimits limits = LimitsOfSchedules(problem_);
      if (!HasHintsFor("ep")) limits.ep = 1;
      // As many parts of a sequence as give each device some of the batch, which may have few
      // divisors that the devices have too.
      const int64_t parts =
          batch > 0 ? problem_.num_devices / std::gcd(problem_.num_devices, batch) : 1;
      limits.cp = std::min({limits.cp, largest_cp_, parts});
      strategies = EnumerateStrategies(problem_.num_devices, limits);
      for (Strategy& strategy : strategies) {
        strategy.splits_by_cost = strategy.tp > 1 && !HasHintsFor("tp");
        strategy.recompute = problem_.recompute.value_or(Recompute::kNone);
      }
    }
    for (const Strategy& strategy : strategies) {
      if (SchedulesOf(strategy).empty()) continue;
      const absl::Status places = work_.CheckPlaces(strategy);
      if (!places.ok()) {
        Refuse(places);
        continue;
      }
      std::vector<int64_t> counts = {problem_.microbatches};
      if (problem_.microbatches == 0) {
        counts = {1};
        if (batch > 0 && batch % strategy.dp == 0) {
          const auto divisors = DivisorsOf(batch / strategy.dp);
          counts.assign(divisors.begin(), divisors.end());
        }
      }
      for (const int64_t microbatches : counts) {
        if (problem_.microbatches == 0 && microbatches > problem_.limits.microbatches) break;
        if (!problem_.strategy.has_value() && CouldSplitTheBatch(strategy, microbatches, batch)) {
          ++result_.num_bounded;
          continue;
        }
        // The short model divides as the whole one does; there is room for the stages.
        Strategy of_stage = strategy;
        of_stage.pp = 1;
        of_stage.vpp = 1;
        const absl::Status status =
            CheckStrategy(of_stage, microbatches, problem_.hints, work_.model().graph());
        if (!status.ok()) {
          Refuse(status);
          continue;
        }
        open_.push_back({strategy, microbatches,
                         bounds_.StepSeconds(strategy, microbatches, MaySplit(strategy))});
        bounds_.NoteFewest(strategy, microbatches);
      }
    }
    SortByBound(&open_);
  }

  bool HasHintsFor(std::string_view axis) const {
    return std::any_of(problem_.hints.begin(), problem_.hints.end(),
                       [&](const graph::SplitHint& hint) { return hint.IsFor(axis); });
  }

  std::vector<const Policy*> SchedulesOf(const Strategy& strategy) const {
    return planner::SchedulesOf(problem_, strategy);
  }

  static void SortByBound(std::vector<Open>* open) {
    std::stable_sort(open->begin(), open->end(), [](const Open& a, const Open& b) {
      return std::tuple(a.bound_s, Simplicity(a.strategy, a.microbatches)) <
             std::tuple(b.bound_s, Simplicity(b.strategy, b.microbatches));
    });
  }

  void Refuse(const absl::Status& status) {
    ++result_.num_refused;
    last_refusal_ = status;
  }

  // Of steps that are of interest: the first schedule wins ties, and tells which strategies come
  // next.
  double LimitOfFirst() const { return std::max(best_s_ * (1 + kTieTolerance), next_best_s_); }

  // Whether any of the strategy's schedules splits backward phases.
  bool MaySplit(const Strategy& strategy) const {
    const std::vector<const Policy*> schedules = SchedulesOf(strategy);
    return std::any_of(schedules.begin(), schedules.end(),
                       [&](const Policy* policy) { return SplitsBackward(problem_, *policy); });
  }

  void Try(const Open& open) {
    const Strategy& strategy = open.strategy;
    // One that ties may be simpler.
    if (best_s_ * (1 + kTieTolerance) <= open.bound_s * kSlack) {
      ++result_.num_bounded;
      return;
    }
    // Without a pipeline, more micro-batches only save memory, unless smaller kernels are faster.
    const auto fitted = least_fitting_.find(ToString(strategy));
    if (strategy.pp == 1 && fitted != least_fitting_.end() && open.microbatches > fitted->second) {
      ++result_.num_bounded;
      return;
    }
    if (bounds_.IsTooLarge(strategy)) {
      ++result_.num_too_large;
      hopeless_.push_back(open);
      too_large_.push_back(open);
      return;
    }
    if (LimitOfFirst() != kNever &&
        LimitOfFirst() <=
            bounds_.CommunicatingSeconds(strategy, open.microbatches, MaySplit(strategy), &work_)) {
      ++result_.num_bounded;
      return;
    }
    EstimateOrRefuse(open);
  }

  bool HasSequences() const {
    return problem_.limits.sp &&
           std::any_of(problem_.hints.begin(), problem_.hints.end(),
                       [](const graph::SplitHint& hint) { return hint.is_sequence; });
  }

  // Splits sequences instead of the batch, if single ones are all that a micro-batch has.
  bool SplitSequences(Open* open) const {
    Strategy& strategy = open->strategy;
    const int64_t batch = BatchOf(*problem_.forward);
    const auto divisors = DivisorsOf(strategy.dp);
    if (divisors.size() < 2 || strategy.ep > 1 || problem_.microbatches > 0 ||
        strategy.dp * open->microbatches != batch ||
        strategy.cp * divisors[1] > problem_.limits.cp ||
        largest_cp_ % (strategy.cp * divisors[1]) != 0 ||
        open->microbatches * divisors[1] > problem_.limits.microbatches) {
      return false;
    }
    strategy.cp *= divisors[1];
    strategy.dp /= divisors[1];
    open->microbatches *= divisors[1];
    return true;
  }

  // What does not fit is tried with more of its state divided over its replicas, as far as it
  // takes, and then with its activations split over sequences: beside tp, then over cp.
  void TryDividing() {
    std::vector<Open> open = std::move(too_large_);
    while (!open.empty()) {
      too_large_.clear();
      SortByBound(&open);
      for (Open& each : open) {
        never_fit_.push_back(each);
        if (each.strategy.zero < problem_.limits.zero && each.strategy.num_replicas() > 1) {
          ++each.strategy.zero;
        } else if (!each.strategy.sp && each.strategy.tp > 1 && HasSequences() &&
                   !each.strategy.splits_by_cost) {
          each.strategy.sp = true;
        } else if (!SplitSequences(&each)) {
          continue;
        }
        Try(each);
      }
      open = std::move(too_large_);
    }
  }

  // What does not fit with those either computes activations again instead of keeping them.
  void TryRecompute() {
    std::vector<Open> open = std::move(never_fit_);
    for (Open& each : open) each.bound_s *= kLeastWithRecompute / kLeastWithOptions;
    while (!open.empty()) {
      too_large_.clear();
      SortByBound(&open);
      for (Open& each : open) {
        if (bounds_.IsTooLarge(each.strategy) || !RecomputeMore(&each.strategy)) {
          never_fit_.push_back(each);
        } else if (work_.CheckPlaces(each.strategy).ok()) {
          Try(each);
        }
      }
      open = std::move(too_large_);
    }
  }

  bool RecomputeMore(Strategy* strategy) const {
    if (problem_.recompute.has_value()) return false;
    if (strategy->recompute >= problem_.limits.recompute) return false;
    strategy->recompute =
        strategy->recompute == Recompute::kNone ? Recompute::kSelective : Recompute::kFull;
    return true;
  }

  // Nor with that: the optimiser's states go to the host, and at last activations too.
  void TryOffload() {
    const std::vector<DeviceKind>& kinds = problem_.machine->cluster.spec().kinds;
    if (!problem_.limits.offload ||
        std::any_of(kinds.begin(), kinds.end(),
                    [](const DeviceKind& kind) { return !HasHostLink(kind); })) {
      return;
    }
    std::vector<Open> open = std::move(never_fit_);
    while (!open.empty()) {
      too_large_.clear();
      SortByBound(&open);
      for (Open& each : open) {
        if (each.strategy.offload == Offload::kNone) {
          each.strategy.offload = Offload::kStates;
        } else if (!RecomputeMore(&each.strategy)) {
          if (each.strategy.offload == Offload::kAll) continue;
          each.strategy.offload = Offload::kAll;
        }
        if (work_.CheckPlaces(each.strategy).ok()) Try(each);
      }
      open = std::move(too_large_);
    }
  }

  // The fastest are tried with options that seldom make a difference: each update on one replica
  // instead of all, and activations split over sequences.
  void TryOptions() {
    std::vector<Candidate> fitting;
    for (const auto& [name, candidate] : kept_) {
      if (candidate.estimate.fits()) fitting.push_back(candidate);
    }
    std::sort(fitting.begin(), fitting.end(), [this](const Candidate& a, const Candidate& b) {
      if (order_.Seconds(a) != order_.Seconds(b)) return order_.Seconds(a) < order_.Seconds(b);
      return order_.IsSimpler(a, b);
    });
    // Of a strategy with several schedules, the fastest.
    std::vector<Candidate> fastest;
    std::set<std::string> is_known;
    for (Candidate& candidate : fitting) {
      if (fastest.size() == kMaxRefined) break;
      if (!is_known.insert(ToString(candidate.strategy)).second) continue;
      fastest.push_back(std::move(candidate));
    }
    int num_with_context = 0;
    for (const Candidate& candidate : fastest) {
      if (candidate.strategy.cp > 1 && ++num_with_context > kMaxRefinedContext) continue;
      const bool may_divide = problem_.limits.zero > 0 && candidate.strategy.zero == 0 &&
                              candidate.strategy.num_replicas() > 1;
      const bool may_split = HasSequences() && !candidate.strategy.sp &&
                             candidate.strategy.tp > 1 && !candidate.strategy.splits_by_cost;
      const bool may_go_by_heads = candidate.strategy.cp > 1 && !candidate.strategy.splits_by_cost;
      for (int options = 1; options < 8; ++options) {
        const bool divides = (options & 1) != 0;
        const bool splits = (options & 2) != 0;
        const bool goes_by_heads = (options & 4) != 0;
        if ((divides && !may_divide) || (splits && !may_split) ||
            (goes_by_heads && !may_go_by_heads)) {
          continue;
        }
        Open open = {candidate.strategy, candidate.microbatches, 0};
        if (divides) open.strategy.zero = 1;
        if (splits) open.strategy.sp = true;
        if (goes_by_heads) open.strategy.ulysses = true;
        EstimateOrRefuse(open);
      }
    }
  }

  // If nothing fits, what comes nearest is among those that divide states most.
  void TryHopeless() {
    std::stable_sort(hopeless_.begin(), hopeless_.end(), [this](const Open& a, const Open& b) {
      return std::tuple(bounds_.StateBytes(a.strategy), -a.microbatches) <
             std::tuple(bounds_.StateBytes(b.strategy), -b.microbatches);
    });
    if (hopeless_.size() > kMaxHopeless) hopeless_.resize(kMaxHopeless);
    const int num_too_large = result_.num_too_large;  // they are counted already
    for (const Open& open : hopeless_) EstimateOrRefuse(open);
    result_.num_too_large = num_too_large;
  }

  // One that cannot be lowered is refused like one that does not divide the model.
  void EstimateOrRefuse(const Open& open) {
    const absl::Status status = Estimate(open);
    if (status.ok()) return;
    Refuse(status);
    failure_ = status;
  }

  absl::Status Estimate(const Open& open) {
    const std::vector<const Policy*> schedules = SchedulesOf(open.strategy);
    absl::StatusOr<StrategyWork::Cutting> cutting = absl::UnknownError("not lowered yet");
    LeastSeconds least_s;
    bool has_failed = false;      // the first schedule, with more micro-batches
    bool is_too_large = false;    // by the first schedule
    bool fits = false;            // by any
    double too_large_s = kNever;  // of the fastest that does not fit
    for (const Policy* policy : schedules) {
      // With fewer micro-batches, a schedule needs more.
      const auto failed = most_failing_.find({ToString(open.strategy), policy});
      if (failed != most_failing_.end() && open.microbatches < failed->second) {
        ++result_.num_too_large;
        has_failed = has_failed || policy == schedules[0];
        continue;
      }
      if (!cutting.ok()) {
        cutting = work_.CuttingOf(open.strategy, open.microbatches);
        if (absl::IsResourceExhausted(cutting.status())) {
          NoteTooLarge(open, cutting.status());
          return absl::OkStatus();
        }
        if (!cutting.ok()) return cutting.status();
      }
      const absl::StatusOr<Tried> tried = EstimateBy(policy, *cutting, open, &least_s);
      if (!tried.ok()) {
        if (schedules.size() == 1) return tried.status();
        Refuse(tried.status());
      } else if (tried->fits) {
        fits = true;
      } else if (tried->too_large_s.has_value()) {
        is_too_large = is_too_large || policy == schedules[0];
        too_large_s = std::min(too_large_s, *tried->too_large_s);
      }
    }
    // A schedule that keeps less may fit. Where the first one does not, options may do better.
    if (too_large_s != kNever && !has_failed && (is_too_large || !fits)) {
      too_large_.push_back({open.strategy, open.microbatches, kLeastWithOptions * too_large_s});
    }
    return absl::OkStatus();
  }

  // Whatever is split by cost, it does not fit, by any schedule.
  void NoteTooLarge(const Open& open, const absl::Status& status) {
    for (const Policy* policy : SchedulesOf(open.strategy)) {
      int64_t& most = most_failing_[{ToString(open.strategy), policy}];
      most = std::max(most, open.microbatches);
    }
    ++result_.num_too_large;
    too_large_.push_back(open);
    failure_ = status;
  }

  // Of a strategy, what no schedule with such a placement and, or not, split backward phases can
  // bring below.
  using LeastSeconds = std::map<std::pair<Placement, bool>, double>;

  struct Tried {
    bool fits = false;
    // Of what does not fit: the step. Also where another cut would fit, but take too long.
    std::optional<double> too_large_s;
  };
  absl::StatusOr<Tried> EstimateBy(const Policy* policy, const StrategyWork::Cutting& cutting,
                                   const Open& open, LeastSeconds* least_s) {
    const double limit_s =
        policy == problem_.policies[0] ? LimitOfFirst() : best_s_ / (1 + kLeastScheduleGain);
    const std::pair phases(PlacementOf(*policy, 1, 1).placement, SplitsBackward(problem_, *policy));
    const auto known = least_s->find(phases);
    if (known != least_s->end() && known->second >= limit_s) {
      ++result_.num_bounded;
      return Tried();
    }
    std::optional<double> too_large_s;
    ASSIGN_OR_RETURN(Candidate candidate,
                     EstimateCandidate(problem_, *problem_.machine, cutting,
                                       {open.strategy, open.microbatches, policy}, &links_, limit_s,
                                       &too_large_s));
    if (candidate.estimate.is_above_limit) {
      ++result_.num_bounded;
      // Where memory forces a cut, another schedule may need less.
      if (!too_large_s.has_value()) (*least_s)[phases] = candidate.estimate.step_s;
      if (open.strategy.pp == 1) NeedsNoMore(ToString(open.strategy), open.microbatches);
      return Tried{false, too_large_s};
    }
    const double step_s = candidate.estimate.step_s;
    const double seconds = order_.Seconds(candidate);
    const bool fits = candidate.estimate.fits();
    const std::string name = ToString(open.strategy);
    ++result_.num_estimated;
    if (fits) {
      best_s_ = std::min(best_s_, seconds);
      fitting_s_.insert(seconds);
      if (fitting_s_.size() > kNumNextBest) fitting_s_.erase(std::prev(fitting_s_.end()));
      if (fitting_s_.size() == kNumNextBest) next_best_s_ = *fitting_s_.rbegin();
      if (open.strategy.pp == 1 && !GainedByMore(name, step_s)) {
        NeedsNoMore(name, open.microbatches);
      }
    } else {
      ++result_.num_too_large;
      int64_t& most = most_failing_[{name, policy}];
      most = std::max(most, open.microbatches);
    }
    Keep(std::move(candidate));
    return fits ? Tried{true, std::nullopt} : Tried{false, step_s};
  }

  // Whether a strategy without a pipeline may gain by still more micro-batches: where kernels were
  // measured, tensors that caches hold may make smaller ones faster for their size. So it may as
  // long as it has gained.
  bool GainedByMore(const std::string& strategy, double step_s) {
    if (!bounds_.has_measured_kernels()) return false;
    const auto [it, is_first] = least_s_.try_emplace(strategy, step_s);
    const bool gained = is_first || step_s < it->second;
    it->second = std::min(it->second, step_s);
    return gained;
  }

  // It fits with so many micro-batches and gains nothing by more, or is too slow without a
  // pipeline.
  void NeedsNoMore(const std::string& strategy, int64_t microbatches) {
    int64_t& least = least_fitting_.try_emplace(strategy, microbatches).first->second;
    least = std::min(least, microbatches);
  }

  // Of a strategy and schedule, the best number of micro-batches is kept.
  void Keep(Candidate candidate) {
    const auto [it, is_new] = kept_.try_emplace(
        {ToString(candidate.strategy), order_.PlaceOf(candidate.policy)}, candidate);
    if (is_new) return;
    Candidate& other = it->second;
    const auto rank = [](const Candidate& c) {
      return std::tuple(c.estimate.excess_bytes(), c.estimate.step_s, c.microbatches);
    };
    if (rank(candidate) < rank(other)) other = std::move(candidate);
  }

  absl::Status NoneDivides() const {
    return absl::InvalidArgumentError(
        StrCat("no strategy fits ", Counted(problem_.num_devices, "device"),
               "; the last one tried: ", ToStd(last_refusal_.message())));
  }

  // Of the best pipelines, cuts near those that memory forces are tried.
  absl::Status Refine(std::vector<Candidate>* candidates) {
    int num_refined = 0;
    for (Candidate& candidate : *candidates) {
      const Strategy& strategy = candidate.strategy;
      if (!candidate.estimate.fits() || num_refined == kMaxRecut) break;
      if (strategy.pp == 1 || strategy.vpp > 1) continue;
      ASSIGN_OR_RETURN(const StrategyWork::Cutting cutting,
                       work_.CuttingOf(strategy, candidate.microbatches));
      ASSIGN_OR_RETURN(const bool is_refined,
                       RefineCandidate(problem_, *problem_.machine, cutting, &links_, &candidate));
      if (is_refined) ++num_refined;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<SearchResult> Finish() {
    std::vector<Candidate> candidates;
    for (auto& [name, candidate] : kept_) candidates.push_back(std::move(candidate));
    const auto is_better = [this](const Candidate& a, const Candidate& b) {
      return order_.IsBetter(a, b);
    };
    std::sort(candidates.begin(), candidates.end(), is_better);
    RETURN_IF_ERROR(Refine(&candidates));
    std::sort(candidates.begin(), candidates.end(), is_better);
    const size_t best = order_.IndexOfBest(candidates);
    result_.best = std::move(candidates[best]);
    candidates.erase(candidates.begin() + static_cast<std::ptrdiff_t>(best));
    result_.others = std::move(candidates);
    RETURN_IF_ERROR(CompareSchedules());
    result_.num_lowered = work_.num_lowered();
    result_.num_lowered_nodes = work_.num_lowered_nodes();
    return std::move(result_);
  }

  // What the best strategy takes by each of the other schedules.
  absl::Status CompareSchedules() {
    const Candidate& best = result_.best;
    ASSIGN_OR_RETURN(const StrategyWork::Cutting cutting,
                     work_.CuttingOf(best.strategy, best.microbatches));
    for (const Policy* policy : SchedulesOf(best.strategy)) {
      if (policy == best.policy) continue;
      absl::StatusOr<Candidate> other =
          EstimateCandidate(problem_, *problem_.machine, cutting,
                            {best.strategy, best.microbatches, policy}, &links_);
      if (other.ok()) result_.other_schedules.push_back(*std::move(other));  // else refused
    }
    std::stable_sort(
        result_.other_schedules.begin(), result_.other_schedules.end(),
        [this](const Candidate& a, const Candidate& b) { return order_.IsBetter(a, b); });
    return absl::OkStatus();
  }

  const SearchProblem& problem_;
  const CandidateOrder order_;
  StrategyWork work_;
  StrategyBounds bounds_;
  LinkCache links_;
  int64_t largest_cp_ = 1;
  std::vector<Open> open_;
  absl::Status last_refusal_ = absl::InvalidArgumentError("there must be at least one device");
  absl::Status failure_;             // of an estimate, such as that of a policy that orders nothing
  double best_s_ = kNever;           // of those that fit
  std::multiset<double> fitting_s_;  // steps of the best of those that fit
  double next_best_s_ = kNever;      // the last of them, if there are as many as wanted
  std::map<std::string, int64_t> least_fitting_;  // micro-batches, by strategy without a pipeline
  std::map<std::string, double> least_s_;         // steps of those that fit, likewise
  std::map<std::pair<std::string, const Policy*>, int64_t> most_failing_;
  std::vector<Open> hopeless_;
  std::vector<Open> too_large_;
  std::vector<Open> never_fit_;                                // whatever zero and sp
  std::map<std::pair<std::string, int64_t>, Candidate> kept_;  // by strategy and schedule
  SearchResult result_;
};

}  // namespace

absl::StatusOr<SearchResult> FindStrategy(const SearchProblem& problem) {
  for (const Policy* policy : problem.policies) {
    if (policy->needs().placement != Placement::kBidirectional) continue;
    return absl::UnimplementedError(
        StrCat("policy '", policy->name(),
               "' runs each stage on two groups of devices, which the "
               "search for a strategy does not know; give a strategy such as pp=4"));
  }
  ASSIGN_OR_RETURN(StrategyWork work, StrategyWork::Create(problem));
  ASSIGN_OR_RETURN(StrategyBounds bounds, StrategyBounds::Create(*problem.machine, &work));
  return Searcher(problem, std::move(work), std::move(bounds)).Run();
}

}  // namespace penstock::planner
