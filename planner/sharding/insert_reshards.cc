#include "planner/sharding/insert_reshards.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "planner/plan/recomputed_mark.h"
#include "planner/sharding/arrival.h"
#include "planner/sharding/cheapest_execution.h"
#include "planner/sharding/execution_sharding.h"
#include "planner/sharding/halo.h"
#include "planner/sharding/leaf_copy.h"
#include "planner/sharding/select_mesh.h"
#include "planner/sharding/temporal_sharding.h"

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

// A gathered parameter takes memory, and is gathered again for gradients, which are scattered.
constexpr double kGatherOfSplitParameter = 8;

// Whether the node sums products of its two operands over some factor of its rule.
bool IsProduct(const Node& node, const ShardingRule& rule) {
  if (node.operands.size() != 2 || node.results.size() != 1) return false;
  const auto has = [](const graph::TensorFactors& dims, int factor) {
    return std::any_of(dims.begin(), dims.end(), [factor](const graph::DimFactors& dim) {
      return std::find(dim.begin(), dim.end(), factor) != dim.end();
    });
  };
  for (int factor = 0; factor < static_cast<int>(rule.factors.size()); ++factor) {
    if (rule.factors[factor].kind == graph::FactorKind::kReduction &&
        has(rule.operands[0], factor) && has(rule.operands[1], factor)) {
      return true;
    }
  }
  return false;
}

// A node of the forward pass, or a clone of one that computes it again: it runs in the same way, so
// that it gives the same bits.
bool RunsAsForward(const Graph& graph, const Node& node) {
  if (node.phase == graph::Phase::kForward) return true;
  if (node.forward == graph::kNoNode) return false;
  const Node& forward = graph.node(node.forward);
  graph::Attributes attributes = node.attributes;
  attributes.Erase(kRecomputedMark);
  return forward.op == node.op && forward.attributes == attributes;
}

// A version of a value that some reader asked for.
struct Version {
  Sharding sharding;
  ValueId value = kNoValue;
  int stage = -1;
  std::optional<bool> is_for_forward;  // of one that is gathered
  bool per_use = false;
  int mesh = 0;
};

// What has become of a value of the old graph.
struct Versions {
  ValueId raw = kNoValue;      // as its kernel leaves it
  ValueId desired = kNoValue;  // as propagation decided; made when first asked for
  Sharding desired_sharding;
  ValueId summed = kNoValue;  // `desired`, summed over micro-batches where it is not
  std::vector<Version> others;
};

class Inserter {
 public:
  Inserter(const graph::OpRegistry& ops, const Graph& in, ReshardCaches& caches)
      : reshard_(ops.Find("reshard")),
        receive_(ops.Find("receive")),
        in_(in),
        out_(in.name()),
        versions_(in.num_values()) {
    for (const Mesh& mesh : in.meshes()) costs_.push_back(&caches.Of(mesh));
    out_.mutable_meshes() = in.meshes();
    out_.ReserveNames(in);
  }

  absl::Status Run();
  Graph Take() { return std::move(out_); }

 private:
  // Of the node that is being added.
  const Mesh& mesh() const { return in_.meshes()[mesh_]; }
  const Mesh& MeshOf(ValueId old) const { return in_.meshes()[MeshIndexOf(old)]; }
  int MeshIndexOf(ValueId old) const { return in_.node(in_.value(old).producer).mesh; }
  const Sharding& ShardingOf(ValueId value) const { return *out_.value(value).sharding; }

  absl::Status AddNode(const Node& node, const ShardingRule& rule);
  absl::Status CheckReadsOfWindows(const Node& node, const ExecutionSharding& execution) const;
  ValueId AddReshard(ValueId value, const Sharding& to, const Node& context,
                     const std::string& name, bool per_use = false);
  ValueId Desired(ValueId old);
  ValueId Summed(ValueId old);
  ValueId As(ValueId old, const Sharding& needed, const Node& context);
  ValueId AsItIs(ValueId old, const Sharding& needed);
  Sharding OverTime(ValueId old) const;
  ValueId Sent(ValueId old);
  void AddReceive(const Node& node);
  ValueId Received(ValueId old, const Sharding& needed, const Node& context);
  ValueId AsTerm(ValueId old, const Sharding& needed, const std::vector<PartialSpec>& partials,
                 const Node& context);
  bool IsGatheredPerUse(ValueId old, const Sharding& needed, const Node& context) const;
  std::vector<PartialSpec> CommonPartials(const ShardingRule& rule, const std::vector<int>& group,
                                          const Node& node, ExecutionSharding* execution) const;
  bool PassPartials(const ShardingRule& rule, const Node& node, ExecutionSharding* execution,
                    absl::InlinedVector<ValueId, 4>* operands);
  bool MayStayPartial(ValueId old) const;
  double ShareOfGathering(ValueId old, const Node& reader) const;
  void AddTyped(const Node& node, absl::InlinedVector<ValueId, 4> operands,
                absl::Span<const Sharding> results);

