#include "planner/strategy/move_optimizer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/sharding.h"
#include "planner/strategy/stages.h"

namespace penstock::planner {
namespace {

using graph::Graph;
using graph::kNoNode;
using graph::Node;
using graph::NodeId;
using graph::OpRole;
using graph::Phase;
using graph::ValueId;

bool IsSplit(const std::optional<graph::Sharding>& sharding) {
  return sharding.has_value() &&
         std::any_of(sharding->dims.begin(), sharding->dims.end(),
                     [](const graph::DimSharding& dim) { return !dim.axes.empty(); });
}

// Copies a graph, with its parameters on a stage before the others.
class OptimizerMover {
 public:
  OptimizerMover(const graph::Op& reshard, int host_mesh, const Graph& in)
      : reshard_(reshard), host_mesh_(host_mesh), in_(in), users_(in.Users()), out_(in.name()) {
    out_.mutable_meshes() = in.meshes();
    out_.ReserveNames(in);
  }

  Graph Run() {
    is_on_host_.assign(in_.num_nodes(), false);
    now_.resize(in_.num_values(), graph::kNoValue);
    for (NodeId id = 0; id < in_.num_nodes(); ++id) Copy(id);
    for (const graph::Return& ret : in_.returns()) {
      out_.mutable_returns().push_back({now_[ret.value], ret.sharding});
    }
    return std::move(out_);
  }

 private:
  // A parameter, or a cast that makes what is sent smaller.
  bool BelongsOnHost(const Node& node) const {
    if (node.op->role() == OpRole::kParameter) return true;
    if (node.phase == Phase::kUpdate || node.op->name() != "cast") return false;
    const graph::Value& from = in_.value(node.operands[0]);
    return is_on_host_[from.producer] &&
           in_.value(node.results[0]).type.num_bytes() < from.type.num_bytes();
  }

  static int StageAfterHost(const Node& node) { return std::max(node.stage, 0) + 1; }

  void Copy(NodeId id) {
    const Node& node = in_.node(id);
    is_on_host_[id] = BelongsOnHost(node);
    Node copy = node;
    for (ValueId& operand : copy.operands) {
      const auto split = splits_.find({operand, StageAfterHost(node)});
      const bool reads_split =
          split != splits_.end() && !is_on_host_[id] && node.phase != Phase::kUpdate;
      operand = reads_split ? split->second : now_[operand];
    }
    copy.stage = StageAfterHost(node);
    if (node.phase == Phase::kUpdate) copy.stage = -1;
    if (is_on_host_[id]) {
      copy.stage = 0;
      copy.mesh = host_mesh_;
      // What later stages read in any phase goes there in the forward pass.
      copy.phase = Phase::kForward;
      copy.forward = kNoNode;
    }
    if (copy.forward != kNoNode) copy.forward = now_node_[copy.forward];
    std::vector<std::string> names;
    for (const ValueId result : node.results) names.push_back(in_.value(result).name);
    copy.results.clear();
    const NodeId made = out_.AddTyped(std::move(copy), in_.ResultTypes(node), names);
    now_node_.push_back(made);
    for (size_t r = 0; r < node.results.size(); ++r) {
      now_[node.results[r]] = out_.node(made).results[r];
      if (is_on_host_[id]) continue;
      out_.mutable_value(now_[node.results[r]]).sharding = in_.value(node.results[r]).sharding;
    }
    if (is_on_host_[id] && IsSplit(in_.value(node.results[0]).sharding)) AddSplits(id);
  }

  // What the stages read of a parameter that is to be split.
  void AddSplits(NodeId id) {
    const ValueId old = in_.node(id).results[0];
    std::set<int> stages;
    for (const NodeId user : users_[old]) {
      const Node& reader = in_.node(user);
      if (reader.phase == Phase::kUpdate || BelongsOnHost(reader)) continue;
      stages.insert(StageAfterHost(reader));
    }
    for (const int stage : stages) {
      Node node;
      node.op = &reshard_;
      node.operands = {now_[old]};
      node.stage = stage;
      node.location = in_.node(id).location;
      const graph::Value& value = in_.value(old);
      const std::string names[] = {out_.UniqueName(value.name)};
      const NodeId made = out_.AddTyped(std::move(node), {&value.type, 1}, names);
      const ValueId split = out_.node(made).results[0];
      out_.mutable_value(split).sharding = value.sharding;
      splits_[{old, stage}] = split;
    }
  }

