#include "planner/search/search.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/counted.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/search/cut_stages.h"
#include "planner/search/enumerate_strategies.h"
#include "planner/search/folded_work.h"
#include "planner/search/kernel_seconds.h"
#include "planner/search/split_by_cost.h"
#include "planner/search/stage_work.h"
#include "planner/strategy/zero.h"

namespace penstock::planner {
namespace {

// A bound that is this close to the best time is no reason to skip a strategy: rounding.
constexpr double kSlack = 1 - 1e-9;
constexpr double kNever = std::numeric_limits<double>::infinity();
// If nothing fits, so many of the most divided strategies are estimated.
constexpr size_t kMaxHopeless = 16;
// So many of the fastest are estimated with their options too.
constexpr size_t kMaxRefined = 24;
// And so many of those that split sequences: their lowered graphs are larger.
constexpr int kMaxRefinedContext = 4;
// The cuts of so many of the fastest pipelines are refined, where memory limits them.
constexpr int kMaxRecut = 4;
// Options divide memory, and of the time at most the update: a strategy with them takes no less
// than this part of what it takes without.
constexpr double kLeastWithOptions = 0.9;
// Recomputation adds work, and lets a pipeline be cut otherwise.
constexpr double kLeastWithRecompute = 0.98;

bool IsSimpler(const Candidate& a, const Candidate& b) {
  return Simplicity(a.strategy, a.microbatches) < Simplicity(b.strategy, b.microbatches);
}

// Whether more of dp and less of cp would divide as much: it costs less.
bool CouldSplitTheBatch(const Strategy& strategy, int64_t microbatches, int64_t batch) {
  const int64_t sequences = batch / (strategy.dp * microbatches);
  return strategy.cp > 1 && std::gcd(sequences, strategy.cp) > 1;
}

// A new option takes a case in TryDividing, TryRecompute, TryOffload or TryOptions, a place in
// Simplicity and, if it divides states, a factor in LeastStateBytes.
class Searcher {
 public:
  explicit Searcher(const SearchProblem& problem) : problem_(problem) {}

