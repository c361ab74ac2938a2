#include "planner/search/choose_shardings.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "graph/models/model.h"
#include "graph/op.h"
#include "graph/text.h"
#include "graph/training.h"
#include "planner/cluster/presets.h"
#include "planner/search/alike_nodes.h"
#include "planner/search/kernel_seconds.h"
#include "planner/sharding/propagate.h"
#include "planner/strategy/repeated_layers.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::FactorKind;
using graph::Graph;
using graph::Mesh;
using graph::Sharding;
using graph::ValueId;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kRandomProblems = 12;
#else
constexpr int kRandomProblems = 220;
#endif
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Machine SmallCluster(int64_t num_devices, double bytes_per_s, double flops_per_s) {
  ClusterSpec spec;
  spec.name = "small";
  DeviceKind& kind = spec.kinds.emplace_back();
  kind.name = "device";
  kind.memory_bytes = int64_t{1} << 40;
  kind.memory_bytes_per_s = 1e10;
  kind.peak_flops_per_s.fill(flops_per_s);
  NetworkLevel level;
  level.name = "node";
  level.fan_out = {num_devices};
  level.bytes_per_s = bytes_per_s;
  level.latency_s = 1e-6;
  spec.levels.push_back(level);
  return {*Cluster::Create(std::move(spec))};
}

// The least cost by enumeration. It shares with the solver what a kernel and a redistribution cost,
// and nothing else: it has its own list of the shardings of a value and of the executions of a
// node, and tries all combinations.
class Enumerator {
 public:
  Enumerator(const Graph& graph, const Machine& machine)
      : graph_(graph),
        mesh_(graph.meshes()[0]),
        machine_(machine),
        kernels_(machine, 0, mesh_.num_devices()) {
    users_ = graph.Users();
    for (ValueId value = 0; value < graph.num_values(); ++value) {
      options_.push_back(OptionsOf(value));
    }
    for (int id = 0; id < graph.num_nodes(); ++id) tables_.push_back(TableOf(id));
  }

  double num_assignments() const {
    double count = 1;
    for (const std::vector<Sharding>& options : options_) {
      count *= static_cast<double>(options.size());
    }
    return count;
  }

  // The least bytes that a device can keep, and the most.
  std::pair<double, double> KeptBytes() const {
    double least = 0;
    double most = 0;
    for (ValueId value = 0; value < graph_.num_values(); ++value) {
      double least_here = kInfinity;
      double most_here = 0;
      for (const Sharding& option : options_[value]) {
        least_here = std::min(least_here, Kept(value, option));
        most_here = std::max(most_here, Kept(value, option));
      }
      least += least_here;
      most += most_here;
    }
    return {least, most};
  }

  double Best(double memory_bytes) {
    memory_bytes_ = memory_bytes;
    best_ = kInfinity;
    choice_.assign(options_.size(), 0);
    Extend(0, 0, 0);
    return best_;
  }

 private:
  // What one axis does to a tensor: splits a dimension (>= 0), leaves it alone, or leaves it
  // partial.
  static constexpr int kAlone = -1;
  static constexpr int kPartial = -2;

  static TensorType Tile(TensorType type, const Sharding& sharding) {
    for (size_t d = 0; d < type.shape.size(); ++d) {
      for (const AxisRef& axis : sharding.dims[d].axes) type.shape[d] /= axis.size;
    }
    return type;
  }

  Sharding Make(size_t rank, const std::vector<int>& actions) const {
    Sharding sharding = Sharding::Replicated(static_cast<int>(rank));
    std::vector<AxisRef> partial;
    for (int a = 0; a < static_cast<int>(actions.size()); ++a) {
      const AxisRef axis = graph::WholeAxis(mesh_, a);
      const int action = actions[static_cast<size_t>(a)];
      if (action >= 0) sharding.dims[static_cast<size_t>(action)].axes.push_back(axis);
      if (action == kPartial) partial.push_back(axis);
    }
    if (!partial.empty()) sharding.partials.push_back({graph::Reduction::kSum, partial});
    return sharding;
  }

