#include "planner/sharding/insert_reshards.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "planner/sharding/cheapest_execution.h"
#include "planner/sharding/execution_sharding.h"
#include "planner/sharding/select_mesh.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::Graph;
using graph::kNoValue;
using graph::Mesh;
using graph::Node;
using graph::NodeId;
using graph::PartialSpec;
using graph::Sharding;
using graph::ShardingRule;
using graph::ValueId;

// The names of `reshard` and of what it is lowered to: they say their sharding themselves.
bool IsRedistribution(std::string_view op) {
  static constexpr std::string_view kNames[] = {
      "reshard",    "local_slice",    "all_gather", "all_to_all",          "permute",
      "all_reduce", "reduce_scatter", "accumulate", "gather_microbatches",
  };
  return std::find(std::begin(kNames), std::end(kNames), op) != std::end(kNames);
}

// Keeps the axes that come before the first temporal one, in each dimension.
void DropTemporal(const Mesh& mesh, Sharding* sharding) {
  for (graph::DimSharding& dim : sharding->dims) {
    const auto first = std::find_if(dim.axes.begin(), dim.axes.end(), [&](const AxisRef& axis) {
      return graph::IsTemporal(mesh, axis);
    });
    dim.axes.erase(first, dim.axes.end());
  }
}

Sharding WithoutTemporalPartials(const Mesh& mesh, Sharding sharding) {
  for (PartialSpec& partial : sharding.partials) {
    std::erase_if(partial.axes, [&](const AxisRef& axis) { return graph::IsTemporal(mesh, axis); });
  }
  std::erase_if(sharding.partials, [](const PartialSpec& p) { return p.axes.empty(); });
  return sharding;
}

// What has become of a value of the old graph.
struct Versions {
  ValueId raw = kNoValue;      // as its kernel leaves it
  ValueId desired = kNoValue;  // as propagation decided; made when first asked for
  Sharding desired_sharding;
  std::vector<std::pair<Sharding, ValueId>> others;
};

class Inserter {
 public:
  Inserter(const graph::OpRegistry& ops, const Graph& in)
      : reshard_(ops.Find("reshard")),
        in_(in),
        out_(in.name()),
        versions_(in.num_values()),
        costs_(in.meshes()[0]) {
    out_.mutable_meshes() = in.meshes();
    out_.ReserveNames(in);
  }

  absl::Status Run();
  Graph Take() { return std::move(out_); }

 private:
  const Mesh& mesh() const { return in_.meshes()[0]; }
  const Sharding& ShardingOf(ValueId value) const { return *out_.value(value).sharding; }

  absl::Status AddNode(const Node& node);
  ValueId AddReshard(ValueId value, const Sharding& to, const Node& context,
                     const std::string& name);
  ValueId Desired(ValueId old);
  ValueId As(ValueId old, const Sharding& needed, const Node& context);
  bool PassPartials(const ShardingRule& rule, const Node& node, ExecutionSharding* execution,
                    absl::InlinedVector<ValueId, 4>* operands);
  bool MayStayPartial(ValueId old) const;
  void AddTyped(const Node& node, absl::InlinedVector<ValueId, 4> operands,
                absl::Span<const Sharding> results);

  const graph::Op* reshard_;
  const Graph& in_;
  Graph out_;
  std::vector<Versions> versions_;
  std::vector<int> num_uses_;  // operand occurrences and returns
  std::vector<NodeId> now_;    // of a node of the old graph
  ReshardCache costs_;
};

absl::Status Inserter::Run() {
  num_uses_.assign(in_.num_values(), 0);
  for (const Node& node : in_.nodes()) {
    for (ValueId operand : node.operands) ++num_uses_[operand];
  }
  for (const graph::Return& ret : in_.returns()) num_uses_[ret.value] += 2;

  for (const Node& node : in_.nodes()) RETURN_IF_ERROR(AddNode(node));

  for (const graph::Return& ret : in_.returns()) {
    const Node& producer = in_.node(in_.value(ret.value).producer);
    ValueId value = Desired(ret.value);
    Sharding wanted = ShardingOf(value);
    if (ret.sharding.has_value()) {
      graph::Value typed = in_.value(ret.value);
      typed.sharding = ret.sharding;
      wanted = ClosedSharding(mesh(), typed);
    }
    wanted.partials.clear();
    value = As(ret.value, wanted, producer);
    out_.mutable_returns().push_back({value, wanted});
  }
  return absl::OkStatus();
}

