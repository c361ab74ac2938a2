#include "graph/gradients.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"

#include "base/half.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/builder.h"

namespace penstock::graph {
namespace {

bool IsParameter(const Node& node) { return node.op->role() == OpRole::kParameter; }

// One run of the transformation. The backward nodes are first all built on a copy of the forward
// graph, then those that no parameter gradient needs are left out of the result.
class Differentiation {
 public:
  Differentiation(const OpRegistry& ops, const Graph& forward, ValueId loss,
                  const GradientOptions& options)
      : forward_(forward),
        loss_(loss),
        options_(options),
        graph_(forward.name()),
        builder_(ops, graph_) {}

  absl::StatusOr<Differentiated> Run() {
    RETURN_IF_ERROR(CheckLoss());
    FindPaths();
    CopyForward();
    RETURN_IF_ERROR(AddBackward());
    for (NodeId id = 0; id < forward_.num_nodes(); ++id) {
      if (IsParameter(forward_.node(id))) AddParameter(id);
    }
    RETURN_IF_ERROR(builder_.status());
    MarkPhases();
    return CopyLive();
  }

 private:
  absl::Status CheckLoss() const {
    if (loss_ < 0 || loss_ >= forward_.num_values()) {
      return absl::InvalidArgumentError("gradients: the loss is not a value of the graph");
    }
    const Value& loss = forward_.value(loss_);
    if (!IsFloat(loss.type.dtype) || !loss.type.shape.empty()) {
      return absl::InvalidArgumentError(StrCat("gradients: %", loss.name, " is ",
                                               ToString(loss.type),
                                               "; gradients are taken of a float scalar"));
    }
    const ValueId gradient = options_.loss_gradient;
    if (gradient != kNoValue && (gradient < 0 || gradient >= forward_.num_values() ||
                                 forward_.value(gradient).type != loss.type)) {
      return absl::InvalidArgumentError(
          StrCat("gradients: the gradient of %", loss.name, " is no value of its type"));
    }
    return absl::OkStatus();
  }

  // Which values of the forward graph lie between a parameter and the loss, joined by floats, and
  // which depend on parameters alone.
  void FindPaths() {
    const int num_values = forward_.num_values();
    needs_gradient_.assign(num_values, false);
    is_weight_.assign(num_values, false);
    std::vector<bool> is_constant(num_values, false);
    for (const Node& node : forward_.nodes()) {
      bool has_path = IsParameter(node);
      bool has_weight = IsParameter(node);
      bool has_data = node.op->has_declared_type() ? !IsParameter(node) : node.op->is_random();
      for (ValueId operand : node.operands) {
        has_path = has_path || needs_gradient_[operand];
        has_weight = has_weight || is_weight_[operand];
        has_data = has_data || (!is_weight_[operand] && !is_constant[operand]);
      }
      for (ValueId result : node.results) {
        needs_gradient_[result] = has_path && IsFloat(forward_.value(result).type.dtype);
        is_weight_[result] = has_weight && !has_data;
        is_constant[result] = !has_weight && !has_data;
      }
    }
    reaches_loss_.assign(num_values, false);
    reaches_loss_[loss_] = true;
    for (NodeId id = forward_.num_nodes() - 1; id >= 0; --id) {
      if (!IsOnPath(forward_.node(id))) continue;
      for (ValueId operand : forward_.node(id).operands) reaches_loss_[operand] = true;
    }
  }

  // Whether gradients flow through the node.
  bool IsOnPath(const Node& node) const {
    return std::any_of(node.results.begin(), node.results.end(),
                       [&](ValueId v) { return needs_gradient_[v] && reaches_loss_[v]; }) &&
           std::any_of(node.operands.begin(), node.operands.end(),
                       [&](ValueId v) { return needs_gradient_[v]; });
  }

