#include "planner/search/sharding_network.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "graph/op.h"
#include "planner/lower/communication.h"
#include "planner/search/kernel_seconds.h"
#include "planner/search/stage_work.h"
#include "planner/sharding/halo.h"
#include "planner/sharding/reshard_cache.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::FactorKind;
using graph::Graph;
using graph::Mesh;
using graph::Node;
using graph::NodeId;
using graph::Phase;
using graph::Sharding;
using graph::ShardingRule;
using graph::ValueId;

constexpr double kForbidden = std::numeric_limits<double>::infinity();

// The seconds of redistributions, each planned once.
class Redistributions {
 public:
  Redistributions(const Machine& machine, const Mesh& mesh, int num_groups)
      : machine_(machine),
        mesh_(mesh),
        num_groups_(num_groups),
        kernels_(machine, 0, num_groups * mesh.num_devices()),
        chains_(mesh) {}

  double Seconds(const TensorType& type, const Sharding& from, const Sharding& needed) {
    const Sharding to = LeastNeeded(type.shape, from, needed);
    if (from == to) return 0;
    double seconds = 0;
    const Sharding* before = &from;
    for (const ReshardStep& step : chains_.Steps(from, to)) {
      const auto input = static_cast<double>(LargestTile(type, *before).num_bytes());
      const auto output = static_cast<double>(LargestTile(type, step.sharding).num_bytes());
      const std::optional<CollectiveKind> kind = CollectiveOf(step.op);
      if (ExchangedDim(*before, step.sharding) >= 0) {
        const auto bytes = static_cast<double>(HaloBytes(type, *before, step.sharding));
        seconds += PredictSeconds(
            machine_,
            GroupsFor(CollectiveKind::kPermute,
                      MovedAxes(CollectiveKind::kAllToAll, *before, step.sharding), 1),
            bytes);
        seconds += kernels_.Seconds("", type.dtype, {.flops = 0, .bytes = 2 * (bytes + output)});
      } else if (kind.has_value()) {
        const double bytes = *kind == CollectiveKind::kAllGather ? output : input;
        seconds += PredictSeconds(
            machine_, GroupsFor(*kind, MovedAxes(*kind, *before, step.sharding)), bytes);
      } else {
        seconds += kernels_.Seconds("", type.dtype, {.flops = 0, .bytes = 2 * output});
      }
      before = &step.sharding;
    }
    return seconds;
  }

 private:
  const CommunicatingGroups& GroupsFor(CollectiveKind kind, std::vector<AxisRef> axes,
                                       std::optional<int64_t> shift = std::nullopt) {
    const auto [it, is_new] = groups_.try_emplace({kind, axes, shift});
    if (is_new) it->second = GroupsOf(machine_, mesh_, kind, axes, num_groups_, shift);
    return it->second;
  }

  const Machine& machine_;
  const Mesh& mesh_;
  const int num_groups_;
  const KernelTimes kernels_;
  ReshardCache chains_;
  std::map<std::tuple<CollectiveKind, std::vector<AxisRef>, std::optional<int64_t>>,
           CommunicatingGroups>
      groups_;
};

class Builder {
 public:
  explicit Builder(const ShardingProblem& problem)
      : problem_(problem),
        graph_(*problem.graph),
        mesh_(graph_.meshes()[0]),
        kernels_(*problem.machine, 0, problem.num_groups * mesh_.num_devices()),
        redistributions_(*problem.machine, mesh_, problem.num_groups) {}

