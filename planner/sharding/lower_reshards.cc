#include "planner/sharding/lower_reshards.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "planner/sharding/execution_sharding.h"
#include "planner/sharding/halo.h"
#include "planner/sharding/leaf_copy.h"
#include "planner/sharding/plan_reshard.h"
#include "planner/sharding/reshard_cache.h"
#include "planner/sharding/select_mesh.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::Graph;
using graph::Mesh;
using graph::Node;
using graph::NodeId;
using graph::Sharding;
using graph::ValueId;

// Of an accumulate step: the reduction that ends with it.
graph::Reduction ReductionOverTime(const Mesh& mesh, const Sharding& from, const Sharding& to) {
  for (const graph::PartialSpec& partial : from.partials) {
    const bool is_over_time =
        std::any_of(partial.axes.begin(), partial.axes.end(),
                    [&](const AxisRef& axis) { return graph::IsTemporal(mesh, axis); });
    const bool is_kept =
        std::find(to.partials.begin(), to.partials.end(), partial) != to.partials.end();
    if (is_over_time && !is_kept) return partial.reduction;
  }
  return graph::Reduction::kSum;
}

// Whether the node rolls a dimension whose parts are on different devices.
bool RollsOverDevices(const Graph& graph, const Mesh& mesh, const Node& node) {
  if (node.op->role() != graph::OpRole::kRoll) return false;
  const std::vector<TensorType> types = graph.OperandTypes(node);
  const graph::ShardingRule rule = node.op->Rule({node.attributes, types, types});
  const Sharding sharding = ClosedSharding(mesh, graph.value(node.operands[0]));
  for (int factor = 0; factor < static_cast<int>(rule.factors.size()); ++factor) {
    if (rule.factors[factor].kind != graph::FactorKind::kRoll) continue;
    const auto axes = AxesOn(factor, sharding, rule.operands[0], rule);
    if (axes.has_value() && !axes->empty()) return true;
  }
  return false;
}

}  // namespace

absl::Status LowerReshards(const graph::OpRegistry& ops, Graph& graph, ReshardCaches* caches) {
  RETURN_IF_ERROR(SelectMesh(graph));
  if (graph.meshes().empty()) return absl::OkStatus();
  Graph out(graph.name());
  out.mutable_meshes() = graph.meshes();
  out.ReserveNames(graph);
  std::vector<ValueId> now(graph.num_values(), graph::kNoValue);
  std::vector<NodeId> now_node;
  ReshardCaches own;
  std::vector<ReshardCache*> chains;  // of each mesh
  for (const Mesh& mesh : graph.meshes()) {
    chains.push_back(&(caches != nullptr ? *caches : own).Of(mesh));
  }
  for (const Node& node : graph.nodes()) {
    const Mesh& mesh = graph.meshes()[node.mesh];
    Node copy = node;
    for (ValueId& operand : copy.operands) operand = now[operand];
    if (copy.forward != graph::kNoNode) copy.forward = now_node[copy.forward];
    copy.results.clear();
    if (node.op->role() != graph::OpRole::kReshard) {
      if (RollsOverDevices(graph, mesh, node)) {
        copy.op = ops.Find("permute");
        if (copy.op == nullptr) return absl::InternalError("no operator permute");
      }
      if (node.op->role() == graph::OpRole::kReceive) {
        // Of a reshard that left a leaf as it is.
        const Node& source = out.node(out.value(copy.operands[0]).producer);
        if (IsLeaf(source)) copy = CopyOfLeaf(out, source, node.mesh, node.stage);
      }
      std::vector<std::string> names;
      for (ValueId result : node.results) names.push_back(graph.value(result).name);
      const NodeId id = out.AddTyped(std::move(copy), graph.ResultTypes(node), names);
      now_node.push_back(id);
      for (size_t r = 0; r < node.results.size(); ++r) {
        now[node.results[r]] = out.node(id).results[r];
        out.mutable_value(now[node.results[r]]).sharding = graph.value(node.results[r]).sharding;
      }
      continue;
    }
    const graph::Value& result = graph.value(node.results[0]);
    ValueId value = copy.operands[0];
    const Sharding held = ClosedSharding(mesh, out.value(value));
    const Sharding needed = ClosedSharding(mesh, result);
    // Nothing but exchanges of other dimensions, and keeps the windows.
    if (held.has_windows() && held != needed && !IsHaloBase(held, needed)) {
      const graph::SourceLocation& place = node.location;
      return absl::InvalidArgumentError(absl::StrCat(
          place.line > 0 ? absl::StrCat(place.file, ":", place.line, ":", place.column, ": ") : "",
          "%", result.name, ": ", graph::ToString(mesh, held), " holds the windows of one reader; ",
          "there is no way from there to ", graph::ToString(mesh, needed),
          "; split the value before it is held in windows"));
    }
    const std::vector<ReshardStep>& steps = chains[node.mesh]->Steps(held, needed);
    for (size_t i = 0; i < steps.size(); ++i) {
      Node step = copy;
      step.op = ops.Find(steps[i].op);
      if (step.op == nullptr) {
        return absl::InternalError(absl::StrCat("no operator ", steps[i].op));
      }
      step.operands = {value};
      // Only what gathers from other devices is made anew for each use.
      if (steps[i].op == "gather_microbatches") step.attributes.Erase("per_use");
      if (steps[i].op == "accumulate") {
        const graph::Reduction reduction =
            ReductionOverTime(mesh, ClosedSharding(mesh, out.value(value)), steps[i].sharding);
        if (reduction != graph::Reduction::kSum) {
          step.attributes.Set("reduction", std::string(graph::Name(reduction)));
        }
      }
      const std::string name = i + 1 == steps.size()
                                   ? result.name
                                   : out.UniqueName(absl::StrCat(result.name, ".", steps[i].op));
      const NodeId id = out.AddTyped(std::move(step), {result.type}, {name});
      value = out.node(id).results[0];
      out.mutable_value(value).sharding = steps[i].sharding;
    }
    now[node.results[0]] = value;
    now_node.push_back(out.value(value).producer);
  }
  for (const graph::Return& ret : graph.returns()) {
    out.mutable_returns().push_back({now[ret.value], ret.sharding});
  }
  graph = std::move(out);
  return absl::OkStatus();
}

}  // namespace penstock::planner
