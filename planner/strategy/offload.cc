#include "planner/strategy/offload.h"

#include <algorithm>
#include <climits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "planner/sharding/execution_sharding.h"

namespace penstock::planner {
namespace {

using graph::Graph;
using graph::kNoNode;
using graph::kNoValue;
using graph::Mesh;
using graph::Node;
using graph::NodeId;
using graph::Phase;
using graph::ValueId;

constexpr char kOffloadMark[] = "offload";
constexpr char kMemory[] = "memory";
constexpr char kHost[] = "host";

// What the backward pass receives from another mesh has been sent when it was made.
bool ReadsInBackward(const Node& node) {
  return (node.phase == Phase::kBackward || node.phase == Phase::kWeightBackward) &&
         node.op->role() != graph::OpRole::kReceive;
}

bool Computes(const Node& node) {
  return node.phase == Phase::kForward && !node.op->has_declared_type() &&
         (!node.operands.empty() || node.op->is_random());
}

// One run of the pass.
class Offloader {
 public:
  // `ahead`: of each node another one, whose operands are copied to the device before the node
  // computes; kNoNode: none.
  Offloader(const graph::Op* to_host, const graph::Op* to_device, const Graph& in,
            std::vector<NodeId> ahead)
      : to_host_(to_host),
        to_device_(to_device),
        in_(in),
        ahead_(std::move(ahead)),
        out_(in.name()),
        users_(in.Users()) {
    out_.mutable_meshes() = in.meshes();
    out_.ReserveNames(in);
  }

  Graph Run() {
    FindMarks();
    FindStores();
    now_.assign(in_.num_values(), kNoValue);
    for (NodeId id = 0; id < in_.num_nodes(); ++id) Copy(id);
    for (const graph::Return& ret : in_.returns()) {
      ValueId value = now_[ret.value];
      if (IsOnHost(in_, ret.value)) value = Load(ret.value, ProducerOf(ret.value).phase);
      out_.mutable_returns().push_back({value, ret.sharding});
    }
    return std::move(out_);
  }

  // After Run: of each node for which something is copied to the device, the next such node of its
  // stage and phase.
  std::vector<NodeId> NextLoaders() const {
    std::vector<NodeId> next(in_.num_nodes(), kNoNode);
    std::map<std::pair<int, Phase>, NodeId> last;
    for (const NodeId id : loaders_) {
      const auto [before, is_first] =
          last.try_emplace({in_.node(id).stage, in_.node(id).phase}, id);
      if (!is_first) next[std::exchange(before->second, id)] = id;
    }
    return next;
  }

 private:
  // A value and the stage of those that read it.
  using Use = std::pair<ValueId, int>;

  const Node& ProducerOf(ValueId value) const { return in_.node(in_.value(value).producer); }

  // What passes have put between a marked node and its readers has the mark of that.
  void FindMarks() {
    least_bytes_.assign(in_.num_nodes(), -1);
    for (NodeId id = 0; id < in_.num_nodes(); ++id) {
      const Node& node = in_.node(id);
      if (!Computes(node)) continue;
      if (node.attributes.Find(kOffloadMark) != nullptr) {
        least_bytes_[id] = node.attributes.GetInt(kOffloadMark, 0);
      } else if (node.operands.size() == 1) {
        least_bytes_[id] = least_bytes_[in_.value(node.operands[0]).producer];
      }
    }
  }

  // What is not split over micro-batches is made once a step, and kept for all of it.
  bool IsMadeEachMicrobatch(ValueId value) const {
    if (in_.meshes().empty() || in_.meshes()[0].num_microbatches() == 1) return true;
    const Mesh& mesh = in_.meshes()[ProducerOf(value).mesh];
    const graph::Sharding sharding = ClosedSharding(mesh, in_.value(value));
    return std::any_of(
        sharding.dims.begin(), sharding.dims.end(), [&](const graph::DimSharding& dim) {
          return std::any_of(dim.axes.begin(), dim.axes.end(), [&](const graph::AxisRef& axis) {
            return graph::IsTemporal(mesh, axis);
          });
        });
  }