  template <typename Use>
  void ForEach(const std::vector<int>& actions, const Use& use) const {
    std::vector<int> chosen(mesh_.axes.size());
    const std::function<void(size_t)> extend = [&](size_t a) {
      if (a == chosen.size()) {
        use(chosen);
        return;
      }
      for (const int action : actions) {
        chosen[a] = action;
        extend(a + 1);
      }
    };
    extend(0);
  }

  bool IsPartialOfUse(ValueId value) const {
    const graph::Node& producer = graph_.node(graph_.value(value).producer);
    for (const graph::Return& result : graph_.returns()) {
      if (result.value == value) return false;
    }
    if (producer.operands.empty() || producer.results.size() != 1) return false;
    for (const int user : users_[value]) {
      const graph::Node& node = graph_.node(user);
      for (const std::vector<int>& group : RuleOf(user).linear) {
        for (const int operand : group) {
          if (node.operands[static_cast<size_t>(operand)] == value) return true;
        }
      }
    }
    return false;
  }

  graph::ShardingRule RuleOf(int id) const {
    const graph::Node& node = graph_.node(id);
    std::vector<TensorType> operands;
    std::vector<TensorType> results;
    for (const ValueId value : node.operands) operands.push_back(graph_.value(value).type);
    for (const ValueId value : node.results) results.push_back(graph_.value(value).type);
    return node.op->Rule({node.attributes, operands, results});
  }

  std::vector<Sharding> OptionsOf(ValueId value) const {
    const Shape& shape = graph_.value(value).type.shape;
    std::vector<int> actions = {kAlone};
    for (int d = 0; d < static_cast<int>(shape.size()); ++d) actions.push_back(d);
    if (IsPartialOfUse(value) && !shape.empty()) actions.push_back(kPartial);
    std::vector<Sharding> options;
    ForEach(actions, [&](const std::vector<int>& chosen) {
      Sharding sharding = Make(shape.size(), chosen);
      for (size_t d = 0; d < shape.size(); ++d) {
        if (shape[d] % graph::NumParts(sharding.dims[d]) != 0) return;
      }
      options.push_back(std::move(sharding));
    });
    return options;
  }

  double Kept(ValueId value, const Sharding& sharding) const {
    const graph::Node& producer = graph_.node(graph_.value(value).producer);
    bool is_kept = producer.op->name() == "parameter" || producer.op->name() == "state";
    for (const int user : users_[value]) {
      const graph::Phase reads = graph_.node(user).phase;
      const bool reads_backward =
          reads == graph::Phase::kBackward || reads == graph::Phase::kWeightBackward;
      const bool made_backward = producer.phase == graph::Phase::kBackward ||
                                 producer.phase == graph::Phase::kWeightBackward;
      is_kept |= producer.phase == graph::Phase::kForward && reads_backward;
      is_kept |= made_backward && reads == graph::Phase::kUpdate;
    }
    if (!is_kept) return 0;
    return static_cast<double>(Tile(graph_.value(value).type, sharding).num_bytes());
  }

  double Move(const TensorType& type, const Sharding& from, const Sharding& to) {
    if (from == to) return 0;
    if (to.is_partial()) return kInfinity;
    const auto key = std::tuple(ToString(type), ToString(mesh_, from), ToString(mesh_, to));
    const auto [it, is_new] = moves_.try_emplace(key);
    if (is_new) it->second = RedistributionSeconds(machine_, mesh_, 1, type, from, to);
    return it->second;
  }