void Inserter::AddTyped(const Node& node, absl::InlinedVector<ValueId, 4> operands,
                        absl::Span<const Sharding> results) {
  Node copy = node;
  copy.operands = std::move(operands);
  std::vector<TensorType> types;
  std::vector<std::string> names;
  for (size_t r = 0; r < node.results.size(); ++r) {
    const graph::Value& value = in_.value(node.results[r]);
    Versions& versions = versions_[node.results[r]];
    types.push_back(value.type);
    // Feeds and states are called as the user called them.
    const bool keeps_name = node.op->has_declared_type() || results[r] == versions.desired_sharding;
    names.push_back(keeps_name ? value.name : out_.UniqueName(absl::StrCat(value.name, ".local")));
  }
  copy.results.clear();
  if (copy.forward != graph::kNoNode) copy.forward = now_[copy.forward];
  const NodeId id = out_.AddTyped(std::move(copy), types, names);
  now_.push_back(id);
  for (size_t r = 0; r < node.results.size(); ++r) {
    const ValueId made = out_.node(id).results[r];
    out_.mutable_value(made).sharding = results[r];
    Versions& versions = versions_[node.results[r]];
    versions.raw = made;
    if (results[r] == versions.desired_sharding) versions.desired = made;
  }
}

absl::Status Inserter::AddNode(const Node& node) {
  std::vector<Sharding> results;
  for (ValueId result : node.results) {
    Sharding closed = ClosedSharding(mesh(), in_.value(result));
    versions_[result].desired_sharding = closed;
    results.push_back(std::move(closed));
  }
  const std::string_view op = node.op->name();
  if (node.op->has_declared_type()) {
    Sharding held = results[0];
    held.partials.clear();
    if (op != "input") DropTemporal(mesh(), &held);
    AddTyped(node, {}, {held});
    return absl::OkStatus();
  }
  if (IsRedistribution(op)) {
    AddTyped(node, {Desired(node.operands[0])}, results);
    return absl::OkStatus();
  }

  const std::vector<TensorType> operand_types = in_.OperandTypes(node);
  const std::vector<TensorType> result_types = in_.ResultTypes(node);
  const ShardingRule rule = node.op->Rule({node.attributes, operand_types, result_types});
  std::vector<Sharding> operands;
  for (ValueId operand : node.operands) {
    operands.push_back(versions_[operand].desired_sharding);
  }
  if (op == "assign") {
    // The state decides: the new value comes to where it is kept.
    operands[0] = ShardingOf(versions_[node.operands[0]].raw);
    operands[1] = operands[0];
    AddTyped(node, {versions_[node.operands[0]].raw, As(node.operands[1], operands[1], node)}, {});
    return absl::OkStatus();
  }
  ExecutionSharding execution = ChooseCheapestExecution(mesh(), rule, operand_types, result_types,
                                                        operands, results, &costs_);
  absl::InlinedVector<ValueId, 4> inputs;
  if (!PassPartials(rule, node, &execution, &inputs)) {
    for (size_t o = 0; o < node.operands.size(); ++o) {
      inputs.push_back(As(node.operands[o], execution.operands[o], node));
    }
  }
  AddTyped(node, std::move(inputs), execution.results);
  for (ValueId result : node.results) {
    if (!MayStayPartial(result)) Desired(result);
  }
  return absl::OkStatus();
}

bool Inserter::MayStayPartial(ValueId old) const {
  const Versions& versions = versions_[old];
  return versions.desired == kNoValue && num_uses_[old] == 1 &&
         ShardingOf(versions.raw).is_partial();
}

