#include "planner/sharding/split_sends.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "planner/sharding/execution_sharding.h"
#include "planner/sharding/select_mesh.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::Graph;
using graph::Mesh;
using graph::Node;
using graph::NodeId;
using graph::Sharding;
using graph::ShardingRule;
using graph::ValueId;

// A slice moves up through at most so many nodes.
constexpr int kMaxMoves = 16;

bool IsReshard(const Node& node) { return node.op->role() == graph::OpRole::kReshard; }

class Splitter {
 public:
  Splitter(const graph::Op* reshard, const SendOptions& options, const Graph& in)
      : reshard_(reshard),
        options_(options),
        in_(in),
        out_(in.name()),
        users_(in.Users()),
        num_reads_(in.num_values()),
        now_(in.num_values(), graph::kNoValue),
        part_(in.num_values(), graph::kNoValue),
        chooser_(in.meshes()[0], options.costs) {
    out_.mutable_meshes() = in.meshes();
    out_.ReserveNames(in);
  }

  // Nothing if all is sent as it is.
  std::optional<Graph> Run() {
    for (const Node& node : in_.nodes()) {
      for (const ValueId operand : node.operands) ++num_reads_[operand];
    }
    for (const graph::Return& ret : in_.returns()) ++num_reads_[ret.value];
    for (ValueId value = 0; value < in_.num_values(); ++value) ChooseSent(value);
    for (NodeId id = 0; id < in_.num_nodes(); ++id) AddInParts(id);
    if (sent_.empty()) return std::nullopt;
    for (const auto& [value, sent] : sent_) {
      if (IsOnlySent(value)) MakeAs(value, sent, 0);
    }
    for (NodeId id = 0; id < in_.num_nodes(); ++id) AddNode(id);
    for (const graph::Return& ret : in_.returns()) {
      out_.mutable_returns().push_back({now_[ret.value], ret.sharding});
    }
    return std::move(out_);
  }

 private:
  const Mesh& mesh() const { return in_.meshes()[0]; }
  const Node& ProducerOf(ValueId value) const { return in_.node(in_.value(value).producer); }
  Sharding HeldAs(ValueId value) const { return ClosedSharding(mesh(), in_.value(value)); }

  // A state is written where it is kept.
  int StageOf(const Node& node) const {
    if (node.op->role() == graph::OpRole::kAssign) {
      return std::max(ProducerOf(node.operands[0]).stage, 0);
    }
    return std::max(node.stage, 0);
  }
  int GroupOf(const Node& node) const {
    const int stage = StageOf(node);
    return options_.placement.has_value() ? options_.placement->GroupOf(stage) : stage;
  }
  bool IsRemote(ValueId value, const Node& reader) const {
    return GroupOf(ProducerOf(value)) != GroupOf(reader);
  }

  // As what the node needs the value that it reads. A parameter that is gathered for each use
  // arrives once a step.
  Sharding NeededAs(ValueId value, const Node& reader) const {
    if (IsReshard(reader) && !reader.attributes.GetBool("per_use", false)) {
      return HeldAs(reader.results[0]);
    }
    return HeldAs(value);
  }

  void ChooseSent(ValueId value) {
    if (IsLeaf(ProducerOf(value).op->role())) return;
    std::map<int, std::vector<Sharding>> needed;  // by group
    for (const NodeId user : users_[value]) {
      const Node& reader = in_.node(user);
      if (!IsRemote(value, reader)) continue;
      std::vector<Sharding>& of_group = needed[GroupOf(reader)];
      Sharding as = NeededAs(value, reader);
      if (std::find(of_group.begin(), of_group.end(), as) == of_group.end()) {
        of_group.push_back(std::move(as));
      }
    }
    if (needed.empty()) return;
    std::vector<std::vector<Sharding>> lists;
    for (auto& [group, of_group] : needed) lists.push_back(std::move(of_group));
    const Sharding held = HeldAs(value);
    Sharding sent = chooser_.Choose(in_.value(value).type, held, lists);
    if (sent != held) sent_.emplace(value, std::move(sent));
  }