  // Of a node, by the options of its operands and results, major first: the cheapest execution.
  std::vector<double> TableOf(int id) {
    const graph::Node& node = graph_.node(id);
    if (node.operands.empty() && node.op->has_declared_type()) return {};
    const graph::ShardingRule rule = RuleOf(id);
    std::vector<ValueId> values(node.operands.begin(), node.operands.end());
    values.insert(values.end(), node.results.begin(), node.results.end());
    size_t size = 1;
    for (const ValueId value : values) size *= options_[value].size();
    std::vector<double> table(size, kInfinity);

    // An axis splits a factor, or all operands of a linear group are partial over it.
    std::vector<int> actions = {kAlone};
    const auto num_factors = static_cast<int>(rule.factors.size());
    for (int f = 0; f < num_factors; ++f) {
      const FactorKind kind = rule.factors[static_cast<size_t>(f)].kind;
      if (kind == FactorKind::kPassThrough || kind == FactorKind::kReduction) actions.push_back(f);
    }
    for (size_t g = 0; g < rule.linear.size(); ++g) {
      actions.push_back(num_factors + static_cast<int>(g));
    }
    // Products are split over as many axes as can be.
    const bool is_product = node.op->name() == "matmul" || node.op->name() == "einsum";
    const auto num_split = [&](const std::vector<int>& chosen) {
      return std::count_if(chosen.begin(), chosen.end(),
                           [&](int choice) { return choice >= 0 && choice < num_factors; });
    };
    std::ptrdiff_t most = 0;
    ForEach(actions, [&](const std::vector<int>& chosen) {
      if (Divides(rule, chosen)) most = std::max(most, num_split(chosen));
    });
    ForEach(actions, [&](const std::vector<int>& chosen) {
      if (!Divides(rule, chosen) || (is_product && num_split(chosen) < most)) return;
      AddExecution(node, rule, values, chosen, &table);
    });
    return table;
  }

  bool Divides(const graph::ShardingRule& rule, const std::vector<int>& chosen) const {
    std::vector<int64_t> parts(rule.factors.size(), 1);
    for (size_t a = 0; a < chosen.size(); ++a) {
      if (chosen[a] >= 0 && chosen[a] < static_cast<int>(parts.size())) {
        parts[static_cast<size_t>(chosen[a])] *= mesh_.axes[a].size;
      }
    }
    for (size_t f = 0; f < parts.size(); ++f) {
      if (rule.factors[f].size % parts[f] != 0) return false;
    }
    return true;
  }

  void AddExecution(const graph::Node& node, const graph::ShardingRule& rule,
                    const std::vector<ValueId>& values, const std::vector<int>& chosen,
                    std::vector<double>* table) {
    const size_t num_operands = node.operands.size();
    std::vector<Sharding> shardings;
    std::vector<TensorType> tiles;
    for (size_t v = 0; v < values.size(); ++v) {
      const graph::TensorFactors& dims =
          v < num_operands ? rule.operands[v] : rule.results[v - num_operands];
      std::vector<int> actions;
      for (const int choice : chosen) {
        const auto num_factors = static_cast<int>(rule.factors.size());
        if (choice >= num_factors) {
          const std::vector<int>& group = rule.linear[static_cast<size_t>(choice - num_factors)];
          const bool is_in_group =
              v >= num_operands || std::count(group.begin(), group.end(), static_cast<int>(v)) > 0;
          actions.push_back(is_in_group ? kPartial : kAlone);
          continue;
        }
        int action = kAlone;
        for (int d = 0; choice >= 0 && d < static_cast<int>(dims.size()); ++d) {
          for (const int factor : dims[static_cast<size_t>(d)]) {
            if (factor == choice) action = d;
          }
        }
        const bool is_sum =
            choice >= 0 && v >= num_operands && action == kAlone &&
            rule.factors[static_cast<size_t>(choice)].kind == FactorKind::kReduction;
        actions.push_back(is_sum ? kPartial : action);
      }
      shardings.push_back(Make(dims.size(), actions));
      tiles.push_back(Tile(graph_.value(values[v]).type, shardings.back()));
    }
    const absl::Span<const TensorType> all(tiles);
    const auto operands = all.subspan(0, num_operands);
    const auto results = all.subspan(num_operands);
    const bool is_free = node.op->name() == "reshape" || node.op->name() == "assign";
    const double kernel =
        is_free || results.empty()
            ? 0
            : kernels_.Seconds(node.op->name(), KernelTimes::ComputeType(operands, results),
                               node.op->Cost({node.attributes, operands, results}));
    std::vector<size_t> index(values.size(), 0);
    for (double& least : *table) {
      double cost = kernel;
      for (size_t v = 0; v < values.size(); ++v) {
        const Sharding& kept = options_[values[v]][index[v]];
        const TensorType& type = graph_.value(values[v]).type;
        cost += v < num_operands ? Move(type, kept, shardings[v]) : Move(type, shardings[v], kept);
      }
      least = std::min(least, cost);
      for (size_t v = values.size(); v-- > 0;) {
        if (++index[v] < options_[values[v]].size()) break;
        index[v] = 0;
      }
    }
  }