  // Node ids stay; values move where optional results are bound in between.
  void CopyForward() {
    graph_.mutable_meshes() = forward_.meshes();
    values_.assign(forward_.num_values(), kNoValue);
    for (const Node& node : forward_.nodes()) {
      std::vector<TensorType> types = forward_.ResultTypes(node);
      std::vector<std::string> names;
      for (ValueId result : node.results) names.push_back(forward_.value(result).name);
      if (IsOnPath(node) && node.op->num_residuals() > 0) BindResiduals(node, types, names);
      Node copy = node;
      for (ValueId& operand : copy.operands) operand = values_[operand];
      const Node& added = graph_.node(graph_.AddTyped(std::move(copy), types, names));
      for (size_t i = 0; i < node.results.size(); ++i) {
        values_[node.results[i]] = added.results[i];
        graph_.mutable_value(added.results[i]).sharding = forward_.value(node.results[i]).sharding;
      }
    }
    gradients_.assign(graph_.num_values(), kNoValue);
  }

  void BindResiduals(const Node& node, std::vector<TensorType>& types,
                     std::vector<std::string>& names) const {
    const std::vector<TensorType> operands = forward_.OperandTypes(node);
    const std::vector<TensorType> all = *node.op->InferTypes({node.attributes, operands, {}});
    const size_t num_bound =
        all.size() - node.op->num_optional_results() + node.op->num_residuals();
    while (types.size() < num_bound) {
      std::string name = StrCat(names[0], ".", types.size());
      while (forward_.FindValue(name) != kNoValue || graph_.FindValue(name) != kNoValue) {
        name += '_';
      }
      names.push_back(std::move(name));
      types.push_back(all[types.size()]);
    }
  }

  absl::Status AddBackward() {
    BeginNodesOf(forward_.value(loss_).producer);
    gradients_[values_[loss_]] = options_.loss_gradient == kNoValue
                                     ? builder_.Constant(1, forward_.value(loss_).type)
                                     : values_[options_.loss_gradient];
    FinishNodes();
    for (NodeId id = forward_.num_nodes() - 1; id >= 0; --id) {
      if (!IsOnPath(forward_.node(id))) continue;
      RETURN_IF_ERROR(AddGradientsOf(id));
    }
    return builder_.status();
  }

  absl::Status AddGradientsOf(NodeId id) {
    const Node node = graph_.node(id);
    std::vector<ValueId> result_gradients;
    bool has_gradient = false;
    for (ValueId result : node.results) {
      result_gradients.push_back(gradients_[result]);
      has_gradient = has_gradient || gradients_[result] != kNoValue;
    }
    if (!has_gradient) return absl::OkStatus();
    if (!node.op->is_differentiable()) {
      return absl::InvalidArgumentError(StrCat("gradients: ", node.op->name(), ", which makes %",
                                               graph_.value(node.results[0]).name,
                                               ", has no gradient"));
    }
    const std::vector<TensorType> operand_types = graph_.OperandTypes(node);
    const size_t num_required = node.op->num_results({node.attributes, operand_types, {}});
    for (size_t i = num_required; i < node.results.size(); ++i) {
      if (result_gradients[i] == kNoValue) continue;
      return absl::UnimplementedError(StrCat("gradients: %", graph_.value(node.results[i]).name,
                                             " is an optional result of ", node.op->name(),
                                             "; gradients flow through the others only"));
    }
    BeginNodesOf(id);
    ASSIGN_OR_RETURN(const std::vector<ValueId> operand_gradients,
                     node.op->Gradient(builder_, node, result_gradients));
    FinishNodes();
    RETURN_IF_ERROR(builder_.status());
    for (size_t i = 0; i < operand_gradients.size(); ++i) {
      const ValueId operand = forward_.node(id).operands[i];
      if (!needs_gradient_[operand] || operand_gradients[i] == kNoValue) continue;
      RETURN_IF_ERROR(Accumulate(operand, operand_gradients[i]));
    }
    return absl::OkStatus();
  }

  // Adds `gradient` to that of a forward value, where the value is made.
  absl::Status Accumulate(ValueId value, ValueId gradient) {
    if (graph_.value(gradient).type != forward_.value(value).type) {
      return absl::InternalError(StrCat("gradients: that of %", forward_.value(value).name, " is ",
                                        ToString(graph_.value(gradient).type), ", not ",
                                        ToString(forward_.value(value).type)));
    }
    ValueId& sum = gradients_[values_[value]];
    if (sum == kNoValue) {
      sum = gradient;
      return absl::OkStatus();
    }
    BeginNodesOf(forward_.value(value).producer);
    sum = builder_.Add("add", {sum, gradient});
    FinishNodes();
    return builder_.status();
  }

