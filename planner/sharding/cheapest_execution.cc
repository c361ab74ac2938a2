#include "planner/sharding/cheapest_execution.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "planner/sharding/halo.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::Mesh;
using graph::Sharding;
using graph::ShardingRule;

// Choices that are compared for one node; beyond this many, only those that differ from the rules'
// in one axis.
constexpr size_t kMaxChoices = 64;

// Of the forward pass: what an execution that leaves all operands where they are counts, of the
// bytes that it moves.
constexpr double kOperandsStay = 0.5;

// Rounding is no saving.
constexpr double kLeastSaving = 1e-6;

constexpr int kUnsplit = -1;

class Chooser {
 public:
  Chooser(const Mesh& mesh, const ShardingRule& rule, absl::Span<const TensorType> operand_types,
          absl::Span<const TensorType> result_types, absl::Span<const Sharding> operands,
          absl::Span<const Sharding> results, absl::Span<const double> operand_shares,
          bool moves_again, ReshardCache* cache)
      : mesh_(mesh),
        rule_(rule),
        operand_types_(operand_types),
        result_types_(result_types),
        operands_(operands),
        results_(results),
        operand_shares_(operand_shares),
        moves_again_(moves_again),
        cache_(*cache) {}

  ExecutionSharding Run() {
    const FactorAxes by_rules = ChooseFactorAxes(mesh_, rule_, operand_types_, operands_, results_);
    AddChoice(ExecutionOf(mesh_, rule_, operands_.size(), results_.size(), by_rules));
    CollectLists();
    CollectOptions(by_rules);
    if (options_.empty()) return std::move(choices_[0].execution);
    least_parts_ = SpatialParts(by_rules);
    in_time_ = TemporalFactors(by_rules);
    if (choices_[0].least_bytes > 0 || Bytes(choices_[0].execution) > 0) TryAll();
    return std::move(choices_[FindCheapest()].execution);
  }

 private:
  bool IsTemporal(const AxisRef& axis) const { return graph::IsTemporal(mesh_, axis); }
  bool MaySplit(size_t factor) const { return rule_.MaySplit(static_cast<int>(factor)); }

  // What operands and results put on each factor: results first, as the rules read them.
  void CollectLists() {
    lists_.resize(rule_.factors.size());
    for (size_t factor = 0; factor < lists_.size(); ++factor) {
      if (!MaySplit(factor)) continue;
      const auto add = [&](const Sharding& sharding, const graph::TensorFactors& dims) {
        std::optional<std::vector<AxisRef>> axes =
            AxesOn(static_cast<int>(factor), sharding, dims, rule_);
        if (axes.has_value() && !axes->empty()) lists_[factor].push_back(*std::move(axes));
      };
      for (size_t r = 0; r < results_.size(); ++r) add(results_[r], rule_.results[r]);
      for (size_t o = 0; o < operands_.size(); ++o) add(operands_[o], rule_.operands[o]);
    }
  }

  // The factors among which each spatial axis has a choice.
  void CollectOptions(const FactorAxes& by_rules) {
    rules_choice_.assign(mesh_.axes.size(), kUnsplit);
    for (size_t factor = 0; factor < by_rules.size(); ++factor) {
      for (const AxisRef& axis : by_rules[factor]) {
        rules_choice_[static_cast<size_t>(axis.axis)] = static_cast<int>(factor);
      }
    }
    for (int a = 0; a < static_cast<int>(mesh_.axes.size()); ++a) {
      if (mesh_.axes[static_cast<size_t>(a)].is_temporal) continue;
      std::vector<int> factors;
      for (size_t factor = 0; factor < lists_.size(); ++factor) {
        const bool has_axis = std::any_of(
            lists_[factor].begin(), lists_[factor].end(), [&](const std::vector<AxisRef>& list) {
              return std::any_of(list.begin(), list.end(),
                                 [&](const AxisRef& axis) { return axis.axis == a; });
            });
        if (has_axis) factors.push_back(static_cast<int>(factor));
      }
      // Also one that the rules leave out: it would divide the work further.
      const bool is_left_out =
          factors.size() == 1 && rules_choice_[static_cast<size_t>(a)] != factors[0];
      if (factors.size() > 1 || is_left_out) options_.push_back({a, std::move(factors)});
    }
  }