  bool IsReturned(ValueId value) const {
    return std::any_of(in_.returns().begin(), in_.returns().end(),
                       [&](const graph::Return& ret) { return ret.value == value; });
  }

  bool IsOnlySent(ValueId value) const {
    return !IsReturned(value) &&
           std::all_of(users_[value].begin(), users_[value].end(),
                       [&](NodeId user) { return IsRemote(value, in_.node(user)); });
  }

  // Terms of a sum that come from several stages, each partial in the same way, are scattered where
  // they are made and added part by part, if that is cheaper than to send whole terms.
  void AddInParts(NodeId id) {
    const Node& node = in_.node(id);
    if (node.op->role() != graph::OpRole::kAdd || IsReturned(node.results[0])) return;
    const Sharding terms = HeldAs(node.results[0]);
    if (!terms.is_partial() || node.operands[0] == node.operands[1]) return;
    int num_remote = 0;
    for (const ValueId operand : node.operands) {
      if (HeldAs(operand) != terms || num_reads_[operand] != 1) return;
      if (IsRemote(operand, node)) ++num_remote;
    }
    if (num_remote == 0) return;
    std::vector<Sharding> needed;
    for (const NodeId user : users_[node.results[0]]) {
      const Node& reader = in_.node(user);
      if (!IsReshard(reader) || IsRemote(node.results[0], reader)) return;
      Sharding as = HeldAs(reader.results[0]);
      if (std::find(needed.begin(), needed.end(), as) == needed.end()) {
        needed.push_back(std::move(as));
      }
    }
    if (needed.empty()) return;
    const TensorType& type = in_.value(node.results[0]).type;
    const Sharding part = chooser_.Choose(type, terms, {needed});
    const auto cost = [&](const Sharding& added) {
      double sum = num_remote * chooser_.SendingCost(type, added);
      for (size_t o = 0; o < node.operands.size(); ++o) {
        sum += chooser_.RedistributionCost(type, terms, added);
      }
      for (const Sharding& each : needed) sum += chooser_.RedistributionCost(type, added, each);
      return sum;
    };
    if (part.is_partial() || cost(part) >= cost(terms)) return;
    for (const ValueId operand : node.operands) {
      if (IsRemote(operand, node)) sent_.emplace(operand, part);
    }
    made_as_.emplace(node.results[0], part);
    operands_.emplace(id, std::vector<Sharding>(node.operands.size(), part));
  }

  // Tries to have the value made as `part` of what it is now, if that makes a redistribution
  // before it cheaper. REQUIRES: nothing else reads it.
  bool MakeAs(ValueId value, const Sharding& part, int num_moves) {
    const Node& node = ProducerOf(value);
    if (num_moves > kMaxMoves || node.results.size() != 1) return false;
    const Sharding held = HeldAs(value);
    if (held.is_partial()) return false;
    const TensorType& type = in_.value(value).type;
    if (IsReshard(node)) {
      const Sharding from = HeldAs(node.operands[0]);
      if (IsRemote(node.operands[0], node) || from.dims.size() != part.dims.size()) return false;
      if (chooser_.RedistributionCost(type, from, part) >=
          chooser_.RedistributionCost(type, from, held) * (1 - 1e-9)) {
        return false;
      }
      made_as_.emplace(value, part);
      return true;
    }
    std::optional<std::vector<Sharding>> operands = OperandsForPart(in_, node, part);
    if (!operands.has_value()) return false;
    bool saves = false;
    for (size_t o = 0; o < node.operands.size(); ++o) {
      const ValueId operand = node.operands[o];
      if (num_reads_[operand] != 1 || IsRemote(operand, node)) continue;
      if ((*operands)[o] == HeldAs(operand)) continue;
      saves |= MakeAs(operand, (*operands)[o], num_moves + 1);
    }
    if (!saves) return false;
    made_as_.emplace(value, part);
    operands_.emplace(in_.value(value).producer, *std::move(operands));
    return true;
  }