  const graph::Op* reshard_;
  const graph::Op* receive_;
  const Graph& in_;
  Graph out_;
  std::vector<Versions> versions_;
  std::vector<int> num_uses_;  // operand occurrences and returns
  // Products that read a value: of the forward pass, and of the rest.
  std::vector<std::pair<int, int>> num_products_;
  std::vector<NodeId> now_;              // of a node of the old graph
  int mesh_ = 0;                         // of the current node
  bool runs_often_ = false;              // whether it runs once a micro-batch
  std::vector<bool> is_read_elsewhere_;  // a value: on another mesh
  std::vector<ReshardCache*> costs_;     // of each mesh
};

absl::Status Inserter::Run() {
  num_uses_.assign(in_.num_values(), 0);
  num_products_.assign(in_.num_values(), {0, 0});
  is_read_elsewhere_.assign(in_.num_values(), false);
  std::vector<ShardingRule> rules;  // of all nodes but declarations
  rules.reserve(static_cast<size_t>(in_.num_nodes()));
  for (const Node& node : in_.nodes()) {
    ShardingRule& rule = rules.emplace_back();
    if (!node.op->has_declared_type()) {
      rule = node.op->Rule({node.attributes, in_.OperandTypes(node), in_.ResultTypes(node)});
    }
    const bool is_product = IsProduct(node, rule);
    for (ValueId operand : node.operands) {
      ++num_uses_[operand];
      if (MeshIndexOf(operand) != node.mesh) is_read_elsewhere_[operand] = true;
      if (!is_product) continue;
      auto& [forward, backward] = num_products_[operand];
      ++(node.phase == graph::Phase::kForward ? forward : backward);
    }
  }
  for (const graph::Return& ret : in_.returns()) num_uses_[ret.value] += 2;

  for (NodeId id = 0; id < in_.num_nodes(); ++id) {
    RETURN_IF_ERROR(AddNode(in_.node(id), rules[static_cast<size_t>(id)]));
  }

  runs_often_ = false;
  for (const graph::Return& ret : in_.returns()) {
    const Node& producer = in_.node(in_.value(ret.value).producer);
    mesh_ = producer.mesh;
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

absl::Status Inserter::AddNode(const Node& node, const ShardingRule& rule) {
  mesh_ = node.mesh;
  runs_often_ = false;
  std::vector<Sharding> results;
  for (ValueId result : node.results) {
    Sharding closed = ClosedSharding(mesh(), in_.value(result));
    versions_[result].desired_sharding = closed;
    results.push_back(std::move(closed));
  }
  const graph::OpRole role = node.op->role();
  if (node.op->has_declared_type()) {
    Sharding held = results[0];
    held.partials.clear();
    if (role != graph::OpRole::kInput) DropTemporal(mesh(), &held);
    Sharding& desired = versions_[node.results[0]].desired_sharding;
    desired = WithoutOtherSums(mesh(), std::move(desired), held);
    AddTyped(node, {}, {held});
    return absl::OkStatus();
  }
  if (role == graph::OpRole::kAssign) {
    // The state decides: the new value comes to where it is kept.
    const ValueId state = versions_[node.operands[0]].raw;
    Node there = node;
    there.stage = in_.node(in_.value(node.operands[0]).producer).stage;
    const Sharding held = ShardingOf(state);
    AddTyped(node, {state, As(node.operands[1], held, there)}, {});
    return absl::OkStatus();
  }
  const bool is_receive = role == graph::OpRole::kReceive;
  if (is_receive && MeshIndexOf(node.operands[0]) != mesh_) {
    AddReceive(node);
    return absl::OkStatus();
  }
  // What says its sharding itself.
  if (IsRedistribution(role) || is_receive) {
    Node redistribution = node;
    if (is_receive) redistribution.op = reshard_;  // from the mesh that it lies on
    const ValueId old = node.operands[0];
    const bool is_foreign = MeshIndexOf(old) != mesh_;
    const ValueId source = is_foreign ? Received(old, results[0], node) : Desired(old);
    results[0] =
        WithoutOtherSums(mesh(), std::move(results[0]),
                         is_foreign ? ShardingOf(source) : versions_[old].desired_sharding);
    versions_[node.results[0]].desired_sharding = results[0];
    AddTyped(redistribution, {source}, results);
    return absl::OkStatus();
  }

  const std::vector<TensorType> operand_types = in_.OperandTypes(node);
  const std::vector<TensorType> result_types = in_.ResultTypes(node);
  std::vector<Sharding> operands;
  for (ValueId operand : node.operands) {
    operands.push_back(MeshIndexOf(operand) == mesh_ ? versions_[operand].desired_sharding
                                                     : OverTime(operand));
  }
  std::vector<double> shares;
  for (ValueId operand : node.operands) shares.push_back(ShareOfGathering(operand, node));
  ExecutionSharding execution =
      ChooseCheapestExecution(mesh(), rule, operand_types, result_types, operands, results, shares,
                              RunsAsForward(in_, node), costs_[mesh_]);
  RETURN_IF_ERROR(CheckReadsOfWindows(node, execution));
  const auto has_temporal = [&](const Sharding& each) { return HasTemporalAxes(mesh(), each); };
  runs_often_ = mesh().num_microbatches() == 1 ||
                std::any_of(execution.operands.begin(), execution.operands.end(), has_temporal) ||
                std::any_of(execution.results.begin(), execution.results.end(), has_temporal);
  absl::InlinedVector<ValueId, 4> inputs;
  if (!PassPartials(rule, node, &execution, &inputs)) {
    for (size_t o = 0; o < node.operands.size(); ++o) {
      inputs.push_back(As(node.operands[o], execution.operands[o], node));
    }
  }
  for (size_t r = 0; r < node.results.size(); ++r) {
    Sharding& desired = versions_[node.results[r]].desired_sharding;
    desired = WithoutOtherSums(mesh(), std::move(desired), execution.results[r]);
  }
  AddTyped(node, std::move(inputs), execution.results);
  for (ValueId result : node.results) {
    if (!MayStayPartial(result) ||
        HasTemporalPartials(mesh(), versions_[result].desired_sharding)) {
      Summed(result);
    }
  }
  return absl::OkStatus();
}

// A value that is held in windows has what one operator reads, and cannot become anything else.
absl::Status Inserter::CheckReadsOfWindows(const Node& node,
                                           const ExecutionSharding& execution) const {
  for (size_t o = 0; o < node.operands.size(); ++o) {
    const Sharding& held = versions_[node.operands[o]].desired_sharding;
    if (!held.has_windows()) continue;
    const graph::Value& value = in_.value(node.operands[o]);
    if (MeshIndexOf(node.operands[o]) != mesh_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "%", value.name, " is held in the windows ",
          graph::ToString(MeshOf(node.operands[o]), held), " and cannot be sent to another mesh"));
    }
    if (LeastNeeded(value.type.shape, held, execution.operands[o]) == held) continue;
    return absl::InvalidArgumentError(absl::StrCat("%", value.name, " is held in the windows ",
                                                   graph::ToString(mesh(), held), ", but ",
                                                   std::string(node.op->name()), " reads it as ",
                                                   graph::ToString(mesh(), execution.operands[o])));
  }
  return absl::OkStatus();
}