  // All assignments to the values from `value` on. What a node costs counts once its last value has
  // a sharding. Nothing gets cheaper by what follows.
  void Extend(ValueId value, double cost, double kept) {
    if (cost >= best_ || kept > memory_bytes_) return;
    if (value == graph_.num_values()) {
      best_ = cost;
      return;
    }
    const int producer = graph_.value(value).producer;
    const graph::Node& node = graph_.node(producer);
    for (size_t i = 0; i < options_[value].size(); ++i) {
      choice_[value] = i;
      double more = options_[value][i].is_partial() ? kPartialSeconds : 0;
      if (node.results.back() == value) more += NodeCost(producer);
      Extend(value + 1, cost + more, kept + Kept(value, options_[value][i]));
    }
  }

  double NodeCost(int id) const {
    if (tables_[id].empty()) return 0;
    const graph::Node& node = graph_.node(id);
    size_t index = 0;
    for (const ValueId value : node.operands) {
      index = index * options_[value].size() + choice_[value];
    }
    for (const ValueId value : node.results) {
      index = index * options_[value].size() + choice_[value];
    }
    return tables_[id][index];
  }

  const Graph& graph_;
  const Mesh& mesh_;
  const Machine& machine_;
  const KernelTimes kernels_;
  std::vector<std::vector<int>> users_;
  std::vector<std::vector<Sharding>> options_;  // by value
  std::vector<std::vector<double>> tables_;     // by node
  std::map<std::tuple<std::string, std::string, std::string>, double> moves_;
  std::vector<size_t> choice_;
  double memory_bytes_ = 0;
  double best_ = 0;
};

// `num_ops` operators on matrices, in which parameters come as they are needed.
std::string RandomProgram(std::mt19937_64& random, int num_ops) {
  const auto pick = [&](int64_t count) { return static_cast<int64_t>(random() % count); };
  struct Value {
    std::string name;
    int64_t rows;
    int64_t columns;
  };
  const auto size = [&] { return int64_t{8} << (2 * pick(2)); };
  std::vector<Value> values = {{"x", size(), size()}};
  const auto type = [](int64_t rows, int64_t columns) {
    return StrCat("f32[", rows, ", ", columns, "]");
  };
  std::string text =
      StrCat("graph g {\n  %x = input : ", type(values[0].rows, values[0].columns), "\n");
  for (int i = 0; i < num_ops; ++i) {
    // The last value, mostly: programs are chains with branches.
    const Value a = values[pick(3) > 0 ? values.size() - 1 : pick(values.size())];
    Value made = {StrCat("v", i), a.rows, a.columns};
    const int64_t kind = pick(8);
    if (kind < 4) {
      made.columns = size();
      StrAppend(&text, "  %w", i, " = parameter : ", type(a.columns, made.columns), "\n  %",
                made.name, " = matmul(%", a.name, ", %w", i, ") : ");
    } else if (kind == 4) {
      StrAppend(&text, "  %", made.name, " = relu(%", a.name, ") : ");
    } else if (kind == 5) {
      std::swap(made.rows, made.columns);
      StrAppend(&text, "  %", made.name, " = transpose(%", a.name, ") {permutation=[1, 0]} : ");
    } else {
      std::vector<std::string> partners;
      for (const Value& b : values) {
        if (b.rows == a.rows && b.columns == a.columns) partners.push_back(b.name);
      }
      StrAppend(&text, "  %", made.name, kind == 6 ? " = add(%" : " = mul(%", a.name, ", %",
                partners[static_cast<size_t>(pick(partners.size()))], ") : ");
    }
    StrAppend(&text, type(made.rows, made.columns), "\n");
    values.push_back(made);
  }
  return StrCat(text, "  return %", values.back().name, "\n}\n");
}

