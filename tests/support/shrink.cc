#include "tests/support/shrink.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/strings.h"
#include "graph/op.h"
#include "graph/text.h"
#include "graph/verify.h"

namespace penstock::testing {
namespace {

using graph::Graph;
using graph::kNoNode;
using graph::kNoValue;
using graph::Mesh;
using graph::Node;
using graph::NodeId;
using graph::Return;
using graph::Sharding;
using graph::ValueId;

// A change to a graph, in terms of its ids.
struct Edit {
  std::vector<Return> returns;
  std::set<NodeId> dropped_assigns;
  std::map<ValueId, ValueId> aliases;  // read another value of the same type instead
  std::set<NodeId> inputs;             // becomes an input
};

// The graph with the edit applied, without what nothing depends on any more.
Graph Apply(const Graph& graph, const Edit& edit, const graph::Op* input) {
  const auto resolve = [&](ValueId value) {
    const auto it = edit.aliases.find(value);
    return it == edit.aliases.end() ? value : it->second;
  };
  std::vector<bool> is_needed(graph.num_values(), false);
  std::vector<bool> is_kept(graph.num_nodes(), false);
  for (const Return& ret : edit.returns) is_needed[resolve(ret.value)] = true;
  for (NodeId id = graph.num_nodes() - 1; id >= 0; --id) {
    const Node& node = graph.node(id);
    is_kept[id] = (node.op->name() == "assign" && !edit.dropped_assigns.contains(id)) ||
                  std::any_of(node.results.begin(), node.results.end(),
                              [&](ValueId result) { return is_needed[result]; });
    if (!is_kept[id] || edit.inputs.contains(id)) continue;
    for (ValueId operand : node.operands) is_needed[resolve(operand)] = true;
  }
  Graph out(graph.name());
  out.mutable_meshes() = graph.meshes();
  std::vector<ValueId> now(graph.num_values(), kNoValue);
  std::vector<NodeId> now_node(graph.num_nodes(), kNoNode);
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    if (!is_kept[id]) continue;
    Node copy = graph.node(id);
    if (edit.inputs.contains(id)) {
      copy.op = input;
      copy.attributes = {};
      copy.operands.clear();
    }
    for (ValueId& operand : copy.operands) operand = now[resolve(operand)];
    if (copy.forward != kNoNode) copy.forward = now_node[copy.forward];
    copy.results.clear();
    std::vector<std::string> names;
    for (ValueId result : graph.node(id).results) names.push_back(graph.value(result).name);
    now_node[id] = out.AddTyped(std::move(copy), graph.ResultTypes(graph.node(id)), names);
    for (size_t r = 0; r < names.size(); ++r) {
      now[graph.node(id).results[r]] = out.node(now_node[id]).results[r];
      out.mutable_value(now[graph.node(id).results[r]]).sharding =
          graph.value(graph.node(id).results[r]).sharding;
    }
  }
  for (const Return& ret : edit.returns) {
    out.mutable_returns().push_back({now[resolve(ret.value)], ret.sharding});
  }
  return out;
}

// The mesh without an axis; what it split is whole.
void DropAxis(int axis, Graph* graph) {
  std::vector<Mesh>& meshes = graph->mutable_meshes();
  meshes[0].axes.erase(meshes[0].axes.begin() + axis);
  const auto drop = [&](std::vector<graph::AxisRef>* axes) {
    std::erase_if(*axes, [&](const graph::AxisRef& piece) { return piece.axis == axis; });
    for (graph::AxisRef& piece : *axes) piece.axis -= piece.axis > axis ? 1 : 0;
  };
  const auto drop_from = [&](std::optional<Sharding>& sharding) {
    if (!sharding) return;
    for (graph::DimSharding& dim : sharding->dims) drop(&dim.axes);
    for (graph::PartialSpec& partial : sharding->partials) drop(&partial.axes);
    std::erase_if(sharding->partials,
                  [](const graph::PartialSpec& partial) { return partial.axes.empty(); });
    drop(&sharding->replicated);
  };
  for (ValueId value = 0; value < graph->num_values(); ++value) {
    drop_from(graph->mutable_value(value).sharding);
  }
  for (Return& ret : graph->mutable_returns()) drop_from(ret.sharding);
}

class Shrinker {
 public:
  Shrinker(RandomCase failing, const std::function<bool(const RandomCase&)>& fails,
           int max_attempts)
      : best_(std::move(failing)), fails_(fails), attempts_left_(max_attempts) {
    for (const Node& node : best_.graph.nodes()) {
      if (node.op->name() == "input") input_ = node.op;
    }
  }