  absl::StatusOr<SearchResult> Run() {
    ASSIGN_OR_RETURN(model_, FoldedModel::Create(*problem_.ops, *problem_.forward, problem_.hints,
                                                 problem_.training));
    result_.num_layers = model_->layers().num_copies;
    if (!WorkOf({}, 1).ok()) {
      // Its forwards and backwards cannot be cut there.
      ASSIGN_OR_RETURN(
          model_, FoldedModel::CreateUncut(*problem_.ops, *problem_.forward, problem_.training));
      whole_layers_ = model_;
      works_.clear();
    }
    RETURN_IF_ERROR(MeasureSerial());
    largest_cp_ = std::min(LargestContext(problem_.hints, *problem_.forward), problem_.limits.cp);
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

  // The model on one device.
  absl::Status MeasureSerial() {
    serial_s_ = kNever;
    const auto num_devices = static_cast<int>(problem_.machine->cluster.num_devices());
    const std::vector<int> alike = FirstAlikeGroups(problem_.machine->cluster, 1, num_devices);
    for (int device = 0; device < num_devices; ++device) {
      if (alike[device] != device) continue;
      ASSIGN_OR_RETURN(const ModelWork* short_work, WorkOf({}, 1, device));
      const ModelWork serial = model_->Unfold(*short_work);
      double seconds = 0;
      parameter_bytes_ = 0;
      optimizer_bytes_ = 0;
      for (const StageWork& stage : serial.stages) {
        seconds += stage.forward.compute_s + stage.backward.compute_s;
        parameter_bytes_ += stage.memory.parameters;
        optimizer_bytes_ += stage.memory.optimizer;
      }
      serial_s_ = std::min(serial_s_, seconds);
    }
    return absl::OkStatus();
  }

  void ListCandidates() {
    const int64_t batch = BatchOf(*problem_.forward);
    std::vector<Strategy> strategies = {problem_.strategy.value_or(Strategy())};
    if (!problem_.strategy.has_value()) {
      SearchLimits limits = problem_.limits;
      const PolicyNeeds needs = problem_.policy->needs();
      limits.least_vpp = std::max<int64_t>(limits.least_vpp, needs.min_chunks);
      limits.vpp = std::min<int64_t>(limits.vpp, needs.max_chunks);
      if (!HasHintsFor("ep")) limits.ep = 1;
      // As many parts of a sequence as give each device some of the batch.
      const int64_t parts = batch > 0 ? (problem_.num_devices + batch - 1) / batch : 1;
      limits.cp = std::min({limits.cp, largest_cp_, parts});
      strategies = EnumerateStrategies(problem_.num_devices, limits);
      for (Strategy& strategy : strategies) {
        strategy.splits_by_cost = strategy.tp > 1 && !HasHintsFor("tp");
      }
    }
    for (const Strategy& strategy : strategies) {
      const absl::Status places = CheckPlaces(strategy);
      if (!places.ok()) {
        Refuse(places);
        continue;
      }
      std::vector<int64_t> counts = {problem_.microbatches};
      if (problem_.microbatches == 0) {
        counts = {1};
        if (batch > 0 && batch % strategy.dp == 0) counts = Divisors(batch / strategy.dp);
      }
      for (const int64_t microbatches : counts) {
        if (microbatches > problem_.limits.microbatches) break;
        if (!problem_.strategy.has_value() && CouldSplitTheBatch(strategy, microbatches, batch)) {
          ++result_.num_bounded;
          continue;
        }
        // The short model divides as the whole one does; there is room for the stages.
        Strategy of_stage = strategy;
        of_stage.pp = 1;
        of_stage.vpp = 1;
        const absl::Status status =
            CheckStrategy(of_stage, microbatches, problem_.hints, model_->graph());
        if (!status.ok()) {
          Refuse(status);
          continue;
        }
        open_.push_back({strategy, microbatches, Bound(strategy, microbatches)});
      }
    }
    SortByBound(&open_);
  }

  bool HasHintsFor(std::string_view axis) const {
    return std::any_of(problem_.hints.begin(), problem_.hints.end(),
                       [&](const graph::SplitHint& hint) { return hint.IsFor(axis); });
  }

  // The model whose segments the strategy's stages are made of.
  absl::StatusOr<const FoldedModel*> ModelOf(const Strategy& strategy) {
    if (strategy.recompute != Recompute::kFull) return &*model_;
    if (!whole_layers_.has_value()) {
      ASSIGN_OR_RETURN(whole_layers_,
                       FoldedModel::Create(*problem_.ops, *problem_.forward, problem_.hints,
                                           problem_.training, /*keeps_layers=*/true));
    }
    return &*whole_layers_;
  }

  // Whether there are as many places to cut as the strategy has stages.
  absl::Status CheckPlaces(const Strategy& strategy) {
    ASSIGN_OR_RETURN(const FoldedModel* model, ModelOf(strategy));
    if (strategy.num_stages() <= model->num_segments()) return absl::OkStatus();
    return absl::InvalidArgumentError(StrCat(ToString(strategy), ": the model has ",
                                             model->num_segments(), " places for stages"));
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

  // The work divided evenly, without communication, with the bubble of a pipeline that has as many
  // micro-batches in flight as it wants. On shared cores, a pipeline's bubble may cost nothing.
  double Bound(const Strategy& strategy, int64_t microbatches) const {
    double bubble = 1;
    if (problem_.machine->core_groups.empty()) {
      bubble +=
          static_cast<double>(strategy.pp - 1) / static_cast<double>(microbatches * strategy.vpp);
    }
    return serial_s_ / static_cast<double>(strategy.num_devices()) * bubble;
  }

  // Of parameters and states, if all are divided as far as the strategy can.
  double LeastStateBytes(const Strategy& strategy) const {
    const auto parts = static_cast<double>(strategy.tp * strategy.pp * strategy.ep);
    const auto replicas = static_cast<double>(strategy.num_replicas() / strategy.ep);
    return parameter_bytes_ / (strategy.zero == kMaxZero ? parts * replicas : parts) +
           (OffloadsStates(strategy.offload)
                ? 0
                : optimizer_bytes_ / (strategy.zero > 0 ? parts * replicas : parts));
  }

  // The work of the short model's segments on the devices of one group.
  absl::StatusOr<const ModelWork*> WorkOf(Strategy strategy, int64_t microbatches, int group = 0) {
    const int64_t num_groups = strategy.pp;
    strategy.pp = 1;
    strategy.vpp = 1;
    const auto key = std::tuple(ToString(strategy), num_groups, microbatches, group);
    if (const auto it = works_.find(key); it != works_.end()) return &it->second;
    ASSIGN_OR_RETURN(const FoldedModel* model, ModelOf(strategy));
    graph::Graph graph = model->graph();
    RETURN_IF_ERROR(ApplyStrategy(strategy, microbatches, problem_.hints, graph));
    if (strategy.splits_by_cost) {
      SplitOptions options;
      options.machine = problem_.machine;
      options.num_groups = static_cast<int>(num_groups);
      options.layers = model->kept_layers();
      options.num_layers = model->layers().num_copies;
      RETURN_IF_ERROR(SplitByCost(strategy, options, graph));
    }
    RETURN_IF_ERROR(problem_.lower(graph));
    WorkOptions options;
    options.num_groups = static_cast<int>(num_groups);
    options.group = group;
    ASSIGN_OR_RETURN(ModelWork work, MeasureWork(graph, *problem_.machine, options));
    return &works_.emplace(key, std::move(work)).first->second;
  }

  void Try(const Open& open) {
    const Strategy& strategy = open.strategy;
    if (best_s_ <= open.bound_s * kSlack) {
      ++result_.num_bounded;
      return;
    }
    // Without a pipeline, more micro-batches only save memory; with one, fewer need more.
    const auto fitted = least_fitting_.find(ToString(strategy));
    if (strategy.pp == 1 && fitted != least_fitting_.end() && open.microbatches > fitted->second) {
      ++result_.num_bounded;
      return;
    }
    const auto failed = most_failing_.find(ToString(strategy));
    if (failed != most_failing_.end() && open.microbatches < failed->second) {
      ++result_.num_too_large;
      return;
    }
    if (IsHopeless(strategy)) {
      ++result_.num_too_large;
      hopeless_.push_back(open);
      too_large_.push_back(open);
      return;
    }
    EstimateOrRefuse(open);
  }

  // Whether the states alone do not fit.
  bool IsHopeless(const Strategy& strategy) const {
    const int64_t memory_bytes = problem_.machine->cluster.KindOf(0).memory_bytes;
    return problem_.machine->cluster.spec().kinds.size() == 1 &&
           LeastStateBytes(strategy) > static_cast<double>(memory_bytes);
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
    const std::vector<int64_t> divisors = Divisors(strategy.dp);
    if (divisors.size() < 2 || strategy.ep > 1 || problem_.microbatches > 0 ||
        strategy.dp * open->microbatches != batch ||
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
        if (IsHopeless(each.strategy) || !RecomputeMore(&each.strategy)) {
          never_fit_.push_back(each);
        } else if (CheckPlaces(each.strategy).ok()) {
          Try(each);
        }
      }
      open = std::move(too_large_);
    }
  }

  bool RecomputeMore(Strategy* strategy) const {
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
                    [](const DeviceKind& kind) { return kind.host_link_bytes_per_s == 0; })) {
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
        if (CheckPlaces(each.strategy).ok()) Try(each);
      }
      open = std::move(too_large_);
    }
  }