  // Of the largest tile, where they are uneven by at most one row.
  int64_t BytesOnDevice(ValueId value) const {
    const graph::Value& v = in_.value(value);
    int64_t parts = 1;
    if (!in_.meshes().empty()) {
      for (const graph::DimSharding& dim :
           ClosedSharding(in_.meshes()[ProducerOf(value).mesh], v).dims) {
        parts *= graph::NumParts(dim);
      }
    }
    return (static_cast<int64_t>(v.type.num_bytes()) + parts - 1) / parts;
  }

  bool MayLeave(ValueId value) const {
    const NodeId producer = in_.value(value).producer;
    return least_bytes_[producer] >= 0 && !IsOnHost(in_, value) && IsMadeEachMicrobatch(value) &&
           BytesOnDevice(value) >= least_bytes_[producer];
  }

  // The value whose bytes a chain of reshapes of one stage gives another shape.
  ValueId RootOf(ValueId value) const {
    while (IsReshape(value)) value = ProducerOf(value).operands[0];
    return value;
  }
  bool IsReshape(ValueId value) const {
    const Node& node = ProducerOf(value);
    return node.op->role() == graph::OpRole::kReshape && node.phase == Phase::kForward &&
           ProducerOf(node.operands[0]).stage == node.stage;
  }

  void FindStores() {
    for (const Node& node : in_.nodes()) {
      if (node.op->role() == graph::OpRole::kAssign && IsOnHost(in_, node.operands[0]) &&
          IsStoredAtOnce(node.operands[1])) {
        assigns_.insert({node.operands[1], ProducerOf(node.operands[0]).stage});
      }
      if (!ReadsInBackward(node)) continue;
      for (const ValueId operand : node.operands) {
        const ValueId root = RootOf(operand);
        // Forward values go to later stages only.
        if (!MayLeave(root) || node.stage < ProducerOf(root).stage) continue;
        stores_.insert({root, node.stage});
        if (node.phase == Phase::kBackward) read_by_backward_.insert({root, node.stage});
      }
    }
  }

  void Copy(NodeId id) {
    const Node& node = in_.node(id);
    if (node.op == to_device_ && !IsOnHost(in_, node.operands[0])) {
      // It is there already.
      now_[node.results[0]] = now_[node.operands[0]];
      now_node_.push_back(out_.value(now_[node.operands[0]]).producer);
      AddStores(stores_, node.results[0], Phase::kForward, &stored_);
      AddStores(assigns_, node.results[0], node.phase, &assigned_);
      return;
    }
    Node copy = node;
    const int num_loads = num_loads_;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      copy.operands[i] = OperandOf(node, i);
    }
    if (num_loads_ != num_loads) loaders_.push_back(id);
    if (ahead_[id] != kNoNode) LoadAhead(in_.node(ahead_[id]));
    copy.results.clear();
    copy.attributes.Erase(kOffloadMark);
    if (copy.forward != kNoNode) copy.forward = now_node_[copy.forward];
    std::vector<std::string> names;
    for (const ValueId result : node.results) names.push_back(in_.value(result).name);
    now_node_.push_back(out_.AddTyped(std::move(copy), in_.ResultTypes(node), names));
    for (size_t r = 0; r < node.results.size(); ++r) {
      const ValueId result = node.results[r];
      now_[result] = out_.node(now_node_.back()).results[r];
      out_.mutable_value(now_[result]).sharding = in_.value(result).sharding;
      AddStores(stores_, result, Phase::kForward, &stored_);
      AddStores(assigns_, result, node.phase, &assigned_);
    }
  }

  void AddStores(const std::set<Use>& uses, ValueId value, Phase phase,
                 std::map<Use, ValueId>* made) {
    for (auto it = uses.lower_bound({value, INT_MIN}); it != uses.end() && it->first == value;
         ++it) {
      (*made)[*it] = AddCopy(to_host_, value, now_[value], phase, it->second);
    }
  }

  // Of a value that is assigned to a state on the host. What is there before the step, or made
  // again wherever it is read, or on the host already, is copied by its assign.
  bool IsStoredAtOnce(ValueId value) const {
    return !ProducerOf(value).operands.empty() && !IsOnHost(in_, value);
  }