  RandomCase Run() {
    bool shrunk = true;
    while (shrunk && attempts_left_ > 0) {
      shrunk = ShrinkRun();
      shrunk = ShrinkReturns() || shrunk;
      shrunk = ShrinkNodes() || shrunk;
      shrunk = ShrinkLayout() || shrunk;
    }
    return std::move(best_);
  }

 private:
  // Keeps the candidate if it still fails.
  bool Try(RandomCase candidate) {
    if (attempts_left_ <= 0 || !graph::VerifyGraph(candidate.graph).ok()) return false;
    --attempts_left_;
    if (!fails_(candidate)) return false;
    best_ = std::move(candidate);
    return true;
  }

  bool TryEdit(const Edit& edit, std::string_view made_input = "") {
    RandomCase candidate = best_;
    candidate.graph = Apply(best_.graph, edit, input_);
    if (!made_input.empty()) candidate.inputs[std::string(made_input)] = {};
    return Try(std::move(candidate));
  }

  Edit NoEdit() const { return {best_.graph.returns(), {}, {}, {}}; }

  bool ShrinkRun() {
    bool shrunk = false;
    RandomCase candidate = best_;
    candidate.num_steps = 1;
    if (best_.num_steps > 1) shrunk = Try(candidate) || shrunk;
    candidate = best_;
    candidate.split_weight_gradients = false;
    if (best_.split_weight_gradients) shrunk = Try(candidate) || shrunk;
    candidate = best_;
    candidate.chunks_per_group = 1;
    if (best_.chunks_per_group > 1) shrunk = Try(candidate) || shrunk;
    for (NodeId id = 0; id < candidate.graph.num_nodes(); ++id) {
      candidate.graph.mutable_node(id).stage = -1;
    }
    const bool is_staged = std::any_of(best_.graph.nodes().begin(), best_.graph.nodes().end(),
                                       [](const Node& node) { return node.stage > 0; });
    if (is_staged) shrunk = Try(candidate) || shrunk;
    // Several meshes must keep as many devices as each other.
    if (best_.graph.meshes().size() > 1) return shrunk;
    for (int axis = static_cast<int>(best_.graph.meshes()[0].axes.size()) - 1; axis >= 0; --axis) {
      candidate = best_;
      DropAxis(axis, &candidate.graph);
      shrunk = Try(candidate) || shrunk;
    }
    return shrunk;
  }

  bool ShrinkReturns() {
    bool shrunk = false;
    for (size_t i = 0; i < best_.graph.returns().size() && best_.graph.returns().size() > 1; ++i) {
      Edit edit = NoEdit();
      edit.returns = {best_.graph.returns()[i]};
      if (TryEdit(edit)) return true;
    }
    for (size_t i = best_.graph.returns().size(); i-- > 0;) {
      Edit edit = NoEdit();
      edit.returns.erase(edit.returns.begin() + static_cast<int64_t>(i));
      shrunk = TryEdit(edit) || shrunk;
    }
    for (NodeId id = best_.graph.num_nodes() - 1; id >= 0; --id) {
      if (id >= best_.graph.num_nodes() || best_.graph.node(id).op->name() != "assign") continue;
      Edit edit = NoEdit();
      edit.dropped_assigns.insert(id);
      shrunk = TryEdit(edit) || shrunk;
    }
    return shrunk;
  }