  void AddNode(NodeId id) {
    const Node& node = in_.node(id);
    Node copy = node;
    const auto sliced = operands_.find(id);
    for (size_t o = 0; o < node.operands.size(); ++o) {
      const ValueId operand = node.operands[o];
      const auto sent = sent_.find(operand);
      if (sent != sent_.end() && IsRemote(operand, node)) {
        const bool reads_part = sliced != operands_.end() && sliced->second[o] == sent->second;
        copy.operands[o] =
            reads_part || BeginsWithPart(operand, node) ? part_[operand] : Whole(operand, node);
      } else {
        copy.operands[o] = now_[operand];
      }
      if (sliced == operands_.end()) continue;
      const Sharding& needed = sliced->second[o];
      if (ClosedSharding(mesh(), out_.value(copy.operands[o])) == needed) continue;
      copy.operands[o] = AddReshard(copy.operands[o], needed, node, node.phase, PartName(operand));
    }
    if (copy.forward != graph::kNoNode) copy.forward = now_node_[copy.forward];
    copy.results.clear();
    std::vector<std::string> names;
    for (const ValueId result : node.results) names.push_back(in_.value(result).name);
    const NodeId added = out_.AddTyped(std::move(copy), in_.ResultTypes(node), names);
    now_node_.push_back(added);
    for (size_t r = 0; r < node.results.size(); ++r) {
      const ValueId old = node.results[r];
      now_[old] = out_.node(added).results[r];
      const auto made = made_as_.find(old);
      out_.mutable_value(now_[old]).sharding =
          made == made_as_.end() ? in_.value(old).sharding : made->second;
      const auto sent = sent_.find(old);
      if (sent == sent_.end()) continue;
      part_[old] = made != made_as_.end()
                       ? now_[old]
                       : AddReshard(now_[old], sent->second, node, PhaseOfPart(old), PartName(old));
    }
  }

  std::string PartName(ValueId old) const {
    return out_.UniqueName(absl::StrCat(in_.value(old).name, ".part"));
  }

  // A parameter belongs to the phases that read it.
  graph::Phase PhaseOfPart(ValueId old) const {
    const Node& producer = ProducerOf(old);
    if (!producer.op->has_declared_type()) return producer.phase;
    graph::Phase phase = graph::Phase::kUpdate;
    for (const NodeId user : users_[old]) {
      if (IsRemote(old, in_.node(user))) phase = std::min(phase, in_.node(user).phase);
    }
    return phase;
  }

  // Whether the reader redistributes what it reads, at least as well from the part.
  bool BeginsWithPart(ValueId old, const Node& reader) {
    if (!IsReshard(reader) || reader.attributes.GetBool("per_use", false)) return false;
    const TensorType& type = in_.value(old).type;
    const Sharding held = HeldAs(old);
    const Sharding needed = HeldAs(reader.results[0]);
    const bool has_whole = std::any_of(users_[old].begin(), users_[old].end(), [&](NodeId user) {
      const Node& other = in_.node(user);
      return GroupOf(other) == GroupOf(reader) && NeededAs(old, other) == held;
    });
    return !has_whole || chooser_.RedistributionCost(type, sent_.at(old), needed) <=
                             chooser_.RedistributionCost(type, held, needed);
  }

  // The value as it was before it was split, put together in the reader's stage for all its nodes.
  ValueId Whole(ValueId old, const Node& reader) {
    const auto [it, is_new] = whole_.try_emplace({old, StageOf(reader)}, graph::kNoValue);
    if (!is_new) return it->second;
    const Node* first = &reader;
    for (const NodeId user : users_[old]) {
      const Node& other = in_.node(user);
      if (StageOf(other) == StageOf(reader) && other.phase < first->phase) first = &other;
    }
    it->second = AddReshard(part_[old], HeldAs(old), reader, first->phase,
                            out_.UniqueName(in_.value(old).name));
    return it->second;
  }