  int64_t SpatialParts(const FactorAxes& chosen) const {
    int64_t parts = 1;
    for (const std::vector<AxisRef>& axes : chosen) {
      for (const AxisRef& axis : axes) parts *= IsTemporal(axis) ? 1 : axis.size;
    }
    return parts;
  }

  // The factor that each temporal axis splits.
  std::vector<int> TemporalFactors(const FactorAxes& chosen) const {
    std::vector<int> factors(mesh_.axes.size(), kUnsplit);
    for (size_t factor = 0; factor < chosen.size(); ++factor) {
      for (const AxisRef& axis : chosen[factor]) {
        if (IsTemporal(axis)) factors[static_cast<size_t>(axis.axis)] = static_cast<int>(factor);
      }
    }
    return factors;
  }

  int64_t PartsOf(const Sharding& sharding) const {
    int64_t parts = 1;
    for (const graph::DimSharding& dim : sharding.dims) {
      for (const AxisRef& axis : dim.axes) parts *= IsTemporal(axis) ? 1 : axis.size;
    }
    return parts;
  }

  // A device's bytes over links, of all operands and results.
  double Bytes(const ExecutionSharding& execution) const {
    return Bytes(
        execution,
        [this](const Sharding& from, const Sharding& to) { return cache_.Cost(from, to); },
        [](const TensorType& type, const Sharding& from, const Sharding& to) {
          return static_cast<double>(HaloBytes(type, HaloBase(from, to), to));
        });
  }

  // No more than Bytes, and found at once: what a device holds more of afterwards was gathered.
  double LeastBytes(const ExecutionSharding& execution) const {
    return Bytes(
        execution,
        [this](const Sharding& from, const Sharding& to) {
          return std::max(
              1 / static_cast<double>(PartsOf(to)) - 1 / static_cast<double>(PartsOf(from)), 0.0);
        },
        [](const TensorType&, const Sharding&, const Sharding&) { return 0.0; });
  }

  // `cost`: of a redistribution without exchanges, as a fraction of the tensor; `halo`: the bytes
  // of those.
  template <typename Cost, typename Halo>
  double Bytes(const ExecutionSharding& execution, const Cost& cost, const Halo& halo) const {
    const auto of = [&](const TensorType& type, const Sharding& from, const Sharding& needed) {
      const Sharding to = LeastNeeded(type.shape, from, needed);
      const double bytes = cost(from, to) * static_cast<double>(type.num_elements()) *
                           static_cast<double>(ByteSize(type.dtype));
      return to.has_windows() ? bytes + halo(type, from, to) : bytes;
    };
    double of_operands = 0;
    for (size_t o = 0; o < operands_.size(); ++o) {
      const bool is_shared =
          !operand_shares_.empty() && PartsOf(execution.operands[o]) < PartsOf(operands_[o]);
      of_operands += of(operand_types_[o], operands_[o], execution.operands[o]) *
                     (is_shared ? operand_shares_[o] : 1);
    }
    double of_results = 0;
    for (size_t r = 0; r < results_.size(); ++r) {
      of_results += of(result_types_[r], execution.results[r], results_[r]);
    }
    const bool stays = of_operands == 0 && moves_again_;
    return of_operands + (stays ? kOperandsStay : 1) * of_results;
  }

  // All combinations of the options, or, where there are too many, those one axis away.
  void TryAll() {
    size_t num_choices = 1;
    for (const Option& option : options_) {
      num_choices *= option.factors.size();
      if (num_choices > kMaxChoices) break;
    }
    std::vector<int> choice = rules_choice_;
    if (num_choices > kMaxChoices) {
      for (const Option& option : options_) {
        const int kept = choice[static_cast<size_t>(option.axis)];
        for (const int factor : option.factors) {
          choice[static_cast<size_t>(option.axis)] = factor;
          Try(choice);
        }
        choice[static_cast<size_t>(option.axis)] = kept;
      }
      return;
    }
    for (size_t i = 0; i < num_choices; ++i) {
      size_t rest = i;
      for (const Option& option : options_) {
        choice[static_cast<size_t>(option.axis)] = option.factors[rest % option.factors.size()];
        rest /= option.factors.size();
      }
      Try(choice);
    }
  }