  void AddParameter(NodeId id) {
    const ValueId parameter = values_[forward_.node(id).results[0]];
    if (gradients_[parameter] == kNoValue) {
      BeginNodesOf(id);
      gradients_[parameter] = builder_.Constant(0, graph_.value(parameter).type);
      FinishNodes();
    }
    parameters_.push_back(parameter);
  }

  // What is appended up to FinishNodes belongs to the forward node `id`.
  void BeginNodesOf(NodeId id) {
    builder_.set_phase(Phase::kBackward);
    builder_.set_forward(id);
    builder_.set_stage(graph_.node(id).stage);
    first_new_ = graph_.num_nodes();
  }

  void FinishNodes() {
    for (NodeId id = first_new_; id < graph_.num_nodes(); ++id) {
      Node& node = graph_.mutable_node(id);
      const Node& forward = graph_.node(node.forward);
      node.mesh = forward.mesh;
      node.location = forward.location;
    }
  }

  // Everything backward that no activation's gradient depends on is W.
  void MarkPhases() {
    std::vector<bool> is_needed(graph_.num_values(), false);
    for (ValueId value = 0; value < forward_.num_values(); ++value) {
      const ValueId gradient = gradients_[values_[value]];
      if (gradient != kNoValue && !is_weight_[value]) is_needed[gradient] = true;
    }
    for (NodeId id = graph_.num_nodes() - 1; id >= forward_.num_nodes(); --id) {
      Node& node = graph_.mutable_node(id);
      const bool is_before_activation =
          std::any_of(node.results.begin(), node.results.end(),
                      [&](ValueId result) { return is_needed[result]; });
      if (is_before_activation) {
        for (ValueId operand : node.operands) is_needed[operand] = true;
      } else {
        node.phase = Phase::kWeightBackward;
      }
    }
  }

  // Values that are gradients of f32 parameters, if those are to be rounded.
  absl::flat_hash_set<ValueId> RoundedGradients() const {
    absl::flat_hash_set<ValueId> rounded;
    if (!IsHalf(options_.sum_dtype)) return rounded;
    for (const ValueId parameter : parameters_) {
      const ValueId gradient = gradients_[parameter];
      if (graph_.value(gradient).type.dtype == DType::kF32) rounded.insert(gradient);
    }
    return rounded;
  }

  // Behind the gradient of a parameter.
  ValueId AddRounding(Graph& graph, ValueId gradient) const {
    const Node& producer = graph.node(graph.value(gradient).producer);
    Node cast;
    cast.op = builder_.ops().Find("cast");
    cast.attributes.Set("dtype", options_.sum_dtype);
    cast.attributes.Set("partial_sums", std::string("round"));
    cast.operands = {gradient};
    cast.mesh = producer.mesh;
    cast.stage = producer.stage;
    cast.phase = producer.phase;
    cast.forward = producer.forward;
    cast.location = producer.location;
    const TensorType type = {options_.sum_dtype, graph.value(gradient).type.shape};
    const std::string names[] = {
        graph.UniqueName(StrCat(graph.value(gradient).name, ".", Name(options_.sum_dtype)))};
    return graph.node(graph.AddTyped(std::move(cast), {&type, 1}, names)).results[0];
  }