class ChooseShardingsTest : public ::testing::Test {
 protected:
  Graph Prepare(Graph graph, const Mesh& mesh) {
    graph.mutable_meshes() = {mesh};
    EXPECT_TRUE(Propagate(PropagationLevel::kUserPriority, &graph).ok());
    return graph;
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
};

// At least 200 problems of 3 to 8 operators on 4 devices with at most 10^7 assignments, most of
// them limited by memory.
TEST_F(ChooseShardingsTest, FindsWhatEnumerationFinds) {
  std::mt19937_64 random(20);
  int num_problems = 0;
  int num_limited = 0;
  std::map<int, int> by_ops;
  for (int i = 0; num_problems < kRandomProblems; ++i) {
    ASSERT_LT(i, 2000);
    const int num_ops = 3 + static_cast<int>(random() % 6);
    const std::string text = RandomProgram(random, num_ops);
    SCOPED_TRACE(text);
    absl::StatusOr<Graph> parsed = graph::ParseGraph(text, "random.pst", ops_);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    const Mesh mesh = random() % 3 == 0 ? Mesh{"m", {{"a", 2, false}, {"b", 2, false}}}
                                        : Mesh{"m", {{"a", 4, false}}};
    const Graph graph = Prepare(*std::move(parsed), mesh);
    const double rate = std::pow(10.0, 7 + static_cast<double>(random() % 4));
    const Machine machine = SmallCluster(4, rate, 1e9);
    Enumerator enumerator(graph, machine);
    if (enumerator.num_assignments() > 1e7) continue;
    const auto [least, most] = enumerator.KeptBytes();
    const double part = static_cast<double>(random() % 12) / 10 - 0.1;
    ShardingProblem problem;
    problem.graph = &graph;
    for (int a = 0; a < static_cast<int>(mesh.axes.size()); ++a) problem.free_axes.push_back(a);
    problem.machine = &machine;
    problem.memory_bytes = least + part * (most - least);
    const double best = enumerator.Best(problem.memory_bytes);
    const auto choice = ChooseShardings(problem);
    ASSERT_TRUE(choice.ok()) << choice.status();
    ASSERT_EQ(choice->has_value(), best < kInfinity);
    ++num_problems;
    ++by_ops[num_ops];
    if (!choice->has_value()) continue;
    EXPECT_NEAR((*choice)->seconds, best, 1e-6 * best);
    EXPECT_NEAR((*choice)->bound_s, best, 1e-6 * best);
    EXPECT_LE((*choice)->kept_bytes, problem.memory_bytes);
    if (best > enumerator.Best(kInfinity)) ++num_limited;
  }
  for (int num_ops = 3; num_ops <= 8 && kRandomProblems >= 200; ++num_ops) {
    EXPECT_GE(by_ops[num_ops], 1) << num_ops;
  }
  EXPECT_GE(num_limited, kRandomProblems / 4);
}

// The terms of two products are added before they are summed over devices: one reduction, not two.
TEST_F(ChooseShardingsTest, SumsArePartialUntilTheyMeet) {
  const Graph graph = Prepare(*graph::ParseGraph(R"(graph g {
  %x = input : f32[2, 256]
  %u = parameter : f32[256, 6]
  %v = parameter : f32[256, 6]
  %a = matmul(%x, %u) : f32[2, 6]
  %b = matmul(%x, %v) : f32[2, 6]
  %y = add(%a, %b) : f32[2, 6]
  return %y
}
)",
                                                 "g.pst", ops_),
                              {"m", {{"a", 4, false}}});
  const Machine machine = SmallCluster(4, 1e7, 1e6);
  ShardingProblem problem;
  problem.graph = &graph;
  problem.free_axes = {0};
  problem.is_fixed.assign(static_cast<size_t>(graph.num_values()), false);
  problem.is_fixed[5] = true;  // y is wanted whole
  problem.machine = &machine;
  const auto choice = ChooseShardings(problem);
  ASSERT_TRUE(choice.ok()) << choice.status();
  std::vector<std::string> shardings;
  for (const Sharding& sharding : (*choice)->shardings) {
    shardings.push_back(ToString(graph.meshes()[0], sharding));
  }
  EXPECT_THAT(shardings,
              ::testing::ElementsAre("@[_, a]", "@[a, _]", "@[a, _]", "@[_, _] partial(sum, a)",
                                     "@[_, _] partial(sum, a)", "@[_, _]"));
}