  ValueId OperandOf(const Node& node, size_t i) {
    const ValueId operand = node.operands[i];
    const bool is_on_host = IsOnHost(in_, operand);
    if (node.op == to_device_) return now_[operand];
    if (node.op->role() == graph::OpRole::kAssign && IsOnHost(in_, node.operands[0])) {
      const int stage = ProducerOf(node.operands[0]).stage;
      const Node& producer = ProducerOf(operand);
      if (i == 0 || (producer.op == to_host_ && producer.stage == stage)) return now_[operand];
      if (IsStoredAtOnce(operand)) return assigned_.at({operand, stage});
      const ValueId value = is_on_host ? Load(operand, Phase::kUpdate) : now_[operand];
      return AddCopy(to_host_, operand, value, Phase::kUpdate, stage);
    }
    if (node.op->role() == graph::OpRole::kAssign && i == 0) return now_[operand];
    if (is_on_host) {
      // To a later stage values go with the forward pass alone.
      const bool is_sent = ReadsInBackward(node) && node.stage > ProducerOf(operand).stage;
      const Phase phase = is_sent ? Phase::kForward : node.phase;
      return Load(operand, node.op->role() == graph::OpRole::kAssign ? Phase::kUpdate : phase);
    }
    if (ReadsInBackward(node) && stores_.contains({RootOf(operand), node.stage})) {
      return Restore(operand, node.stage);
    }
    return now_[operand];
  }

  // Copies what a later node reads, as far as it has been made.
  void LoadAhead(const Node& node) {
    if (node.op->role() == graph::OpRole::kAssign) return;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const ValueId operand = node.operands[i];
      const bool is_there = IsOnHost(in_, operand)
                                ? now_[operand] != kNoValue
                                : stored_.contains({RootOf(operand), node.stage});
      if (is_there) OperandOf(node, i);
    }
  }

  // The value in the device's memory, copied once for the readers of one part of the step.
  ValueId Load(ValueId value, Phase phase) {
    if (phase == Phase::kWeightBackward && HasReader(value, Phase::kBackward)) {
      phase = Phase::kBackward;
    }
    const auto [it, is_new] = loaded_.try_emplace({value, phase}, kNoValue);
    if (is_new) {
      it->second = AddCopy(to_device_, value, now_[value], phase, ProducerOf(value).stage);
    }
    return it->second;
  }

  bool HasReader(ValueId value, Phase phase) const {
    return std::any_of(users_[value].begin(), users_[value].end(),
                       [&](NodeId user) { return in_.node(user).phase == phase; });
  }

  // What the backward pass of a stage reads instead of the value.
  ValueId Restore(ValueId value, int stage) {
    const auto known = restored_.find({value, stage});
    if (known != restored_.end()) return known->second;
    const ValueId root = RootOf(value);
    const Phase phase =
        read_by_backward_.contains({root, stage}) ? Phase::kBackward : Phase::kWeightBackward;
    ValueId made = kNoValue;
    if (value == root) {
      made = AddCopy(to_device_, value, stored_.at({value, stage}), phase, stage);
    } else {
      Node reshape = ProducerOf(value);
      reshape.operands = {Restore(reshape.operands[0], stage)};
      made = Add(std::move(reshape), value, ".to_device", phase, stage);
    }
    restored_[{value, stage}] = made;
    return made;
  }

  ValueId AddCopy(const graph::Op* op, ValueId like, ValueId operand, Phase phase, int stage) {
    Node node;
    node.op = op;
    if (op == to_device_) ++num_loads_;
    node.operands = {operand};
    node.mesh = ProducerOf(like).mesh;
    return Add(std::move(node), like, StrCat(".", op->name()), phase, stage);
  }

  ValueId Add(Node node, ValueId like, const std::string& suffix, Phase phase, int stage) {
    node.results.clear();
    node.attributes.Erase(kOffloadMark);
    node.phase = phase;
    node.stage = stage;
    node.forward = kNoNode;
    const graph::Value& value = in_.value(like);
    const std::string name = out_.UniqueName(StrCat(value.name, suffix));
    const NodeId id = out_.AddTyped(std::move(node), {value.type}, {name});
    const ValueId made = out_.node(id).results[0];
    out_.mutable_value(made).sharding = value.sharding;
    return made;
  }