  // The fastest are tried with options that seldom make a difference: each update on one replica
  // instead of all, and activations split over sequences.
  void TryOptions() {
    std::vector<Candidate> fastest;
    for (const auto& [name, candidate] : kept_) {
      if (candidate.estimate.fits()) fastest.push_back(candidate);
    }
    std::sort(fastest.begin(), fastest.end(), [](const Candidate& a, const Candidate& b) {
      if (a.estimate.step_s != b.estimate.step_s) return a.estimate.step_s < b.estimate.step_s;
      return IsSimpler(a, b);
    });
    if (fastest.size() > kMaxRefined) fastest.resize(kMaxRefined);
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
      return std::tuple(LeastStateBytes(a.strategy), -a.microbatches) <
             std::tuple(LeastStateBytes(b.strategy), -b.microbatches);
    });
    if (hopeless_.size() > kMaxHopeless) hopeless_.resize(kMaxHopeless);
    for (const Open& open : hopeless_) {
      EstimateOrRefuse(open);
      --result_.num_too_large;  // counted already
    }
  }

  // What there is to cut into stages.
  struct Cutting {
    const FoldedModel* model = nullptr;
    std::map<int, ModelWork> works;  // on the devices of a group that differs from those before it
    std::vector<const ModelWork*> groups;
    EstimateOptions options;

    std::vector<int> ToOperators(const std::vector<int>& segments) const {
      std::vector<int> operators;
      for (const int segment : segments) operators.push_back(model->starts()[segment]);
      return operators;
    }
  };

  absl::StatusOr<Cutting> CuttingOf(const Strategy& strategy, int64_t microbatches) {
    Cutting cutting;
    ASSIGN_OR_RETURN(cutting.model, ModelOf(strategy));
    const std::vector<int> alike =
        FirstAlikeGroups(problem_.machine->cluster, strategy.num_devices() / strategy.pp,
                         static_cast<int>(strategy.pp));
    for (const int group : alike) {
      if (cutting.works.contains(group)) continue;
      ASSIGN_OR_RETURN(const ModelWork* short_work, WorkOf(strategy, microbatches, group));
      cutting.works.emplace(group, cutting.model->Unfold(*short_work));
    }
    for (const int group : alike) cutting.groups.push_back(&cutting.works.at(group));
    cutting.options.policy = problem_.policy;
    cutting.options.chunks_per_group = static_cast<int>(strategy.vpp);
    cutting.options.bucket_bytes = problem_.bucket_bytes;
    return cutting;
  }

  // One that cannot be lowered is refused like one that does not divide the model.
  void EstimateOrRefuse(const Open& open) {
    const absl::Status status = Estimate(open);
    if (status.ok()) return;
    Refuse(status);
    failure_ = status;
  }

  absl::Status Estimate(const Open& open) {
    const Strategy& strategy = open.strategy;
    ASSIGN_OR_RETURN(const Cutting cutting, CuttingOf(strategy, open.microbatches));
    ASSIGN_OR_RETURN(StageCut cut, CutStages(cutting.groups, *problem_.machine, cutting.options));
    Candidate candidate;
    candidate.strategy = strategy;
    candidate.microbatches = open.microbatches;
    candidate.stage_starts = cutting.ToOperators(cut.starts);
    candidate.estimate = std::move(cut.estimate);
    ++result_.num_estimated;
    if (candidate.estimate.fits()) {
      best_s_ = std::min(best_s_, candidate.estimate.step_s);
      int64_t& least =
          least_fitting_.try_emplace(ToString(strategy), open.microbatches).first->second;
      least = std::min(least, open.microbatches);
    } else {
      ++result_.num_too_large;
      too_large_.push_back(
          {strategy, open.microbatches, kLeastWithOptions * candidate.estimate.step_s});
      int64_t& most = most_failing_[ToString(strategy)];
      most = std::max(most, open.microbatches);
    }
    Keep(std::move(candidate));
    return absl::OkStatus();
  }

  // How far a candidate is from fitting: 0 if it does.
  static double ExcessBytes(const Candidate& candidate) {
    double excess = 0;
    for (const GroupEstimate& group : candidate.estimate.groups) {
      excess = std::max(excess, -group.spare_bytes());
      if (!group.fits_on_host()) {
        excess = std::max(excess, group.memory.host - static_cast<double>(group.host_limit_bytes));
      }
    }
    return excess;
  }

  // Of a strategy, the best number of micro-batches is kept.
  void Keep(Candidate candidate) {
    const auto [it, is_new] = kept_.try_emplace(ToString(candidate.strategy), candidate);
    if (is_new) return;
    Candidate& other = it->second;
    const auto rank = [](const Candidate& c) {
      return std::tuple(ExcessBytes(c), c.estimate.step_s, c.microbatches);
    };
    if (rank(candidate) < rank(other)) other = std::move(candidate);
  }

  absl::Status NoneDivides() const {
    return absl::InvalidArgumentError(
        StrCat("no strategy fits ", Counted(problem_.num_devices, "device"),
               "; the last one tried: ", ToStd(last_refusal_.message())));
  }

  static bool IsBetter(const Candidate& a, const Candidate& b) {
    const double excess_a = ExcessBytes(a);
    const double excess_b = ExcessBytes(b);
    if ((excess_a > 0 || excess_b > 0) && excess_a != excess_b) return excess_a < excess_b;
    if (a.estimate.step_s != b.estimate.step_s) return a.estimate.step_s < b.estimate.step_s;
    return IsSimpler(a, b);
  }

  // Cuts that memory forces are those with the fastest slowest stage, which is not all that makes a
  // step fast: of the best pipelines, others near them are tried.
  absl::Status Refine(std::vector<Candidate>* candidates) {
    int num_refined = 0;
    for (Candidate& candidate : *candidates) {
      const Strategy& strategy = candidate.strategy;
      if (!candidate.estimate.fits() || num_refined == kMaxRecut) break;
      if (strategy.pp == 1 || strategy.vpp > 1) continue;
      ASSIGN_OR_RETURN(const Cutting cutting, CuttingOf(strategy, candidate.microbatches));
      ASSIGN_OR_RETURN(StageCut cut, CutStages(cutting.groups, *problem_.machine, cutting.options));
      if (!cut.is_limited) continue;
      ++num_refined;
      RETURN_IF_ERROR(RefineStages(cutting.groups, *problem_.machine, cutting.options, &cut));
      candidate.stage_starts = cutting.ToOperators(cut.starts);
      candidate.estimate = std::move(cut.estimate);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<SearchResult> Finish() {
    std::vector<Candidate> candidates;
    for (auto& [name, candidate] : kept_) candidates.push_back(std::move(candidate));
    std::sort(candidates.begin(), candidates.end(), IsBetter);
    RETURN_IF_ERROR(Refine(&candidates));
    std::sort(candidates.begin(), candidates.end(), IsBetter);
    // Of those that are as fast as the best, the simplest.
    const double limit = candidates[0].estimate.step_s * (1 + kTieTolerance);
    size_t best = 0;
    for (size_t i = 1; i < candidates.size() && best_s_ != kNever; ++i) {
      const bool ties = candidates[i].estimate.fits() && candidates[i].estimate.step_s <= limit;
      if (ties && IsSimpler(candidates[i], candidates[best])) best = i;
    }
    result_.best = std::move(candidates[best]);
    candidates.erase(candidates.begin() + static_cast<std::ptrdiff_t>(best));
    result_.others = std::move(candidates);
    return std::move(result_);
  }

  const SearchProblem& problem_;
  std::optional<FoldedModel> model_;
  std::optional<FoldedModel> whole_layers_;  // with stages of whole layers, for recompute=full
  double serial_s_ = 0;                      // of all phases on one device of the fastest kind
  double parameter_bytes_ = 0;
  double optimizer_bytes_ = 0;
  int64_t largest_cp_ = 1;
  std::vector<Open> open_;
  absl::Status last_refusal_ = absl::InvalidArgumentError("there must be at least one device");
  absl::Status failure_;  // of an estimate, such as that of a policy that orders nothing
  std::map<std::tuple<std::string, int64_t, int64_t, int>, ModelWork> works_;
  double best_s_ = kNever;                        // of those that fit
  std::map<std::string, int64_t> least_fitting_;  // micro-batches, by strategy
  std::map<std::string, int64_t> most_failing_;
  std::vector<Open> hopeless_;
  std::vector<Open> too_large_;
  std::vector<Open> never_fit_;  // whatever zero and sp
  std::map<std::string, Candidate> kept_;
  SearchResult result_;
};

}  // namespace

absl::StatusOr<SearchResult> FindStrategy(const SearchProblem& problem) {
  return Searcher(problem).Run();
}

}  // namespace penstock::planner