  // The graph without the backward nodes that no parameter gradient depends on.
  Differentiated CopyLive() const {
    std::vector<bool> is_live(graph_.num_values(), false);
    for (ValueId parameter : parameters_) is_live[gradients_[parameter]] = true;
    std::vector<bool> is_kept(graph_.num_nodes(), true);
    for (NodeId id = graph_.num_nodes() - 1; id >= forward_.num_nodes(); --id) {
      const Node& node = graph_.node(id);
      is_kept[id] = std::any_of(node.results.begin(), node.results.end(),
                                [&](ValueId result) { return is_live[result]; });
      if (!is_kept[id]) continue;
      for (ValueId operand : node.operands) is_live[operand] = true;
    }

    Differentiated result;
    result.graph = Graph(graph_.name());
    result.graph.mutable_meshes() = graph_.meshes();
    const absl::flat_hash_map<ValueId, std::string> names = GradientNames();
    const absl::flat_hash_set<ValueId> rounded = RoundedGradients();
    absl::flat_hash_map<ValueId, ValueId> sums;  // of rounded gradients
    std::vector<ValueId> copies(graph_.num_values(), kNoValue);
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
      if (!is_kept[id]) continue;
      Node node = graph_.node(id);
      for (ValueId& operand : node.operands) operand = copies[operand];
      std::vector<std::string> result_names;
      for (ValueId value : graph_.node(id).results) {
        const auto gradient = names.find(value);
        if (id < forward_.num_nodes()) {
          result_names.push_back(graph_.value(value).name);
        } else if (gradient != names.end()) {
          result_names.push_back(result.graph.UniqueName(gradient->second));
        } else if (result_names.empty()) {
          result_names.push_back(result.graph.UniqueName(node.op->name()));
        } else {
          result_names.push_back(
              result.graph.UniqueName(StrCat(result_names[0], ".", result_names.size())));
        }
      }
      const NodeId added =
          result.graph.AddTyped(std::move(node), graph_.ResultTypes(graph_.node(id)), result_names);
      for (size_t i = 0; i < graph_.node(id).results.size(); ++i) {
        const ValueId value = graph_.node(id).results[i];
        copies[value] = result.graph.node(added).results[i];
        result.graph.mutable_value(copies[value]).sharding = graph_.value(value).sharding;
      }
      for (const ValueId value : graph_.node(id).results) {
        if (rounded.contains(value)) sums[value] = AddRounding(result.graph, copies[value]);
      }
    }
    result.loss = copies[values_[loss_]];
    for (ValueId parameter : parameters_) {
      const ValueId gradient = gradients_[parameter];
      const auto sum = sums.find(gradient);
      result.parameters.push_back(copies[parameter]);
      result.gradients.push_back(sum != sums.end() ? sum->second : copies[gradient]);
    }
    for (const Return& returned : forward_.returns()) {
      result.graph.mutable_returns().push_back(
          {copies[values_[returned.value]], returned.sharding});
    }
    return result;
  }

  // A gradient shared by several values is named after a parameter if there is one.
  absl::flat_hash_map<ValueId, std::string> GradientNames() const {
    absl::flat_hash_map<ValueId, std::string> names;
    auto name = [&](ValueId value) {
      if (gradients_[value] == kNoValue) return;
      names.try_emplace(gradients_[value], StrCat(graph_.value(value).name, ".grad"));
    };
    for (ValueId parameter : parameters_) name(parameter);
    for (auto value = static_cast<ValueId>(gradients_.size()) - 1; value >= 0; --value) name(value);
    return names;
  }

  const Graph& forward_;
  const ValueId loss_;
  const GradientOptions options_;
  Graph graph_;
  GraphBuilder builder_;
  NodeId first_new_ = 0;
  // By value of forward_.
  std::vector<bool> needs_gradient_;
  std::vector<bool> reaches_loss_;
  std::vector<bool> is_weight_;
  std::vector<ValueId> values_;  // its copy in graph_
  // By value of graph_, forward ones only.
  std::vector<ValueId> gradients_;
  std::vector<ValueId> parameters_;
};

}  // namespace

absl::StatusOr<Differentiated> Differentiate(const OpRegistry& ops, const Graph& forward,
                                             ValueId loss, const GradientOptions& options) {
  return Differentiation(ops, forward, loss, options).Run();
}

absl::StatusOr<Graph> AddGradients(const OpRegistry& ops, const Graph& forward) {
  if (forward.returns().size() != 1) {
    return absl::InvalidArgumentError(StrCat("gradients: the graph returns ",
                                             forward.returns().size(),
                                             " values; gradients are taken of one"));
  }
  ASSIGN_OR_RETURN(Differentiated result, Differentiate(ops, forward, forward.returns()[0].value));
  for (ValueId gradient : result.gradients)
    result.graph.mutable_returns().push_back({gradient, {}});
  return std::move(result.graph);
}

}  // namespace penstock::graph