// Layers of a transformer whose batch is split in two, on 8 devices each: the weights of the MLP
// are split by columns and rows in turn, attention by heads, and, to save memory, what lies between
// over the sequence: Megatron's layout (Korthikanti et al., "Reducing activation recomputation in
// large transformer models", 2022).
TEST_F(ChooseShardingsTest, FindsTensorAndSequenceParallelism) {
  const graph::ModelRegistry models = graph::BuiltinModels();
  graph::ModelConfig config = models.FindPreset("gpt3-175b")->config;
  config.layers = 6;
  const Graph forward =
      *graph::BuildModelGraph(ops_, *models.FindModel("gpt"), config, graph::ModelUse::kTrain, 16);
  const RepeatedLayers layers = FindRepeatedLayers(forward, {}, 4);
  ASSERT_EQ(layers.num_copies, 6);
  Graph graph = *graph::BuildTrainingGraph(ops_, WithCopies(forward, layers, 3), {});
  Mesh mesh = {"m", {{"dp", 2, false}, {"tp", 8, false}}};
  for (const graph::Node& node : graph.nodes()) {
    if (node.op->name() != "input") continue;
    graph::Value& value = graph.mutable_value(node.results[0]);
    value.sharding = Sharding::Replicated(static_cast<int>(value.type.shape.size()));
    value.sharding->dims[0].axes = {graph::WholeAxis(mesh, 0)};
  }
  graph = Prepare(std::move(graph), mesh);
  const Machine machine = {*FindClusterPreset("hgx-h100:2")};
  ShardingProblem problem;
  problem.graph = &graph;
  problem.free_axes = {1};
  for (ValueId value = 0; value < graph.num_values(); ++value) {
    std::vector<bool>& dims = problem.fixed_dims.emplace_back();
    for (const graph::DimSharding& dim : graph.value(value).sharding->dims) {
      dims.push_back(!dim.axes.empty());
    }
  }
  problem.machine = &machine;
  for (const AlikeNode& node :
       FindAlikeNodes(graph, {RepeatedLayers{layers.first_node, layers.nodes_per_copy, 3}})) {
    problem.alike.push_back(node.first);
    problem.times.push_back(node.copy == 1 ? 4 : 1);
  }
  const auto of = [&](const ShardingChoice& choice, std::string_view name) -> std::string {
    for (ValueId value = 0; value < graph.num_values(); ++value) {
      if (graph.value(value).name == name) {
        return ToString(graph.meshes()[0], choice.shardings[static_cast<size_t>(value)]);
      }
    }
    return "none";
  };
  const auto free = ChooseShardings(problem, 0.001);
  ASSERT_TRUE(free.ok()) << free.status();
  EXPECT_EQ(of(**free, "h1.attn.qkv_w"), "@[_, _, tp, _]");
  EXPECT_EQ(of(**free, "h1.mlp.w1"), "@[_, tp]");
  EXPECT_EQ(of(**free, "h1.mlp.w2"), "@[tp, _]");
  problem.memory_bytes = 0.75 * (*free)->kept_bytes;
  const auto limited = ChooseShardings(problem, 0.001);
  ASSERT_TRUE(limited.ok()) << limited.status();
  ASSERT_TRUE(limited->has_value());
  EXPECT_LE((*limited)->kept_bytes, problem.memory_bytes);
  EXPECT_LE((*limited)->seconds, 1.001 * (*limited)->bound_s);
  EXPECT_LT((*limited)->num_solved, graph.num_nodes() / 2);
  EXPECT_EQ(of(**limited, "h1.attn.qkv"), "@[dp, _, _, tp, _]");
  EXPECT_EQ(of(**limited, "h1.attn.qkv_w"), "@[_, _, tp, _]");
  EXPECT_EQ(of(**limited, "h1.attn.residual"), "@[dp, tp, _]");
  EXPECT_EQ(of(**limited, "h1.mlp.w1"), "@[_, tp]");
  EXPECT_EQ(of(**limited, "h1.mlp.w2"), "@[tp, _]");
  problem.memory_bytes = 1e9;
  const auto none = ChooseShardings(problem, 0.001);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->has_value());
}

}  // namespace
}  // namespace penstock::planner