  bool ShrinkNodes() {
    bool shrunk = false;
    // From the end: return what a returned value is made of.
    for (size_t i = 0; i < best_.graph.returns().size(); ++i) {
      const Node& producer =
          best_.graph.node(best_.graph.value(best_.graph.returns()[i].value).producer);
      for (ValueId operand : producer.operands) {
        Edit edit = NoEdit();
        edit.returns[i] = {operand, {}};
        if (!TryEdit(edit)) continue;
        shrunk = true;
        break;  // `producer` is gone
      }
    }
    // From the beginning: nodes become inputs.
    for (NodeId id = best_.graph.num_nodes() - 1; id >= 0 && input_ != nullptr; --id) {
      if (id >= best_.graph.num_nodes()) continue;
      const Node& node = best_.graph.node(id);
      if (node.operands.empty() || node.results.size() != 1) continue;
      if (!IsFloat(best_.graph.value(node.results[0]).type.dtype)) continue;
      const std::string name = best_.graph.value(node.results[0]).name;
      Edit edit = NoEdit();
      edit.inputs.insert(id);
      shrunk = TryEdit(edit, name) || shrunk;
    }
    // In between: nodes that keep the type of an operand are left out.
    for (NodeId id = best_.graph.num_nodes() - 1; id >= 0; --id) {
      if (id >= best_.graph.num_nodes()) continue;
      const Node& node = best_.graph.node(id);
      if (node.results.size() != 1) continue;
      for (ValueId operand : node.operands) {
        if (best_.graph.value(operand).type != best_.graph.value(node.results[0]).type) continue;
        Edit edit = NoEdit();
        edit.aliases[node.results[0]] = operand;
        if (!TryEdit(edit)) continue;
        shrunk = true;
        break;  // `node` is gone
      }
    }
    return shrunk;
  }

  bool ShrinkLayout() {
    bool shrunk = false;
    for (size_t i = 0; i < best_.graph.returns().size(); ++i) {
      if (!best_.graph.returns()[i].sharding) continue;
      RandomCase candidate = best_;
      candidate.graph.mutable_returns()[i].sharding.reset();
      shrunk = Try(std::move(candidate)) || shrunk;
    }
    for (ValueId value = 0; value < best_.graph.num_values(); ++value) {
      if (!best_.graph.value(value).sharding) continue;
      RandomCase candidate = best_;
      candidate.graph.mutable_value(value).sharding.reset();
      if (Try(std::move(candidate))) {
        shrunk = true;
        continue;
      }
      const size_t num_dims = best_.graph.value(value).sharding->dims.size();
      for (size_t d = 0; d < num_dims; ++d) {
        if (best_.graph.value(value).sharding->dims[d] == graph::DimSharding()) continue;
        candidate = best_;
        candidate.graph.mutable_value(value).sharding->dims[d] = {};
        shrunk = Try(std::move(candidate)) || shrunk;
      }
    }
    return shrunk;
  }

  RandomCase best_;
  const std::function<bool(const RandomCase&)>& fails_;
  int attempts_left_;
  const graph::Op* input_ = nullptr;
};

}  // namespace

std::vector<bool> LiveNodes(const Graph& graph) {
  std::vector<bool> is_needed(graph.num_values(), false);
  std::vector<bool> is_live(graph.num_nodes(), false);
  for (const Return& ret : graph.returns()) is_needed[ret.value] = true;
  for (NodeId id = graph.num_nodes() - 1; id >= 0; --id) {
    const Node& node = graph.node(id);
    is_live[id] = node.op->name() == "assign" ||
                  std::any_of(node.results.begin(), node.results.end(),
                              [&](ValueId result) { return is_needed[result]; });
    if (!is_live[id]) continue;
    for (ValueId operand : node.operands) is_needed[operand] = true;
  }
  return is_live;
}

RandomCase Shrink(const RandomCase& failing, const std::function<bool(const RandomCase&)>& fails,
                  int max_attempts) {
  return Shrinker(failing, fails, max_attempts).Run();
}

std::string Describe(const RandomCase& test) {
  return StrCat("# seed ", test.seed, ", policy ", test.policy,
                test.chunks_per_group > 1 ? StrCat(", ", test.chunks_per_group, " chunks") : "",
                test.split_weight_gradients ? ", weight gradients split" : "", ", ", test.num_steps,
                " steps\n", graph::PrintGraph(test.graph));
}

}  // namespace penstock::testing
