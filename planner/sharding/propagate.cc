#include "planner/sharding/propagate.h"

#include <algorithm>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/op.h"
#include "graph/text.h"
#include "planner/sharding/arrival.h"
#include "planner/sharding/factor_propagation.h"
#include "planner/sharding/factor_sharding.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::DimFactors;
using graph::DimSharding;
using graph::Factor;
using graph::FactorKind;
using graph::Graph;
using graph::Mesh;
using graph::NodeId;
using graph::PropagationPriority;
using graph::Sharding;
using graph::ShardingRule;
using graph::TensorFactors;
using graph::ValueId;

// The steps of operator priority; each includes those before it.
enum class Step : uint8_t {
  kPassThroughSingleUse,  // pass-through operators whose operands have no other use
  kPassThrough,           // pass-through operators
  kPassThroughFactors,    // pass-through factors of any operator; broadcasts only backwards
  kAllButBroadcast,       // every factor; broadcasts only backwards
  kAll,
};

constexpr Step kSteps[] = {Step::kPassThroughSingleUse, Step::kPassThrough,
                           Step::kPassThroughFactors, Step::kAllButBroadcast, Step::kAll};

// Of each factor of a node.
using Directions = absl::InlinedVector<Direction, 8>;

// Whether each direction is that of the other list, or none.
bool AreAmong(const Directions& some, const Directions& all) {
  if (some.size() != all.size()) return false;
  for (size_t f = 0; f < some.size(); ++f) {
    if (some[f] != Direction::kNone && some[f] != all[f]) return false;
  }
  return true;
}

// One operand or result of a node that takes part. A value of another mesh takes part as far as
// micro-batches are concerned.
struct Tensor {
  ValueId value;
  int position;  // among the node's operands or results
  bool is_foreign = false;
};

// A rule, of all nodes that ask an operator the same.
struct SharedRule {
  ShardingRule rule;
  PropagationPriority priority = PropagationPriority::kSecond;
  bool is_elementwise = false;
  NodeId first = 0;  // the node that asked first
};

// What propagation needs of a node, computed once.
struct NodeInfo {
  const SharedRule* shared = nullptr;
  absl::InlinedVector<Tensor, 3> operands;
  absl::InlinedVector<Tensor, 1> results;
  bool has_multi_use_operand = false;
  // What it was last done with to no effect: how often its tensors had changed until then, and the
  // directions of its factors. So it need not be done again until they change, in those directions
  // or fewer.
  int64_t settled_at = -1;
  Directions settled_directions = {};

  const std::vector<Factor>& factors() const { return shared->rule.factors; }
  const TensorFactors& OperandMapping(size_t i) const {
    return shared->rule.operands[operands[i].position];
  }
  const TensorFactors& ResultMapping(size_t i) const {
    return shared->rule.results[results[i].position];
  }
};

// Whether the rule speaks of `tensors`: one list of known factors a dimension.
bool Describes(absl::Span<const TensorFactors> mappings, absl::Span<const TensorType> tensors,
               size_t num_factors) {
  if (mappings.size() < tensors.size()) return false;
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (mappings[t].size() != tensors[t].shape.size()) return false;
    for (const DimFactors& dim : mappings[t]) {
      for (int factor : dim) {
        if (factor < 0 || factor >= static_cast<int>(num_factors)) return false;
      }
    }
  }
  return true;
}

bool AllPassThrough(const ShardingRule& rule) {
  return std::all_of(rule.factors.begin(), rule.factors.end(),
                     [](const Factor& factor) { return factor.kind == FactorKind::kPassThrough; });
}

// Every operand and result, scalars aside, has the same factor in each dimension, and any of them
// may be split.
bool IsElementwise(const ShardingRule& rule) {
  if (!AllPassThrough(rule)) return false;
  const TensorFactors* first = nullptr;
  for (const std::vector<TensorFactors>* side : {&rule.operands, &rule.results}) {
    for (const TensorFactors& tensor : *side) {
      if (tensor.empty()) continue;
      if (first == nullptr) first = &tensor;
      if (tensor != *first) return false;
    }
  }
  return first == nullptr || std::all_of(first->begin(), first->end(),
                                         [](const DimFactors& dim) { return dim.size() <= 1; });
}

class Propagation {
 public:
  explicit Propagation(Graph* graph) : graph_(*graph) {}

  absl::Status Run(PropagationLevel level) {
    RETURN_IF_ERROR(Prepare());
    if (level == PropagationLevel::kUserPriority) {
      RunUserPriority();
    } else {
      for (Sharding* sharding : Shardings()) {
        for (DimSharding& dim : sharding->dims) dim.priority = std::nullopt;
      }
      RunBelowUserPriority(level);
    }
    return absl::OkStatus();
  }

 private:
  // --- Preparation ---