  const graph::Op* to_host_;
  const graph::Op* to_device_;
  const Graph& in_;
  const std::vector<NodeId> ahead_;
  Graph out_;
  const std::vector<std::vector<NodeId>> users_;
  std::vector<int64_t> least_bytes_;  // of nodes: the mark; -1: none
  std::set<Use> stores_;              // what goes to the host for the backward pass
  std::set<Use> read_by_backward_;    // of those, what others than weight gradients read
  std::set<Use> assigns_;             // what goes there by assigns to states on the host
  std::vector<ValueId> now_;          // of values
  std::vector<NodeId> now_node_;      // of nodes
  std::map<Use, ValueId> stored_;     // on the host
  std::map<Use, ValueId> restored_;   // from there
  std::map<Use, ValueId> assigned_;   // likewise, by assigns
  std::map<std::pair<ValueId, Phase>, ValueId> loaded_;
  int num_loads_ = 0;            // copies to the device, so far
  std::vector<NodeId> loaders_;  // nodes for which there is one, in order
};

}  // namespace

std::string_view Name(Offload offload) {
  switch (offload) {
    case Offload::kNone:
      return "none";
    case Offload::kStates:
      return "states";
    case Offload::kActivations:
      return "activations";
    case Offload::kAll:
      return "all";
  }
  return "none";
}

std::optional<Offload> FindOffload(std::string_view name) {
  for (const Offload offload :
       {Offload::kNone, Offload::kStates, Offload::kActivations, Offload::kAll}) {
    if (Name(offload) == name) return offload;
  }
  return std::nullopt;
}

bool IsOnHost(const Graph& graph, ValueId value) {
  const Node& producer = graph.node(graph.value(value).producer);
  if (producer.op->has_declared_type()) return producer.attributes.GetString(kMemory, "") == kHost;
  return producer.op->role() == graph::OpRole::kToHost;
}

bool GoesToHost(const Graph& graph, ValueId value) {
  return IsOnHost(graph, value) ||
         graph.node(graph.value(value).producer).attributes.Find(kOffloadMark) != nullptr;
}

void MarkOffload(Offload offload, Graph& graph) {
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const Node& node = graph.node(id);
    if (OffloadsActivations(offload) && Computes(node)) {
      graph.mutable_node(id).attributes.Set(kOffloadMark, kMinOffloadBytes);
    }
    if (!OffloadsStates(offload) || node.phase != Phase::kUpdate) continue;
    for (const int operand : node.op->updated_operands()) {
      if (operand >= static_cast<int>(node.operands.size())) continue;
      const graph::Value& state = graph.value(node.operands[operand]);
      if (graph.node(state.producer).op->role() != graph::OpRole::kState) continue;
      if (static_cast<int64_t>(state.type.num_bytes()) < kMinOffloadBytes) continue;
      graph.mutable_node(state.producer).attributes.Set(kMemory, kHost);
    }
  }
}

absl::Status AddOffload(const graph::OpRegistry& ops, Graph& graph) {
  const graph::Op* to_host = ops.Find("to_host");
  const graph::Op* to_device = ops.Find("to_device");
  if (to_host == nullptr || to_device == nullptr) {
    return absl::InternalError("no operators to_host and to_device");
  }
  const bool any = std::any_of(graph.nodes().begin(), graph.nodes().end(), [&](const Node& node) {
    return node.op == to_host || node.op == to_device ||
           node.attributes.Find(kOffloadMark) != nullptr ||
           node.attributes.Find(kMemory) != nullptr;
  });
  if (!any) return absl::OkStatus();
  for (const Node& node : graph.nodes()) {
    const std::string memory = node.attributes.GetString(kMemory, "device");
    if (memory == "device" || memory == kHost) continue;
    return absl::InvalidArgumentError(StrCat("%", graph.value(node.results[0]).name,
                                             ": memory is \"", memory,
                                             "\", not \"device\" or \"host\""));
  }
  // Copied where they are read, operands would be waited for. The first run finds out which nodes
  // read something first; in the second one, each finds its operands copied while the one before it
  // computes.
  Offloader where_read(to_host, to_device, graph, std::vector<NodeId>(graph.num_nodes(), kNoNode));
  where_read.Run();
  graph = Offloader(to_host, to_device, graph, where_read.NextLoaders()).Run();
  return absl::OkStatus();
}

}  // namespace penstock::planner