// Lets a sum stay partial through a node that is linear in it. All operands of the group must be
// partial over the same axes, serve this node alone and lie as the node needs them.
bool Inserter::PassPartials(const ShardingRule& rule, const Node& node,
                            ExecutionSharding* execution,
                            absl::InlinedVector<ValueId, 4>* operands) {
  for (const std::vector<int>& group : rule.linear) {
    std::vector<PartialSpec> partials;
    bool fits = node.results.size() == 1;
    int64_t most_elements = 0;
    for (size_t i = 0; i < group.size() && fits; ++i) {
      const ValueId old = node.operands[group[i]];
      if (!MayStayPartial(old)) {
        fits = false;
        break;
      }
      const Sharding raw = WithoutTemporalPartials(mesh(), ShardingOf(versions_[old].raw));
      fits = raw.partials.size() == 1 && raw.partials[0].reduction == graph::Reduction::kSum &&
             raw.dims == execution->operands[group[i]].dims && (i == 0 || raw.partials == partials);
      partials = raw.partials;
      most_elements = std::max(most_elements, in_.value(old).type.num_elements());
    }
    if (!fits || group.empty()) continue;
    if (in_.value(node.results[0]).type.num_elements() > most_elements) continue;
    Sharding& result = execution->results[0];
    if (result.is_partial()) continue;
    const bool clashes =
        std::any_of(result.dims.begin(), result.dims.end(), [&](const graph::DimSharding& dim) {
          return std::any_of(dim.axes.begin(), dim.axes.end(), [&](const AxisRef& axis) {
            return std::any_of(
                partials[0].axes.begin(), partials[0].axes.end(), [&](const AxisRef& other) {
                  return graph::Overlap(axis, other) || !graph::CanCoexist(axis, other);
                });
          });
        });
    if (clashes) continue;
    for (size_t o = 0; o < node.operands.size(); ++o) {
      const ValueId old = node.operands[o];
      if (std::find(group.begin(), group.end(), static_cast<int>(o)) == group.end()) {
        operands->push_back(As(old, execution->operands[o], node));
        continue;
      }
      const ValueId raw = versions_[old].raw;
      const Sharding accumulated = WithoutTemporalPartials(mesh(), ShardingOf(raw));
      operands->push_back(accumulated == ShardingOf(raw)
                              ? raw
                              : AddReshard(raw, accumulated, in_.node(in_.value(old).producer),
                                           out_.UniqueName(in_.value(old).name)));
    }
    result.partials = partials;
    return true;
  }
  return false;
}

ValueId Inserter::AddReshard(ValueId value, const Sharding& to, const Node& context,
                             const std::string& name) {
  Node node;
  node.op = reshard_;
  node.operands = {value};
  node.mesh = context.mesh;
  node.stage = context.stage;
  node.phase = context.phase;
  if (context.forward != graph::kNoNode) node.forward = now_[context.forward];
  node.location = context.location;
  const NodeId id = out_.AddTyped(std::move(node), {out_.value(value).type}, {name});
  const ValueId made = out_.node(id).results[0];
  out_.mutable_value(made).sharding = to;
  return made;
}

ValueId Inserter::Desired(ValueId old) {
  Versions& versions = versions_[old];
  if (versions.desired == kNoValue) {
    const std::string& name = in_.value(old).name;
    const bool is_free = out_.FindValue(name) == kNoValue;
    versions.desired =
        AddReshard(versions.raw, versions.desired_sharding, in_.node(in_.value(old).producer),
                   is_free ? name : out_.UniqueName(name));
  }
  return versions.desired;
}

ValueId Inserter::As(ValueId old, const Sharding& needed, const Node& context) {
  Versions& versions = versions_[old];
  if (ShardingOf(versions.raw) == needed) return versions.raw;
  if (versions.desired_sharding == needed) return Desired(old);
  for (const auto& [sharding, value] : versions.others) {
    if (sharding == needed && out_.node(out_.value(value).producer).stage == context.stage) {
      return value;
    }
  }
  // A sum that one reader wants split goes there in one step; otherwise it is reduced once.
  const ValueId source = MayStayPartial(old) ? versions.raw : Desired(old);
  const ValueId made = AddReshard(source, needed, context, out_.UniqueName(in_.value(old).name));
  versions.others.emplace_back(needed, made);
  return made;
}

}  // namespace

absl::Status InsertReshards(const graph::OpRegistry& ops, Graph& graph) {
  RETURN_IF_ERROR(SelectMesh(graph));
  if (graph.meshes().empty()) graph.mutable_meshes().push_back({"m", {}});
  Inserter inserter(ops, graph);
  RETURN_IF_ERROR(inserter.Run());
  graph = inserter.Take();
  return absl::OkStatus();
}

}  // namespace penstock::planner
