#include "planner/lower/rate_copies.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "planner/lower/phases.h"

namespace penstock::planner {
namespace {

using graph::Graph;
using graph::kNoValue;
using graph::Node;
using graph::NodeId;
using graph::ValueId;

}  // namespace

std::vector<bool> FindReadOften(const Graph& graph) {
  const auto is_often = [&](ValueId value) { return IsPerMicrobatch(graph, value); };
  std::vector<bool> is_read_often(graph.num_values(), false);
  for (NodeId id = graph.num_nodes() - 1; id >= 0; --id) {
    const Node& node = graph.node(id);
    const bool reads_often =
        std::any_of(node.operands.begin(), node.operands.end(), is_often) ||
        std::any_of(node.results.begin(), node.results.end(), is_often) ||
        (node.op->role() == graph::OpRole::kReshape && is_read_often[node.results[0]]);
    if (!reads_often) continue;
    for (ValueId operand : node.operands) is_read_often[operand] = true;
  }
  return is_read_often;
}

absl::StatusOr<Graph> AddRateCopies(const graph::OpRegistry& ops, const Graph& in) {
  const std::vector<bool> is_read_often = FindReadOften(in);
  std::vector<bool> needs_copy(in.num_nodes(), false);
  for (NodeId id = 0; id < in.num_nodes(); ++id) {
    const Node& node = in.node(id);
    needs_copy[id] = FormsWhole(node.op->role()) && is_read_often[node.results[0]] &&
                     !IsPerMicrobatch(in, node.results[0]);
  }
  Graph out(in.name());
  out.mutable_meshes() = in.meshes();
  out.ReserveNames(in);
  std::vector<ValueId> now(in.num_values(), kNoValue);
  std::vector<NodeId> now_node;
  for (NodeId id = 0; id < in.num_nodes(); ++id) {
    const Node& node = in.node(id);
    Node copy = node;
    for (ValueId& operand : copy.operands) operand = now[operand];
    if (copy.forward != graph::kNoNode) copy.forward = now_node[copy.forward];
    copy.results.clear();
    std::vector<std::string> names;
    for (ValueId result : node.results) {
      names.push_back(needs_copy[id] ? out.UniqueName(absl::StrCat(in.value(result).name, ".sum"))
                                     : in.value(result).name);
    }
    const NodeId made = out.AddTyped(copy, in.ResultTypes(node), names);
    now_node.push_back(made);
    for (size_t r = 0; r < node.results.size(); ++r) {
      now[node.results[r]] = out.node(made).results[r];
      out.mutable_value(now[node.results[r]]).sharding = in.value(node.results[r]).sharding;
    }
    if (!needs_copy[id]) continue;
    copy.op = ops.Find("copy");
    if (copy.op == nullptr) return absl::InternalError("no operator copy");
    copy.attributes = {};
    copy.operands = {now[node.results[0]]};
    const NodeId whole = out.AddTyped(copy, in.ResultTypes(node), {in.value(node.results[0]).name});
    now[node.results[0]] = out.node(whole).results[0];
    out.mutable_value(now[node.results[0]]).sharding = in.value(node.results[0]).sharding;
  }
  for (const graph::Return& ret : in.returns()) {
    out.mutable_returns().push_back({now[ret.value], ret.sharding});
  }
  return out;
}

}  // namespace penstock::planner