// What part of gathering the value the reader is charged with. Readers that are likely to need it
// in the same way share it: the gradients of a product's operands both read that of its result. A
// parameter that is split for good, not only to be kept in parts, should stay so.
double Inserter::ShareOfGathering(ValueId old, const Node& reader) const {
  const Node& producer = in_.node(in_.value(old).producer);
  if (producer.mesh != reader.mesh) return 0;  // it arrives as it is needed
  if (producer.op->role() == graph::OpRole::kParameter) {
    return producer.attributes.GetBool("per_use", false) ? 1 : kGatherOfSplitParameter;
  }
  for (const Version& version : versions_[old].others) {
    // It has been gathered for another reader.
    const bool is_for_forward = reader.phase == graph::Phase::kForward;
    if (version.is_for_forward == is_for_forward && version.stage == reader.stage) return 0;
  }
  const auto& [forward, backward] = num_products_[old];
  return 1.0 / std::max(reader.phase == graph::Phase::kForward ? forward : backward, 1);
}

bool Inserter::MayStayPartial(ValueId old) const {
  const Versions& versions = versions_[old];
  return versions.desired == kNoValue && num_uses_[old] == 1 && !is_read_elsewhere_[old] &&
         ShardingOf(versions.raw).is_partial();
}

// The sums that the operands of the group leave open in the same way: they must be partial over the
// same axes, serve this node alone and lie as the node needs them. Nothing if they are not.
//
// An elementwise node then runs as its terms lie, so that two gradients of which each replica is to
// have a part are added before they are scattered. Scalars need not agree: one that is not partial
// over some axis can become so for nothing. So the squared norms of gradients that are split over
// different axes are added before they are reduced once.
std::vector<PartialSpec> Inserter::CommonPartials(const ShardingRule& rule,
                                                  const std::vector<int>& group, const Node& node,
                                                  ExecutionSharding* execution) const {
  if (group.empty() || node.results.size() != 1) return {};
  // Micro-batches are summed first, unless their sums are to be kept apart.
  const bool keeps_time = HasTemporalPartials(mesh(), versions_[node.results[0]].desired_sharding);
  bool has_scalars = in_.value(node.results[0]).type.shape.empty();
  int64_t most_elements = 0;
  for (const int o : group) {
    const TensorType& type = in_.value(node.operands[o]).type;
    has_scalars = has_scalars && type.shape.empty();
    most_elements = std::max(most_elements, type.num_elements());
  }
  if (in_.value(node.results[0]).type.num_elements() > most_elements) return {};
  // What rounds its operand is worth it: the sum then takes fewer bytes.
  const DType dtype = in_.value(node.operands[group[0]]).type.dtype;
  const bool is_smaller = ByteSize(in_.value(node.results[0]).type.dtype) < ByteSize(dtype);
  const bool is_elementwise =
      (group.size() > 1 || is_smaller) && group.size() == node.operands.size() &&
      std::all_of(rule.factors.begin(), rule.factors.end(),
                  [](const graph::Factor& factor) {
                    return factor.kind == graph::FactorKind::kPassThrough;
                  }) &&
      std::all_of(rule.operands.begin(), rule.operands.end(),
                  [&](const graph::TensorFactors& dims) { return dims == rule.results[0]; });

  const std::vector<graph::DimSharding>* dims = nullptr;  // of the terms
  std::vector<PartialSpec> common;
  for (size_t i = 0; i < group.size(); ++i) {
    const ValueId old = node.operands[group[i]];
    if (!MayStayPartial(old)) {
      if (has_scalars && group.size() > 1) continue;
      return {};
    }
    Sharding raw = ShardingOf(versions_[old].raw);
    if (!keeps_time) raw = WithoutTemporalPartials(mesh(), std::move(raw));
    if (raw.partials.empty() && has_scalars && group.size() > 1) continue;
    if (raw.partials.size() != 1 || raw.partials[0].reduction != graph::Reduction::kSum) return {};
    if (is_elementwise) {
      const Sharding& as_made = ShardingOf(versions_[old].raw);
      if (dims != nullptr && as_made.dims != *dims) return {};
      dims = &as_made.dims;
    } else if (LeastNeeded(in_.value(old).type.shape, raw, execution->operands[group[i]]).dims !=
               raw.dims) {
      return {};
    }
    if (!has_scalars && i > 0 && raw.partials != common) return {};
    if (common.empty()) {
      common = raw.partials;
      continue;
    }
    for (const AxisRef& axis : raw.partials[0].axes) {
      std::vector<AxisRef>& axes = common[0].axes;
      if (std::find(axes.begin(), axes.end(), axis) != axes.end()) continue;
      const bool clashes = std::any_of(axes.begin(), axes.end(), [&](const AxisRef& other) {
        return graph::Overlap(axis, other) || !graph::CanCoexist(axis, other);
      });
      if (clashes) return {};
      axes.push_back(axis);
    }
  }
  if (common.empty()) return {};
  if (dims != nullptr) {
    for (Sharding& operand : execution->operands) operand.dims = *dims;
    execution->results[0].dims = *dims;
  }
  Sharding canonical;
  canonical.partials = std::move(common);
  graph::Canonicalize(mesh(), &canonical);
  return canonical.partials;
}