  // Right before the next node, on the stage of `context`.
  ValueId AddReshard(ValueId value, const Sharding& to, const Node& context, graph::Phase phase,
                     const std::string& name) {
    Node node;
    node.op = reshard_;
    node.operands = {value};
    node.mesh = context.mesh;
    node.stage = context.op->role() == graph::OpRole::kAssign ? StageOf(context) : context.stage;
    node.phase = phase;
    if (context.forward != graph::kNoNode) node.forward = now_node_[context.forward];
    node.location = context.location;
    const NodeId id = out_.AddTyped(std::move(node), {out_.value(value).type}, {name});
    const ValueId made = out_.node(id).results[0];
    out_.mutable_value(made).sharding = to;
    return made;
  }

  const graph::Op* reshard_;
  const SendOptions& options_;
  const Graph& in_;
  Graph out_;
  const std::vector<std::vector<NodeId>> users_;
  std::vector<int> num_reads_;  // operand occurrences and returns
  std::vector<ValueId> now_;    // of a value of the old graph, as its stage has it
  std::vector<ValueId> part_;   // likewise, as it is sent; those of sent_
  std::vector<NodeId> now_node_;
  SendChooser chooser_;
  std::map<ValueId, Sharding> sent_;     // what is split to be sent
  std::map<ValueId, Sharding> made_as_;  // what is made split, as nothing else is needed of it
  std::map<NodeId, std::vector<Sharding>> operands_;  // of nodes that make one of those
  std::map<std::pair<ValueId, int>, ValueId> whole_;  // of a value, in a stage
};

}  // namespace

std::optional<std::vector<Sharding>> OperandsForPart(const Graph& graph, const Node& node,
                                                     const Sharding& part) {
  if (node.operands.empty() || node.results.size() != 1) return std::nullopt;
  const Mesh& mesh = graph.meshes()[0];
  const std::vector<TensorType> operand_types = graph.OperandTypes(node);
  const std::vector<TensorType> result_types = graph.ResultTypes(node);
  const ShardingRule rule = node.op->Rule({node.attributes, operand_types, result_types});
  if (rule.results.size() != 1 || rule.operands.size() != node.operands.size()) {
    return std::nullopt;
  }
  const Sharding whole = ClosedSharding(mesh, graph.value(node.results[0]));
  std::vector<Sharding> operands;
  for (const ValueId operand : node.operands) {
    operands.push_back(ClosedSharding(mesh, graph.value(operand)));
  }
  for (size_t d = 0; d < part.dims.size(); ++d) {
    if (part.dims[d] == whole.dims[d]) continue;
    const graph::DimFactors& factors = rule.results[0][d];
    if (factors.size() != 1 ||
        rule.factors[static_cast<size_t>(factors[0])].kind != graph::FactorKind::kPassThrough) {
      return std::nullopt;
    }
    for (size_t o = 0; o < operands.size(); ++o) {
      const graph::TensorFactors& dims = rule.operands[o];
      for (size_t e = 0; e < dims.size(); ++e) {
        if (std::find(dims[e].begin(), dims[e].end(), factors[0]) == dims[e].end()) continue;
        if (dims[e] != factors || operands[o].dims[e] != whole.dims[d]) return std::nullopt;
        operands[o].dims[e] = part.dims[d];
      }
    }
  }
  for (size_t o = 0; o < operands.size(); ++o) {
    // An axis may split an operand once.
    if (!graph::CheckSharding(mesh, operands[o], operand_types[o].shape).ok()) return std::nullopt;
  }
  return operands;
}

absl::Status SplitSends(const graph::OpRegistry& ops, const SendOptions& options, Graph& graph) {
  RETURN_IF_ERROR(SelectMesh(graph));
  if (graph.meshes().empty() || graph.meshes()[0].num_devices() == 1) return absl::OkStatus();
  // Between meshes of different sizes, insert-reshards has split what is sent.
  if (graph.meshes().size() > 1) return absl::OkStatus();
  const graph::Op* reshard = ops.Find("reshard");
  if (reshard == nullptr) return absl::InternalError("no operator reshard");
  std::optional<Graph> split = Splitter(reshard, options, graph).Run();
  if (split.has_value()) graph = *std::move(split);
  return absl::OkStatus();
}

}  // namespace penstock::planner