  const graph::Op& reshard_;
  const int host_mesh_;
  const Graph& in_;
  const std::vector<std::vector<NodeId>> users_;
  Graph out_;
  std::vector<bool> is_on_host_;                       // of nodes of in_
  std::vector<ValueId> now_;                           // of values of in_
  std::vector<NodeId> now_node_;                       // of nodes of in_
  std::map<std::pair<ValueId, int>, ValueId> splits_;  // of a value of in_, on a stage of out_
};

}  // namespace

absl::Status MoveOptimizer(const graph::OpRegistry& ops, Graph& graph) {
  const graph::Op* reshard = ops.Find("reshard");
  if (reshard == nullptr) return absl::InternalError("no operator reshard");
  if (graph.meshes().empty()) graph.mutable_meshes().push_back({"m", {}});
  if (graph.meshes().size() > 1) {
    return absl::InvalidArgumentError(
        "optimizer=host: the stages of the graph lie on several meshes; put the parameters on a "
        "stage of their own there");
  }
  const bool has_parameters =
      std::any_of(graph.nodes().begin(), graph.nodes().end(),
                  [](const Node& node) { return node.op->role() == OpRole::kParameter; });
  if (!has_parameters) {
    return absl::InvalidArgumentError(
        StrCat("optimizer=host: graph ", graph.name(), " has no parameters"));
  }
  const graph::Mesh mesh = graph.meshes()[0];
  // Stages with equally many devices lie on one mesh.
  int host_mesh = 0;
  if (mesh.num_devices() > 1) {
    graph::Mesh host;
    host.name = mesh.name == "host" ? "host0" : "host";
    for (const graph::MeshAxis& axis : mesh.axes) {
      if (axis.is_temporal) host.axes.push_back(axis);
    }
    const bool is_taken = std::any_of(host.axes.begin(), host.axes.end(),
                                      [](const auto& axis) { return axis.name == "one"; });
    host.axes.push_back({is_taken ? "one0" : "one", 1, false});
    host_mesh = 1;
    graph.mutable_meshes().push_back(std::move(host));
  }
  graph = OptimizerMover(*reshard, host_mesh, graph).Run();
  AssignUpdateStages(graph);
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    Node& node = graph.mutable_node(id);
    if (node.stage > 0) continue;
    node.mesh = host_mesh;
    node.attributes.Erase("memory");  // of the device or its host: they are the same
    for (const ValueId result : node.results) {
      graph::Value& value = graph.mutable_value(result);
      if (IsSplit(value.sharding)) {
        return absl::InvalidArgumentError(
            StrCat("optimizer=host: %", value.name, " is to be split ",
                   graph::ToString(mesh, *value.sharding),
                   ", but the states of the optimiser lie whole on the one device of the host"));
      }
      value.sharding.reset();
    }
  }
  // One device has them whole.
  for (graph::Return& ret : graph.mutable_returns()) {
    if (graph.node(graph.value(ret.value).producer).stage == 0) ret.sharding.reset();
  }
  return absl::OkStatus();
}

absl::Status CheckMovedOptimizer(const Policy& policy, int chunks) {
  const PolicyNeeds needs = policy.needs();
  if (needs.min_chunks > 1 || needs.placement == Placement::kBidirectional) {
    return absl::InvalidArgumentError(
        StrCat("optimizer=host: policy '", policy.name(),
               "' runs several stages on each group of devices, and the host has one; choose "
               "another policy, such as 1f1b"));
  }
  if (chunks > 1) {
    return absl::InvalidArgumentError(
        StrCat("optimizer=host: the host runs one stage, so the others cannot be run as ", chunks,
               " chunks a group of devices; leave out vpp and chunks"));
  }
  return absl::OkStatus();
}

}  // namespace penstock::planner