// Lets sums stay partial through a node that is linear in them.
bool Inserter::PassPartials(const ShardingRule& rule, const Node& node,
                            ExecutionSharding* execution,
                            absl::InlinedVector<ValueId, 4>* operands) {
  for (const std::vector<int>& group : rule.linear) {
    const std::vector<PartialSpec> partials = CommonPartials(rule, group, node, execution);
    if (partials.empty()) continue;
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
      const bool is_term =
          std::find(group.begin(), group.end(), static_cast<int>(o)) != group.end();
      const Sharding& needed = execution->operands[o];
      operands->push_back(is_term ? AsTerm(old, needed, partials, node) : As(old, needed, node));
    }
    result.partials = partials;
    return true;
  }
  return false;
}

// The value as a term of a sum over these axes.
ValueId Inserter::AsTerm(ValueId old, const Sharding& needed,
                         const std::vector<PartialSpec>& partials, const Node& context) {
  const bool is_foreign = MeshIndexOf(old) != context.mesh;
  const ValueId source = is_foreign            ? Received(old, needed, context)
                         : MayStayPartial(old) ? versions_[old].raw
                                               : Summed(old);
  Sharding term = ShardingOf(source);
  term.partials = partials;
  if (term == ShardingOf(source)) return source;
  return AddReshard(source, term, is_foreign ? context : in_.node(in_.value(old).producer),
                    out_.UniqueName(in_.value(old).name));
}