  ShardingNetwork Run() {
    users_ = graph_.Users();
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) rules_.push_back(RuleOf(graph_.node(id)));
    FindPartials();
    FindKept();
    network_.values.resize(static_cast<size_t>(graph_.num_values()));
    network_.variables.assign(static_cast<size_t>(graph_.num_values()), -1);
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
      for (const ValueId result : graph_.node(id).results) AddValue(result);
    }
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
      if (rules_[id].has_value()) AddNode(id);
    }
    network_.costs.weight_limit = problem_.memory_bytes;
    return std::move(network_);
  }

 private:
  // Where one free axis goes: a factor, a linear group of operands, or nowhere.
  struct Place {
    int factor = -1;
    int linear_group = -1;
  };

  std::vector<TensorType> Types(absl::Span<const ValueId> values) const {
    std::vector<TensorType> types;
    for (const ValueId value : values) types.push_back(graph_.value(value).type);
    return types;
  }

  std::optional<ShardingRule> RuleOf(const Node& node) const {
    if (node.op->has_declared_type()) return std::nullopt;
    const std::vector<TensorType> operands = Types(node.operands);
    const std::vector<TensorType> results = Types(node.results);
    return node.op->Rule({node.attributes, operands, results});
  }

  bool IsFixed(ValueId value) const {
    return !problem_.is_fixed.empty() && problem_.is_fixed[static_cast<size_t>(value)];
  }

  bool IsFixedDim(ValueId value, size_t dim) const {
    return !problem_.fixed_dims.empty() && problem_.fixed_dims[static_cast<size_t>(value)][dim];
  }

  bool HasFixedDim(absl::Span<const ValueId> values, absl::Span<const graph::TensorFactors> dims,
                   int factor) const {
    for (size_t v = 0; v < values.size(); ++v) {
      for (size_t d = 0; d < dims[v].size(); ++d) {
        const graph::DimFactors& factors = dims[v][d];
        if (IsFixedDim(values[v], d) &&
            std::find(factors.begin(), factors.end(), factor) != factors.end()) {
          return true;
        }
      }
    }
    return false;
  }

  // Values that may stay partial: results of a reduction, or of a linear operator all of whose
  // operands of a group may, that a linear operator reads.
  void FindPartials() {
    may_be_partial_.assign(static_cast<size_t>(graph_.num_values()), false);
    std::vector<bool> is_returned(static_cast<size_t>(graph_.num_values()), false);
    for (const graph::Return& result : graph_.returns()) {
      is_returned[static_cast<size_t>(result.value)] = true;
    }
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
      const Node& node = graph_.node(id);
      if (!rules_[id].has_value() || node.results.size() != 1) continue;
      const ValueId result = node.results[0];
      if (is_returned[static_cast<size_t>(result)] || IsFixed(result)) continue;
      bool may_be = false;
      for (const graph::Factor& factor : rules_[id]->factors) {
        may_be |=
            factor.kind == FactorKind::kReduction && factor.reduction == graph::Reduction::kSum;
      }
      for (const std::vector<int>& group : rules_[id]->linear) {
        may_be |= std::all_of(group.begin(), group.end(), [&](int operand) {
          return may_be_partial_[static_cast<size_t>(node.operands[static_cast<size_t>(operand)])];
        });
      }
      may_be_partial_[static_cast<size_t>(result)] = may_be && IsReadLinearly(result);
    }
  }

  bool IsReadLinearly(ValueId value) const {
    return std::any_of(users_[value].begin(), users_[value].end(), [&](NodeId user) {
      if (!rules_[user].has_value()) return false;
      const Node& node = graph_.node(user);
      return std::any_of(rules_[user]->linear.begin(), rules_[user]->linear.end(),
                         [&](const std::vector<int>& group) {
                           return std::any_of(group.begin(), group.end(), [&](int operand) {
                             return node.operands[static_cast<size_t>(operand)] == value;
                           });
                         });
    });
  }

  // What a device keeps: see the header. A reshape shares its operand's bytes.
  void FindKept() {
    is_kept_.assign(static_cast<size_t>(graph_.num_values()), false);
    for (ValueId value = graph_.num_values() - 1; value >= 0; --value) {
      const Node& producer = graph_.node(graph_.value(value).producer);
      bool is_kept = is_kept_[static_cast<size_t>(value)];
      if (producer.op->has_declared_type()) {
        is_kept = is_kept || producer.op->role() != graph::OpRole::kInput;
      }
      for (const NodeId user : users_[value]) {
        const Phase read = graph_.node(user).phase;
        is_kept |= producer.phase == Phase::kForward && problem_.is_read_backward.empty() &&
                   (read == Phase::kBackward || read == Phase::kWeightBackward);
        is_kept |= producer.phase != Phase::kForward && producer.phase != Phase::kUpdate &&
                   read == Phase::kUpdate;
      }
      if (!problem_.is_read_backward.empty()) {
        is_kept |= producer.phase == Phase::kForward &&
                   problem_.is_read_backward[static_cast<size_t>(value)];
      }
      if (producer.op->role() == graph::OpRole::kReshape) {
        is_kept_[static_cast<size_t>(producer.operands[0])] =
            is_kept_[static_cast<size_t>(producer.operands[0])] || is_kept;
        is_kept = false;
      }
      is_kept_[static_cast<size_t>(value)] = is_kept;
    }
  }

  // The options of a value: each free axis on each dimension that it divides, partial, or nowhere.
  void AddValue(ValueId value) {
    const TensorType& type = graph_.value(value).type;
    std::vector<Sharding> options = {ClosedSharding(mesh_, graph_.value(value))};
    const bool is_free = !IsFixed(value) && !type.shape.empty();
    for (size_t a = 0; is_free && a < problem_.free_axes.size(); ++a) {
      const AxisRef axis = graph::WholeAxis(mesh_, problem_.free_axes[a]);
      std::vector<Sharding> more;
      for (const Sharding& option : options) {
        more.push_back(option);
        for (size_t d = 0; d < option.dims.size(); ++d) {
          if (type.shape[d] % (graph::NumParts(option.dims[d]) * axis.size) != 0) continue;
          if (type.shape[d] == 0 || IsFixedDim(value, d)) continue;
          more.push_back(option);
          more.back().dims[d].axes.push_back(axis);
        }
        if (may_be_partial_[static_cast<size_t>(value)]) {
          more.push_back(option);
          AddPartial(axis, &more.back());
        }
      }
      options = std::move(more);
    }
    const graph::Value& v = graph_.value(value);
    const ValueId like = graph_.node(LikeOf(v.producer)).results[v.result_index];
    int& index = network_.variables[static_cast<size_t>(value)];
    index = network_.variables[static_cast<size_t>(like)];
    if (index < 0 || options != network_.values[static_cast<size_t>(like)]) {
      index = static_cast<int>(network_.costs.variables.size());
      CostNetwork::Variable& variable = network_.costs.variables.emplace_back();
      for (const Sharding& option : options) {
        variable.costs.push_back(option.is_partial() ? kPartialSeconds : 0);
      }
    }
    std::vector<double>& weights = network_.costs.variables[static_cast<size_t>(index)].weights;
    if (is_kept_[static_cast<size_t>(value)]) {
      weights.resize(options.size(), 0);
      const Node& producer = graph_.node(v.producer);
      const bool is_activation =
          producer.phase == Phase::kForward && !producer.op->has_declared_type();
      const double share =
          problem_.kept_share.empty() ? 1 : problem_.kept_share[static_cast<size_t>(value)];
      const double part =
          share * TimesOf(v.producer) * (is_activation ? problem_.part_of_activations : 1);
      for (size_t i = 0; i < options.size(); ++i) {
        weights[i] += part * static_cast<double>(LargestTile(type, options[i]).num_bytes());
      }
    }
    network_.values[static_cast<size_t>(value)] = std::move(options);
  }

  NodeId LikeOf(NodeId id) const { return problem_.alike.empty() ? id : problem_.alike[id]; }
  double TimesOf(NodeId id) const { return problem_.times.empty() ? 1 : problem_.times[id]; }

  static void AddPartial(const AxisRef& axis, Sharding* sharding) {
    for (graph::PartialSpec& partial : sharding->partials) {
      if (partial.reduction != graph::Reduction::kSum) continue;
      partial.axes.push_back(axis);
      std::sort(partial.axes.begin(), partial.axes.end());
      return;
    }
    sharding->partials.push_back({graph::Reduction::kSum, {axis}});
  }

  void AddNode(NodeId id) {
    const Node& node = graph_.node(id);
    const std::vector<ExecutionSharding> options = Executions(id);
    const auto [it, is_new] =
        node_variables_.try_emplace(LikeOf(id), static_cast<int>(network_.costs.variables.size()));
    int index = it->second;
    if (!is_new &&
        network_.costs.variables[static_cast<size_t>(index)].costs.size() != options.size()) {
      index = static_cast<int>(network_.costs.variables.size());
    }
    if (index == static_cast<int>(network_.costs.variables.size())) {
      network_.costs.variables.push_back({std::vector<double>(options.size(), 0), {}});
    }
    const double times = TimesOf(id);
    for (size_t i = 0; i < options.size(); ++i) {
      network_.costs.variables[static_cast<size_t>(index)].costs[i] +=
          times * KernelSeconds(node, options[i]);
    }
    for (size_t o = 0; o < node.operands.size(); ++o) {
      // What is assigned has the sharding of the state.
      const bool is_written = o == 0 && node.op->role() == graph::OpRole::kAssign;
      const TensorType& type = graph_.value(node.operands[o]).type;
      AddPair(index, times, node.operands[o], options,
              [&](const ExecutionSharding& execution, const Sharding& kept) {
                if (is_written) return kept == execution.operands[o] ? 0 : kForbidden;
                return Seconds(type, kept, execution.operands[o]);
              });
    }
    for (size_t r = 0; r < node.results.size(); ++r) {
      const TensorType& type = graph_.value(node.results[r]).type;
      AddPair(index, times, node.results[r], options,
              [&](const ExecutionSharding& execution, const Sharding& kept) {
                return Seconds(type, execution.results[r], kept);
              });
    }
  }

  // Whether the node sums over a dimension that two of its operands have.
  static bool IsProduct(const ShardingRule& rule) {
    for (int factor = 0; factor < static_cast<int>(rule.factors.size()); ++factor) {
      if (rule.factors[static_cast<size_t>(factor)].kind != FactorKind::kReduction) continue;
      const auto has_factor = [&](const graph::TensorFactors& dims) {
        return std::any_of(dims.begin(), dims.end(), [&](const graph::DimFactors& dim) {
          return std::find(dim.begin(), dim.end(), factor) != dim.end();
        });
      };
      if (std::count_if(rule.operands.begin(), rule.operands.end(), has_factor) > 1) return true;
    }
    return false;
  }

  // All combinations of places for the free axes.
  std::vector<ExecutionSharding> Executions(NodeId id) const {
    const Node& node = graph_.node(id);
    const ShardingRule& rule = *rules_[id];
    const std::vector<TensorType> types = Types(node.operands);
    const std::vector<Sharding> operands = ClosedShardings(node.operands);
    const std::vector<Sharding> results = ClosedShardings(node.results);
    std::vector<Place> places = {{}};
    for (int factor = 0; factor < static_cast<int>(rule.factors.size()); ++factor) {
      if (!rule.MaySplit(factor)) continue;
      if (rule.factors[static_cast<size_t>(factor)].kind == FactorKind::kRoll) continue;
      if (HasFixedDim(node.operands, rule.operands, factor)) continue;
      if (HasFixedDim(node.results, rule.results, factor)) continue;
      places.push_back({factor, -1});
    }
    for (int group = 0; group < static_cast<int>(rule.linear.size()); ++group) {
      const std::vector<int>& members = rule.linear[static_cast<size_t>(group)];
      if (std::all_of(members.begin(), members.end(), [&](int operand) {
            return may_be_partial_[static_cast<size_t>(
                node.operands[static_cast<size_t>(operand)])];
          })) {
        places.push_back({-1, group});
      }
    }
    const FactorAxes by_rules = ChooseFactorAxes(mesh_, rule, types, operands, results);
    std::vector<ExecutionSharding> executions;
    std::vector<size_t> choice(problem_.free_axes.size(), 0);
    // Of a product, those that split it over most axes.
    const bool is_product = IsProduct(rule);
    size_t most_split = 0;
    while (true) {
      const auto num_split = static_cast<size_t>(std::count_if(
          choice.begin(), choice.end(), [&](size_t place) { return places[place].factor >= 0; }));
      if (!is_product || num_split >= most_split) {
        const size_t before = executions.size();
        AddExecution(node, rule, types, by_rules, places, choice, &executions);
        if (is_product && executions.size() > before && num_split > most_split) {
          executions.erase(executions.begin(),
                           executions.begin() + static_cast<std::ptrdiff_t>(before));
          most_split = num_split;
        }
      }
      size_t a = 0;
      while (a < choice.size() && ++choice[a] == places.size()) choice[a++] = 0;
      if (a == choice.size()) return executions;
    }
  }

  void AddExecution(const Node& node, const ShardingRule& rule, absl::Span<const TensorType> types,
                    const FactorAxes& by_rules, absl::Span<const Place> places,
                    absl::Span<const size_t> choice,
                    std::vector<ExecutionSharding>* executions) const {
    FactorAxes chosen = by_rules;
    for (size_t a = 0; a < choice.size(); ++a) {
      const Place& place = places[choice[a]];
      if (place.factor < 0) continue;
      const AxisRef axis = graph::WholeAxis(mesh_, problem_.free_axes[a]);
      std::vector<AxisRef>& axes = chosen[static_cast<size_t>(place.factor)];
      axes.push_back(axis);
      int64_t parts = 1;
      for (const AxisRef& other : axes) parts *= other.size;
      const int64_t size = rule.factors[static_cast<size_t>(place.factor)].size;
      if (size == 0 || size % parts != 0) return;
    }
    FactorAxes trimmed = chosen;
    TrimAxes(mesh_, rule, types, node.results.size(), &trimmed);
    if (trimmed != chosen) return;
    ExecutionSharding execution =
        ExecutionOf(mesh_, rule, node.operands.size(), node.results.size(), chosen);
    for (size_t a = 0; a < choice.size(); ++a) {
      const Place& place = places[choice[a]];
      if (place.linear_group < 0) continue;
      const AxisRef axis = graph::WholeAxis(mesh_, problem_.free_axes[a]);
      for (const int operand : rule.linear[static_cast<size_t>(place.linear_group)]) {
        AddPartial(axis, &execution.operands[static_cast<size_t>(operand)]);
      }
      for (Sharding& result : execution.results) AddPartial(axis, &result);
    }
    executions->push_back(std::move(execution));
  }

  std::vector<Sharding> ClosedShardings(absl::Span<const ValueId> values) const {
    std::vector<Sharding> shardings;
    for (const ValueId value : values) {
      shardings.push_back(ClosedSharding(mesh_, graph_.value(value)));
    }
    return shardings;
  }

  double KernelSeconds(const Node& node, const ExecutionSharding& execution) const {
    std::vector<TensorType> operands = Types(node.operands);
    std::vector<TensorType> results = Types(node.results);
    for (size_t o = 0; o < operands.size(); ++o) {
      operands[o] = LargestTile(operands[o], execution.operands[o]);
    }
    for (size_t r = 0; r < results.size(); ++r) {
      results[r] = LargestTile(results[r], execution.results[r]);
    }
    // A reshape in place, and assigning what is there already.
    if (node.op->role() == graph::OpRole::kReshape || node.op->role() == graph::OpRole::kAssign) {
      return 0;
    }
    if (results.empty()) return 0;
    return kernels_.Seconds(node.op->name(), KernelTimes::ComputeType(operands, results),
                            node.op->Cost({node.attributes, operands, results}));
  }

  // `seconds_of`: an execution and a sharding in which the value is kept.
  template <typename SecondsOf>
  void AddPair(int node_variable, double times, ValueId value,
               absl::Span<const ExecutionSharding> executions, const SecondsOf& seconds_of) {
    CostNetwork::Pair pair;
    pair.first = node_variable;
    pair.second = network_.variables[static_cast<size_t>(value)];
    for (const ExecutionSharding& execution : executions) {
      for (const Sharding& kept : network_.values[static_cast<size_t>(value)]) {
        pair.costs.push_back(times * seconds_of(execution, kept));
      }
    }
    network_.costs.pairs.push_back(std::move(pair));
  }

  // Nothing makes a value partial but the node that it comes from.
  double Seconds(const TensorType& type, const Sharding& from, const Sharding& to) {
    if (to.is_partial()) return from == to ? 0 : kForbidden;
    return redistributions_.Seconds(type, from, to);
  }

  const ShardingProblem& problem_;
  const Graph& graph_;
  const Mesh& mesh_;
  const KernelTimes kernels_;
  Redistributions redistributions_;
  std::vector<std::vector<NodeId>> users_;
  std::vector<std::optional<ShardingRule>> rules_;  // by node
  std::vector<bool> may_be_partial_;                // by value
  std::vector<bool> is_kept_;                       // by value
  std::map<NodeId, int> node_variables_;            // by the first of alike nodes
  ShardingNetwork network_;
};

}  // namespace

double RedistributionSeconds(const Machine& machine, const Mesh& mesh, int num_groups,
                             const TensorType& type, const Sharding& from, const Sharding& to) {
  return Redistributions(machine, mesh, num_groups).Seconds(type, from, to);
}

ShardingNetwork BuildShardingNetwork(const ShardingProblem& problem) {
  return Builder(problem).Run();
}

}  // namespace penstock::planner