  void Try(const std::vector<int>& choice) {
    FactorAxes chosen(rule_.factors.size());
    for (size_t factor = 0; factor < lists_.size(); ++factor) {
      std::vector<AxisRef> longest;
      for (const std::vector<AxisRef>& list : lists_[factor]) {
        std::vector<AxisRef> wanted;
        for (const AxisRef& axis : list) {
          const auto index = static_cast<size_t>(axis.axis);
          const int split = IsTemporal(axis) ? in_time_[index] : choice[index];
          if (split == static_cast<int>(factor)) wanted.push_back(axis);
        }
        if (Parts(wanted) > Parts(longest)) longest = std::move(wanted);
      }
      AssignAxes(mesh_, longest, static_cast<int>(factor), &chosen);
    }
    TrimAxes(mesh_, rule_, operand_types_, results_.size(), &chosen);
    if (SpatialParts(chosen) < least_parts_ || TemporalFactors(chosen) != in_time_) return;
    AddChoice(ExecutionOf(mesh_, rule_, operands_.size(), results_.size(), chosen));
  }

  void AddChoice(ExecutionSharding execution) {
    const double least_bytes = LeastBytes(execution);
    choices_.push_back({std::move(execution), least_bytes});
  }

  // The first of those that move the fewest bytes. Redistributions are planned for those only that
  // may be it, as that takes long.
  size_t FindCheapest() const {
    std::vector<size_t> order(choices_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [this](size_t a, size_t b) {
      return choices_[a].least_bytes < choices_[b].least_bytes;
    });
    double fewest = std::numeric_limits<double>::infinity();
    std::vector<std::pair<size_t, double>> known;
    for (const size_t i : order) {
      if (choices_[i].least_bytes > fewest * (1 + kLeastSaving)) break;
      known.emplace_back(i, Bytes(choices_[i].execution));
      fewest = std::min(fewest, known.back().second);
    }
    size_t first = choices_.size();
    for (const auto& [i, bytes] : known) {
      if (bytes <= fewest * (1 + kLeastSaving)) first = std::min(first, i);
    }
    return first;
  }

  static int64_t Parts(absl::Span<const AxisRef> axes) {
    int64_t parts = 1;
    for (const AxisRef& axis : axes) parts *= axis.size;
    return parts;
  }

  struct Choice {
    ExecutionSharding execution;
    double least_bytes = 0;
  };

  struct Option {
    int axis = 0;
    std::vector<int> factors;
  };

  const Mesh& mesh_;
  const ShardingRule& rule_;
  const absl::Span<const TensorType> operand_types_;
  const absl::Span<const TensorType> result_types_;
  const absl::Span<const Sharding> operands_;
  const absl::Span<const Sharding> results_;
  const absl::Span<const double> operand_shares_;  // or empty: each is charged in full
  const bool moves_again_;
  ReshardCache& cache_;
  std::vector<std::vector<std::vector<AxisRef>>> lists_;  // of each factor
  std::vector<Option> options_;
  std::vector<int> rules_choice_;  // by axis: the factor that the rules split over it
  std::vector<int> in_time_;       // by axis: the same of temporal ones
  int64_t least_parts_ = 1;
  std::vector<Choice> choices_;  // that of the rules first
};

}  // namespace

ExecutionSharding ChooseCheapestExecution(const Mesh& mesh, const ShardingRule& rule,
                                          absl::Span<const TensorType> operand_types,
                                          absl::Span<const TensorType> result_types,
                                          absl::Span<const Sharding> operands,
                                          absl::Span<const Sharding> results,
                                          absl::Span<const double> operand_shares, bool moves_again,
                                          ReshardCache* cache) {
  return Chooser(mesh, rule, operand_types, result_types, operands, results, operand_shares,
                 moves_again, cache)
      .Run();
}

}  // namespace penstock::planner