  absl::Status Prepare() {
    std::vector<int> num_uses(graph_.num_values(), 0);
    for (const graph::Node& node : graph_.nodes()) {
      for (ValueId operand : node.operands) ++num_uses[operand];
    }
    for (graph::Return& returned : graph_.mutable_returns()) {
      ++num_uses[returned.value];
      if (!returned.sharding.has_value()) returned.sharding = OpenSharding(returned.value);
    }
    for (ValueId id = 0; id < graph_.num_values(); ++id) {
      std::optional<Sharding>& sharding = graph_.mutable_value(id).sharding;
      if (!sharding.has_value()) sharding = OpenSharding(id);
    }
    infos_ = std::vector<NodeInfo>(graph_.num_nodes());
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) RETURN_IF_ERROR(Inspect(id, num_uses));
    users_ = graph_.Users();
    is_queued_.resize(graph_.num_nodes(), false);
    num_changes_.resize(graph_.num_values(), 0);
    return absl::OkStatus();
  }

  Sharding OpenSharding(ValueId id) const {
    return Sharding::Open(static_cast<int>(graph_.value(id).type.shape.size()));
  }

  // The rule of a node, shared with an earlier node that has equal attributes and types, if that is
  // among the last rules of the operator: in a model of many layers, most nodes are like one
  // before.
  absl::StatusOr<const SharedRule*> RuleOf(NodeId id) {
    const graph::Node& node = graph_.node(id);
    std::vector<const SharedRule*>& known = rules_by_op_[node.op];
    const size_t end = known.size();
    for (size_t i = end; i > 0 && i + kMostCompared > end; --i) {
      if (HaveEqualRuleInputs(graph_.node(known[i - 1]->first), node)) return known[i - 1];
    }
    const std::vector<TensorType> operand_types = graph_.OperandTypes(node);
    const std::vector<TensorType> result_types = graph_.ResultTypes(node);
    SharedRule shared;
    shared.rule = node.op->Rule({node.attributes, operand_types, result_types});
    if (!Describes(shared.rule.operands, operand_types, shared.rule.factors.size()) ||
        !Describes(shared.rule.results, result_types, shared.rule.factors.size())) {
      return absl::InternalError(StrCat("the sharding rule of ", node.op->name(),
                                        " does not fit: ", PrintNode(graph_, node)));
    }
    shared.priority = node.op->propagation_priority();
    shared.is_elementwise = IsElementwise(shared.rule);
    shared.first = id;
    known.push_back(&rules_.emplace_back(std::move(shared)));
    return known.back();
  }

  // Whether two nodes of an operator have equal attributes and types.
  bool HaveEqualRuleInputs(const graph::Node& a, const graph::Node& b) const {
    const auto have_equal_types = [this](absl::Span<const ValueId> x, absl::Span<const ValueId> y) {
      return std::equal(x.begin(), x.end(), y.begin(), y.end(), [this](ValueId v, ValueId w) {
        return v == w || graph_.value(v).type == graph_.value(w).type;
      });
    };
    return have_equal_types(a.operands, b.operands) && have_equal_types(a.results, b.results) &&
           a.attributes == b.attributes;
  }

  absl::Status Inspect(NodeId node_id, absl::Span<const int> num_uses) {
    const graph::Node& node = graph_.node(node_id);
    NodeInfo& info = infos_[node_id];
    if (node.operands.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(info.shared, RuleOf(node_id));
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const ValueId id = node.operands[i];
      const graph::Value& value = graph_.value(id);
      const bool is_foreign = graph_.node(value.producer).mesh != node.mesh;
      if (!is_foreign || SharesTime(graph_.node(value.producer), node)) {
        info.operands.push_back({id, static_cast<int>(i), is_foreign});
      }
      // Scalars cannot be split, so their other uses do not matter.
      if (num_uses[id] > 1 && !value.type.shape.empty()) info.has_multi_use_operand = true;
    }
    for (size_t i = 0; i < node.results.size(); ++i) {
      info.results.push_back({node.results[i], static_cast<int>(i), false});
    }
    return absl::OkStatus();
  }

  // Every sharding of the graph, values first.
  std::vector<Sharding*> Shardings() {
    std::vector<Sharding*> shardings;
    for (ValueId id = 0; id < graph_.num_values(); ++id) {
      shardings.push_back(&*graph_.mutable_value(id).sharding);
    }
    for (graph::Return& returned : graph_.mutable_returns()) {
      shardings.push_back(&*returned.sharding);
    }
    return shardings;
  }

  // --- The levels ---

  void RunUserPriority() {
    const std::vector<Sharding*> shardings = Shardings();
    std::vector<Sharding> written;
    std::set<int> priorities;
    for (Sharding* sharding : shardings) {
      written.push_back(*sharding);
      for (DimSharding& dim : sharding->dims) {
        const int priority = dim.priority.value_or(0);
        if (priority > 0) {
          priorities.insert(priority);
          sharding->replicated.insert(sharding->replicated.end(), dim.axes.begin(), dim.axes.end());
          dim = DimSharding();
        }
        dim.priority = std::nullopt;
      }
    }
    RunBelowUserPriority(PropagationLevel::kOpPriority);
    for (int priority : priorities) {
      for (size_t i = 0; i < shardings.size(); ++i) Release(written[i], priority, shardings[i]);
      for (int64_t& count : num_changes_) ++count;
      RunBelowUserPriority(PropagationLevel::kOpPriority);
    }
  }

  // Gives the dimensions of the priority what was written for them.
  static void Release(const Sharding& written, int priority, Sharding* sharding) {
    for (size_t i = 0; i < written.dims.size(); ++i) {
      if (written.dims[i].priority.value_or(0) != priority) continue;
      sharding->dims[i] = written.dims[i];
      sharding->dims[i].priority = std::nullopt;
      for (const AxisRef& axis : written.dims[i].axes) {
        std::vector<AxisRef>& kept = sharding->replicated;
        kept.erase(std::remove(kept.begin(), kept.end(), axis), kept.end());
      }
    }
  }

  void RunBelowUserPriority(PropagationLevel level) {
    if (level == PropagationLevel::kOpPriority) {
      for (Step step : kSteps) RunToFixpoint(PropagationStrategy::kAggressive, step);
    } else {
      const bool is_basic = level == PropagationLevel::kBasic;
      RunToFixpoint(is_basic ? PropagationStrategy::kBasic : PropagationStrategy::kAggressive,
                    Step::kAll);
    }
  }

  void RunToFixpoint(PropagationStrategy strategy, Step step) {
    PropagateReturns(strategy);
    for (NodeId id = graph_.num_nodes() - 1; id >= 0; --id) Push(id);
    while (!work_.empty()) {
      const NodeId id = work_.back();
      work_.pop_back();
      is_queued_[id] = false;
      PropagateNode(id, strategy, step);
    }
    PropagateReturns(strategy);
  }

  // --- One operator ---

  static Direction DirectionOf(const NodeInfo& info, const Factor& factor, Step step) {
    if (step == Step::kAll) return Direction::kBoth;
    const bool is_pass_through = info.shared->priority == PropagationPriority::kFirst ||
                                 info.shared->priority == PropagationPriority::kFirstForward;
    Direction direction = Direction::kNone;
    if (is_pass_through && (step != Step::kPassThroughSingleUse || !info.has_multi_use_operand)) {
      direction = info.shared->priority == PropagationPriority::kFirst ? Direction::kBoth
                                                                       : Direction::kForward;
    }
    const bool applies_to_factor =
        step == Step::kAllButBroadcast ||
        (step == Step::kPassThroughFactors && factor.kind == FactorKind::kPassThrough);
    if (!applies_to_factor) return direction;
    return info.shared->priority == PropagationPriority::kLast ? Direction::kBackward
                                                               : Direction::kBoth;
  }

  void PropagateNode(NodeId id, PropagationStrategy strategy, Step step) {
    NodeInfo& info = infos_[id];
    if (info.operands.empty()) return;
    directions_.clear();
    for (const Factor& factor : info.factors()) {
      directions_.push_back(DirectionOf(info, factor, step));
    }
    const int64_t num_changes = NumChangesAround(info);
    if (num_changes == info.settled_at && AreAmong(directions_, info.settled_directions)) return;
    Projection& projection = projection_;
    projection.num_operands = static_cast<int>(info.operands.size());
    projection.tensors.resize(info.operands.size() + info.results.size());
    for (size_t i = 0; i < info.operands.size(); ++i) {
      const Tensor& operand = info.operands[i];
      const TensorFactors& mapping = info.OperandMapping(i);
      if (operand.is_foreign) {
        ProjectTensor(mapping, info.factors(), ShardingHere(operand, id), &projection.tensors[i]);
      } else {
        ProjectTensor(mapping, info.factors(), *graph_.value(operand.value).sharding,
                      &projection.tensors[i]);
      }
    }
    for (size_t i = 0; i < info.results.size(); ++i) {
      ProjectTensor(info.ResultMapping(i), info.factors(),
                    *graph_.value(info.results[i].value).sharding,
                    &projection.tensors[info.operands.size() + i]);
    }
    const std::vector<bool> is_changed = PropagateFactors(strategy, info.factors(), directions_,
                                                          info.shared->is_elementwise, &projection);
    if (std::find(is_changed.begin(), is_changed.end(), true) == is_changed.end()) {
      info.settled_at = num_changes;
      info.settled_directions = directions_;
      return;
    }

    const Mesh& mesh = MeshOf(graph_, graph_.node(id), no_mesh_);
    for (size_t t = 0; t < is_changed.size(); ++t) {
      if (!is_changed[t]) continue;
      const bool is_operand = t < info.operands.size();
      if (is_operand && info.operands[t].is_foreign) continue;
      const size_t i = is_operand ? t : t - info.operands.size();
      graph::Value& value =
          graph_.mutable_value(is_operand ? info.operands[i].value : info.results[i].value);
      Sharding sharding =
          UnprojectTensor(mesh, is_operand ? info.OperandMapping(i) : info.ResultMapping(i),
                          info.factors(), projection.tensors[t], value.type.shape, *value.sharding);
      if (sharding == *value.sharding) continue;
      value.sharding = std::move(sharding);
      ++num_changes_[is_operand ? info.operands[i].value : info.results[i].value];
      PushNeighbours(is_operand ? info.operands[i].value : info.results[i].value, id);
    }
  }

  // How often the tensors of a node have changed, in all.
  int64_t NumChangesAround(const NodeInfo& info) const {
    int64_t count = 0;
    for (const Tensor& operand : info.operands) count += num_changes_[operand.value];
    for (const Tensor& result : info.results) count += num_changes_[result.value];
    return count;
  }

  // Whether micro-batches of a value are micro-batches on the reader's mesh as well.
  bool SharesTime(const graph::Node& producer, const graph::Node& reader) const {
    return MeshOf(graph_, producer, no_mesh_).num_microbatches() > 1 &&
           MeshOf(graph_, reader, no_mesh_).num_microbatches() > 1;
  }

  // Of a value of another mesh, how it is split over time.
  Sharding ShardingHere(const Tensor& operand, NodeId reader) const {
    const graph::Value& value = graph_.value(operand.value);
    const Mesh& from = MeshOf(graph_, graph_.node(value.producer), no_mesh_);
    Sharding here = OverTime(from, Sendable(from, *value.sharding),
                             MeshOf(graph_, graph_.node(reader), no_mesh_));
    for (DimSharding& dim : here.dims) dim.is_open = true;
    return here;
  }

  // Queues the producer and the users of a value, except the node just done: it has nothing new.
  void PushNeighbours(ValueId id, NodeId done) {
    const NodeId producer = graph_.value(id).producer;
    if (producer != done) Push(producer);
    for (auto user = users_[id].rbegin(); user != users_[id].rend(); ++user) {
      if (*user != done) Push(*user);
    }
  }

  void Push(NodeId id) {
    if (is_queued_[id] || infos_[id].operands.empty()) return;
    is_queued_[id] = true;
    work_.push_back(id);
  }

  // --- Returns: identities between a value and its return ---

  void PropagateReturns(PropagationStrategy strategy) {
    for (graph::Return& returned : graph_.mutable_returns()) {
      graph::Value& value = graph_.mutable_value(returned.value);
      std::vector<Factor> factors;
      TensorFactors mapping;
      for (int64_t extent : value.type.shape) {
        mapping.push_back({static_cast<int>(factors.size())});
        factors.push_back({extent, FactorKind::kPassThrough, graph::Reduction::kSum});
      }
      Projection projection;
      projection.num_operands = 1;
      projection.tensors = {ProjectTensor(mapping, factors, *value.sharding),
                            ProjectTensor(mapping, factors, *returned.sharding)};
      directions_.assign(factors.size(), Direction::kBoth);
      PropagateFactors(strategy, factors, directions_, /*is_elementwise=*/false, &projection);
      const Mesh& mesh = MeshOf(graph_, graph_.node(value.producer), no_mesh_);
      value.sharding = UnprojectTensor(mesh, mapping, factors, projection.tensors[0],
                                       value.type.shape, *value.sharding);
      ++num_changes_[returned.value];
      returned.sharding = UnprojectTensor(mesh, mapping, factors, projection.tensors[1],
                                          value.type.shape, *returned.sharding);
    }
  }

  static constexpr size_t kMostCompared = 8;  // rules of an operator, the last ones

  Graph& graph_;
  const Mesh no_mesh_;
  std::deque<SharedRule> rules_;
  absl::flat_hash_map<const graph::Op*, std::vector<const SharedRule*>> rules_by_op_;
  std::vector<NodeInfo> infos_;
  std::vector<std::vector<NodeId>> users_;
  std::vector<NodeId> work_;  // a stack: the neighbours of a change come before the rest
  std::vector<bool> is_queued_;
  std::vector<int64_t> num_changes_;  // of a value's sharding
  // Of the node that is being done.
  Directions directions_;
  Projection projection_;
};

}  // namespace

absl::Status Propagate(PropagationLevel level, Graph* graph) {
  return Propagation(graph).Run(level);
}

}  // namespace penstock::planner