ValueId Inserter::AddReshard(ValueId value, const Sharding& to, const Node& context,
                             const std::string& name, bool per_use) {
  Node node;
  if (per_use) node.attributes.Set("per_use", true);
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

// The desired version, summed over micro-batches where they make it.
ValueId Inserter::Summed(ValueId old) {
  Versions& versions = versions_[old];
  if (!HasTemporalPartials(MeshOf(old), versions.desired_sharding)) return Desired(old);
  if (versions.summed == kNoValue) {
    versions.summed =
        AddReshard(Desired(old), WithoutTemporalPartials(MeshOf(old), versions.desired_sharding),
                   in_.node(in_.value(old).producer),
                   out_.UniqueName(absl::StrCat(in_.value(old).name, ".sum")));
  }
  return versions.summed;
}

// Whether each phase that reads the parameter gathers it for itself.
bool Inserter::IsGatheredPerUse(ValueId old, const Sharding& needed, const Node& context) const {
  const Node& producer = in_.node(in_.value(old).producer);
  return producer.attributes.GetBool("per_use", false) && runs_often_ &&
         context.phase != graph::Phase::kUpdate &&
         SpatialParts(mesh(), ShardingOf(versions_[old].raw)) > SpatialParts(mesh(), needed);
}

// The value as it was made or as it is kept, if that serves.
ValueId Inserter::AsItIs(ValueId old, const Sharding& needed) {
  const Versions& versions = versions_[old];
  const Shape& shape = in_.value(old).type.shape;
  const Sharding& raw = ShardingOf(versions.raw);
  if (LeastNeeded(shape, raw, needed) == raw) return versions.raw;
  const Sharding& desired = versions.desired_sharding;
  if (LeastNeeded(shape, desired, needed) == desired) return Desired(old);
  return kNoValue;
}

// A value of another mesh on this one, as far as micro-batches are concerned.
Sharding Inserter::OverTime(ValueId old) const {
  const Sharding& held = versions_[old].desired_sharding;
  return planner::OverTime(MeshOf(old), Sendable(MeshOf(old), held), mesh());
}

// The value as it is sent to other meshes.
ValueId Inserter::Sent(ValueId old) {
  const Node& producer = in_.node(in_.value(old).producer);
  const int reader_mesh = std::exchange(mesh_, producer.mesh);
  const ValueId sent = As(old, Sendable(mesh(), versions_[old].desired_sharding), producer);
  mesh_ = reader_mesh;
  return sent;
}

// The value of another mesh on the mesh and stage of its reader.
ValueId Inserter::Received(ValueId old, const Sharding& needed, const Node& context) {
  const Node& producer = in_.node(in_.value(old).producer);
  const bool is_leaf = IsLeaf(producer);
  Sharding whole = needed;
  whole.partials.clear();
  for (graph::DimSharding& dim : whole.dims) dim.window.reset();
  const TensorType& type = in_.value(old).type;
  const Sharding arrival = is_leaf ? whole : Arrival(type, mesh(), OverTime(old), whole);
  Sharding to = LeastNeeded(type.shape, arrival, needed);
  to.partials.clear();
  // As in As().
  std::optional<bool> is_for_forward;
  if (SpatialParts(mesh(), arrival) > SpatialParts(mesh(), to)) {
    is_for_forward = context.phase == graph::Phase::kForward;
  }
  ValueId received = kNoValue;
  for (const Version& version : versions_[old].others) {
    if (version.mesh != context.mesh || version.stage != context.stage) continue;
    if (version.sharding == to && version.is_for_forward == is_for_forward) return version.value;
    if (version.sharding == arrival && !version.is_for_forward.has_value()) {
      received = version.value;
    }
  }
  if (received == kNoValue) {
    Node node;
    if (is_leaf) {
      node = CopyOfLeaf(in_, producer, context.mesh, context.stage);
      if (node.forward != graph::kNoNode) node.forward = now_[node.forward];
    } else {
      node.op = receive_;
      node.operands = {Sent(old)};
      node.phase = context.phase;
      if (context.forward != graph::kNoNode) node.forward = now_[context.forward];
      node.location = context.location;
      node.mesh = context.mesh;
      node.stage = context.stage;
    }
    const NodeId id =
        out_.AddTyped(std::move(node), {type}, {out_.UniqueName(in_.value(old).name)});
    received = out_.node(id).results[0];
    out_.mutable_value(received).sharding = arrival;
    versions_[old].others.push_back({arrival, received, context.stage, {}, false, context.mesh});
  }
  if (to == arrival) return received;
  const ValueId made = AddReshard(received, to, context, out_.UniqueName(in_.value(old).name));
  versions_[old].others.push_back({to, made, context.stage, is_for_forward, false, context.mesh});
  return made;
}

// One that the graph has already, of an earlier run of the pass.
void Inserter::AddReceive(const Node& node) {
  const ValueId old = node.operands[0];
  Sharding& desired = versions_[node.results[0]].desired_sharding;
  desired.partials.clear();
  for (graph::DimSharding& dim : desired.dims) dim.window.reset();
  desired = ArrivalAsNeeded(mesh(), OverTime(old), desired);
  AddTyped(node, {Sent(old)}, {desired});
}

ValueId Inserter::As(ValueId old, const Sharding& needed, const Node& context) {
  if (MeshIndexOf(old) != context.mesh) return Received(old, needed, context);
  Versions& versions = versions_[old];
  if (const ValueId as_it_is = AsItIs(old, needed); as_it_is != kNoValue) return as_it_is;
  const bool per_use = IsGatheredPerUse(old, needed, context);
  // What is split is kept from forward to backward as it is: a gathered version would take the
  // memory that the split saves.
  std::optional<bool> is_for_forward;
  const Sharding& held =
      per_use || MayStayPartial(old) ? ShardingOf(versions.raw) : versions.desired_sharding;
  if (SpatialParts(mesh(), held) > SpatialParts(mesh(), needed)) {
    is_for_forward = context.phase == graph::Phase::kForward;
  }
  for (const Version& version : versions.others) {
    if (version.sharding == needed && version.mesh == context.mesh &&
        version.stage == context.stage && version.is_for_forward == is_for_forward &&
        version.per_use == per_use) {
      return version.value;
    }
  }
  // A sum that one reader wants split goes there in one step; otherwise it is reduced once.
  const ValueId source = per_use || MayStayPartial(old) ? versions.raw : Summed(old);
  const Sharding to = LeastNeeded(in_.value(old).type.shape, ShardingOf(source), needed);
  if (ShardingOf(source) == to) return source;
  const ValueId made =
      AddReshard(source, to, context, out_.UniqueName(in_.value(old).name), per_use);
  versions.others.push_back({needed, made, context.stage, is_for_forward, per_use, context.mesh});
  return made;
}

}  // namespace

absl::Status InsertReshards(const graph::OpRegistry& ops, Graph& graph, ReshardCaches* caches) {
  RETURN_IF_ERROR(SelectMesh(graph));
  if (graph.meshes().empty()) graph.mutable_meshes().push_back({"m", {}});
  ReshardCaches own;
  Inserter inserter(ops, graph, caches != nullptr ? *caches : own);
  RETURN_IF_ERROR(inserter.Run());
  graph = inserter.Take();
  return absl::OkStatus();
}

}  // namespace penstock::planner
