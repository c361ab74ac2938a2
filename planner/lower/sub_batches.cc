#include "planner/lower/sub_batches.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/lower/communication.h"
#include "planner/lower/phases.h"
#include "planner/sharding/execution_sharding.h"
#include "planner/sharding/leaf_copy.h"

namespace penstock::planner {
namespace {

using graph::Graph;
using graph::kNoNode;
using graph::Node;
using graph::NodeId;
using graph::OpRole;
using graph::Sharding;
using graph::ValueId;

constexpr int kWhole = -1;  // instead of a sub-batch or a dimension

// What a phase of a stage computes.
using Region = std::pair<int, PhaseKey>;

// How a node is split: the dimension of each operand and result, or kWhole.
struct Split {
  std::vector<int> operands;
  std::vector<int> results;
};

// The number that inputs ask for: 1 if none does.
absl::StatusOr<int64_t> CountSubBatches(const Graph& graph) {
  int64_t count = 1;
  for (const Node& node : graph.nodes()) {
    if (node.op->role() != OpRole::kInput) continue;
    const int64_t asked = node.attributes.GetInt("sub_batches", 1);
    if (asked == 1 || asked == count) continue;
    if (asked < 1 || count > 1) {
      return absl::InvalidArgumentError(
          StrCat("%", graph.value(node.results[0]).name, " has ", asked, " sub-batches",
                 count > 1 ? StrCat(", and another input has ", count) : std::string()));
    }
    count = asked;
  }
  return count;
}

bool MayBeSplit(const Node& node) {
  switch (node.op->role()) {
    case OpRole::kCompute:
    case OpRole::kAdd:
    case OpRole::kReshape:
    case OpRole::kLocalSlice:
    case OpRole::kAllReduce:
    case OpRole::kAllGather:
    case OpRole::kReduceScatter:
    case OpRole::kAllToAll:
      return !node.attributes.GetBool("per_use", false);
    default:
      return false;
  }
}

// Decides which nodes are split, and in which order nodes run.
class Chooser {
 public:
  Chooser(const Graph& graph, std::vector<NodePhase> phases, int64_t count, int64_t least_bytes)
      : graph_(graph),
        phases_(std::move(phases)),
        count_(count),
        least_bytes_(least_bytes),
        batch_dim_(graph.num_values(), kWhole),
        splits_(graph.num_nodes()),
        segment_(graph.num_nodes(), kWhole) {}

  void Run() {
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) FollowBatch(id);
    KeepWhatOverlaps();
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) NumberSegment(id);
  }

  const std::optional<Split>& split(NodeId id) const { return splits_[id]; }
  bool has_splits() const { return !first_of_.empty(); }

  // What nodes are sorted by. `sub_batch` is kWhole of one that stays whole.
  using Place = std::tuple<NodeId, int, int64_t, NodeId>;
  Place PlaceOf(NodeId id, int sub_batch) const {
    if (segment_[id] < 0) return {id, 0, 0, id};
    const bool can_wait = graph_.node(id).phase == graph::Phase::kWeightBackward;
    if (sub_batch != kWhole) return {first_of_.at(RegionOf(id)), segment_[id], sub_batch, id};
    return {first_of_.at(RegionOf(id)), segment_[id] + (can_wait ? 1 : 0), count_, id};
  }

 private:
  Region RegionOf(NodeId id) const { return {phases_[id].virtual_stage, phases_[id].key}; }
  bool IsInRegion(NodeId id) const {
    return phases_[id].is_live && !phases_[id].is_leaf &&
           phases_[id].key.lane() == Lane::kCompute && !graph_.node(id).op->has_declared_type();
  }
  NodeId ProducerOf(ValueId value) const { return graph_.value(value).producer; }
  bool IsCollective(NodeId id) const { return graph::IsCollective(graph_.node(id).op->role()); }

  Sharding ShardingOf(ValueId value) const {
    const NodeId producer = ProducerOf(value);
    const size_t mesh = static_cast<size_t>(graph_.node(producer).mesh);
    return ClosedSharding(graph_.meshes()[mesh], graph_.value(value));
  }

  // Whether sub-batches of the value along the dimension lie one behind the other in its tile.
  bool AreContiguous(ValueId value, int dim) const {
    const Shape tile = LargestTile(graph_.value(value).type, ShardingOf(value)).shape;
    return std::all_of(tile.begin(), tile.begin() + dim, [](int64_t n) { return n == 1; });
  }

  // The batch's dimension of the node's results, and how the node could be split.
  void FollowBatch(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.op->role() == OpRole::kInput) {
      const ValueId value = node.results[0];
      const TensorType& type = graph_.value(value).type;
      if (node.attributes.GetInt("sub_batches", 1) > 1 && !type.shape.empty()) {
        batch_dim_[value] = 0;
      }
      return;
    }
    if (node.op->has_declared_type() || node.operands.empty()) return;
    const std::vector<TensorType> operands = graph_.OperandTypes(node);
    const std::vector<TensorType> results = graph_.ResultTypes(node);
    const graph::ShardingRule rule = node.op->Rule({node.attributes, operands, results});
    int factor = kWhole;
    for (size_t o = 0; o < operands.size(); ++o) {
      const int dim = batch_dim_[node.operands[o]];
      if (dim == kWhole) continue;
      const graph::DimFactors& factors = rule.operands[o][dim];
      if (factors.empty() || (factor != kWhole && factors[0] != factor)) return;
      factor = factors[0];
    }
    if (factor == kWhole) return;
    Split split;
    const auto dim_of = [&](const graph::TensorFactors& tensor) {
      const auto it = std::find_if(tensor.begin(), tensor.end(), [&](const auto& factors) {
        return !factors.empty() && factors[0] == factor;
      });
      return it == tensor.end() ? kWhole : static_cast<int>(it - tensor.begin());
    };
    for (size_t o = 0; o < operands.size(); ++o) split.operands.push_back(dim_of(rule.operands[o]));
    for (size_t r = 0; r < node.results.size(); ++r) {
      split.results.push_back(dim_of(rule.results[r]));
      batch_dim_[node.results[r]] = split.results.back();
    }
    if (IsInRegion(id) && MayBeSplit(node) && IsMajorEverywhere(rule, factor) &&
        IsPassedOn(node, split, rule.factors[factor].size)) {
      splits_[id] = std::move(split);
    }
  }

  // Whether sub-batches of the factor are sub-batches of all tensors that follow it.
  static bool IsMajorEverywhere(const graph::ShardingRule& rule, int factor) {
    const graph::FactorKind kind = rule.factors[factor].kind;
    if (kind != graph::FactorKind::kPassThrough && kind != graph::FactorKind::kReduction) {
      return false;
    }
    for (const std::vector<graph::TensorFactors>* tensors : {&rule.operands, &rule.results}) {
      for (const graph::TensorFactors& tensor : *tensors) {
        int64_t as_major = 0;
        int64_t in_all = 0;
        for (const graph::DimFactors& factors : tensor) {
          as_major += !factors.empty() && factors[0] == factor ? 1 : 0;
          in_all += std::count(factors.begin(), factors.end(), factor);
        }
        if (in_all != as_major || in_all > 1) return false;
      }
    }
    return true;
  }

  // Whether all results follow the batch, and all tensors that do are split in one way, into parts
  // of whole sub-batches.
  bool IsPassedOn(const Node& node, const Split& split, int64_t extent) const {
    if (IsSmallCollective(node)) return false;
    std::optional<std::vector<graph::AxisRef>> axes;
    const auto is_alike = [&](ValueId value, int dim) {
      const graph::DimSharding here = ShardingOf(value).dims[dim];
      if (here.window.has_value() || here.sub_batch.has_value()) return false;
      if (!axes.has_value()) axes = here.axes;
      const int64_t parts = graph::NumParts(here) * count_;
      return here.axes == *axes && extent > 0 && extent % parts == 0 && AreContiguous(value, dim);
    };
    for (size_t r = 0; r < node.results.size(); ++r) {
      if (split.results[r] == kWhole || !is_alike(node.results[r], split.results[r])) return false;
    }
    for (size_t o = 0; o < node.operands.size(); ++o) {
      if (split.operands[o] != kWhole && !is_alike(node.operands[o], split.operands[o])) {
        return false;
      }
    }
    return true;
  }

  bool IsSmallCollective(const Node& node) const {
    if (!graph::IsCollective(node.op->role())) return false;
    int64_t bytes = 0;
    for (const ValueId value : {node.operands[0], node.results[0]}) {
      const TensorType tile = LargestTile(graph_.value(value).type, ShardingOf(value));
      bytes = std::max(bytes, static_cast<int64_t>(tile.num_bytes()));
    }
    return bytes < least_bytes_ * count_;
  }

  // Of the nodes that could be split, keeps those of a path to or from a collective in their phase.
  void KeepWhatOverlaps() {
    const auto is_joined = [&](NodeId from, NodeId to) {
      return splits_[from].has_value() && splits_[to].has_value() && RegionOf(from) == RegionOf(to);
    };
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
      // What a collective reads is split too: it may be reduced in place.
      if (splits_[id].has_value() && IsCollective(id) &&
          !is_joined(ProducerOf(graph_.node(id).operands[0]), id)) {
        splits_[id].reset();
      }
    }
    std::vector<bool> follows(graph_.num_nodes(), false);
    std::vector<bool> leads(graph_.num_nodes(), false);
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
      if (!splits_[id].has_value()) continue;
      follows[id] = IsCollective(id);
      for (const ValueId operand : graph_.node(id).operands) {
        const NodeId from = ProducerOf(operand);
        if (is_joined(from, id) && follows[from]) follows[id] = true;
      }
    }
    for (NodeId id = graph_.num_nodes() - 1; id >= 0; --id) {
      if (!splits_[id].has_value()) continue;
      leads[id] = leads[id] || IsCollective(id);
      for (const ValueId operand : graph_.node(id).operands) {
        const NodeId from = ProducerOf(operand);
        if (is_joined(from, id) && leads[id]) leads[from] = true;
      }
    }
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
      if (!follows[id] && !leads[id]) splits_[id].reset();
      if (splits_[id].has_value()) first_of_.try_emplace(RegionOf(id), id);
    }
  }

  // What depends on nothing split in its phase is in no segment: it comes before its readers.
  void NumberSegment(NodeId id) {
    if (!IsInRegion(id) || !first_of_.contains(RegionOf(id))) return;
    const bool is_split = splits_[id].has_value();
    int& segment = segment_[id];
    if (is_split) segment = 0;
    for (const ValueId operand : graph_.node(id).operands) {
      const NodeId from = ProducerOf(operand);
      if (!IsInRegion(from) || segment_[from] < 0 || RegionOf(from) != RegionOf(id)) continue;
      const bool ends_segment = IsCollective(from) || (is_split && !splits_[from].has_value());
      segment = std::max(segment, segment_[from] + (ends_segment ? 1 : 0));
    }
  }

  const Graph& graph_;
  const std::vector<NodePhase> phases_;
  const int64_t count_;
  const int64_t least_bytes_;
  std::vector<int> batch_dim_;  // of each value
  std::vector<std::optional<Split>> splits_;
  std::vector<int> segment_;
  std::map<Region, NodeId> first_of_;  // of each region with split nodes, the first one
};

// Makes the graph anew, in the order that the chooser gives.
class Rewriter {
 public:
  Rewriter(const graph::OpRegistry& ops, const Graph& in, const Chooser& chooser, int64_t count)
      : ops_(ops), in_(in), chooser_(chooser), count_(static_cast<int>(count)), out_(in.name()) {}

  absl::StatusOr<Graph> Run() {
    join_ = ops_.Find("join_sub_batches");
    slice_ = ops_.Find("local_slice");
    if (join_ == nullptr || slice_ == nullptr) {
      return absl::InternalError("no operators join_sub_batches and local_slice");
    }
    out_.mutable_meshes() = in_.meshes();
    out_.ReserveNames(in_);
    std::vector<std::pair<Chooser::Place, Item>> order;
    for (NodeId id = 0; id < in_.num_nodes(); ++id) {
      const int first = chooser_.split(id).has_value() ? 0 : kWhole;
      const int end = chooser_.split(id).has_value() ? count_ : 0;
      for (int sub = first; sub < end; ++sub) {
        order.push_back({chooser_.PlaceOf(id, sub), {id, sub}});
      }
    }
    std::sort(order.begin(), order.end());
    for (const auto& [place, item] : order) AddWithOperands(item);
    for (const graph::Return& ret : in_.returns()) {
      out_.mutable_returns().push_back({Whole(ret.value), ret.sharding});
    }
    return std::move(out_);
  }

 private:
  using Item = std::pair<NodeId, int>;  // a node, and its sub-batch or kWhole

  // Also what the item reads, as far as it has not been added.
  void AddWithOperands(const Item& item) {
    std::vector<Item> stack = {item};
    while (!stack.empty()) {
      const Item next = stack.back();
      if (made_.contains(next)) {
        stack.pop_back();
        continue;
      }
      const size_t before = stack.size();
      const Node& node = in_.node(next.first);
      for (size_t o = node.operands.size(); o-- > 0;) {
        const NodeId producer = in_.value(node.operands[o]).producer;
        const bool is_split = chooser_.split(producer).has_value();
        const bool is_read_in_parts =
            is_split && next.second != kWhole && IsReadInParts(producer, node);
        int first = is_split ? 0 : kWhole;
        int last = is_split ? count_ - 1 : kWhole;
        if (is_read_in_parts) first = last = next.second;
        for (int sub = last; sub >= first; --sub) {
          if (!made_.contains({producer, sub})) stack.emplace_back(producer, sub);
        }
      }
      if (stack.size() > before) continue;
      stack.pop_back();
      Add(next);
    }
  }

  void Add(const Item& item) {
    const auto& [id, sub] = item;
    const Node& node = in_.node(id);
    const std::optional<Split>& split = chooser_.split(id);
    Node copy = node;
    for (size_t o = 0; o < node.operands.size(); ++o) {
      copy.operands[o] = sub == kWhole ? Whole(node.operands[o])
                                       : Part(node.operands[o], split->operands[o], sub, node);
    }
    if (node.op->role() == OpRole::kInput) copy.attributes.Erase("sub_batches");
    copy.forward = NowOf(node.forward, sub);
    copy.results.clear();
    std::vector<std::string> names;
    for (const ValueId result : node.results) {
      const std::string& name = in_.value(result).name;
      names.push_back(sub == kWhole ? name : out_.UniqueName(StrCat(name, ".sub", sub)));
    }
    const NodeId made = out_.AddTyped(copy, in_.ResultTypes(node), names);
    made_[item] = made;
    for (size_t r = 0; r < node.results.size(); ++r) {
      graph::Value& value = out_.mutable_value(out_.node(made).results[r]);
      value.sharding = in_.value(node.results[r]).sharding;
      if (sub != kWhole) value.sharding = ShardingOf(node.results[r], split->results[r], sub);
      (sub == kWhole ? whole_[node.results[r]] : parts_[{node.results[r], sub}]) =
          out_.node(made).results[r];
    }
  }

  // What goes to another stage goes there once, as a whole.
  bool IsReadInParts(NodeId producer, const Node& reader) const {
    return in_.node(producer).stage == reader.stage && in_.node(producer).mesh == reader.mesh;
  }

  NodeId NowOf(NodeId forward, int sub) const {
    if (forward == kNoNode) return kNoNode;
    const bool is_split = chooser_.split(forward).has_value();
    const auto made = made_.find({forward, is_split ? std::max(sub, 0) : kWhole});
    return made == made_.end() ? kNoNode : made->second;
  }

  Sharding ShardingOf(ValueId value, int dim, int sub) const {
    const graph::Mesh& mesh = in_.meshes()[in_.node(in_.value(value).producer).mesh];
    Sharding sharding = ClosedSharding(mesh, in_.value(value));
    sharding.dims[dim].sub_batch = graph::SubBatch{count_, sub};
    return sharding;
  }

  // The whole of a value of the graph as it was. What it is made of has been added.
  ValueId Whole(ValueId value) {
    if (const auto known = whole_.find(value); known != whole_.end()) return known->second;
    const Node& producer = in_.node(in_.value(value).producer);
    Node node = producer;
    node.operands.clear();
    node.results.clear();
    node.forward = NowOf(producer.forward, 0);
    if (producer.op->role() == OpRole::kReshape) {
      // It shares the bytes of what it reshapes.
      node.operands.push_back(Whole(producer.operands[0]));
    } else {
      node.op = join_;
      node.attributes = {};
      for (int sub = 0; sub < count_; ++sub) node.operands.push_back(parts_.at({value, sub}));
    }
    return whole_[value] =
               AddLike(value, std::move(node), in_.value(value).name, in_.value(value).sharding);
  }

  // A sub-batch of it, for a node.
  ValueId Part(ValueId value, int dim, int sub, const Node& reader) {
    const auto made = parts_.find({value, sub});
    if (made != parts_.end() && IsReadInParts(in_.value(value).producer, reader)) {
      return made->second;
    }
    const ValueId whole = Whole(value);
    if (dim == kWhole) return whole;
    const auto [known, is_new] =
        slices_.try_emplace({value, dim, sub, reader.stage, reader.phase}, graph::kNoValue);
    if (!is_new) return known->second;
    const Node& producer = in_.node(in_.value(value).producer);
    Node node;
    if (IsLeaf(producer)) {
      node = CopyOfLeaf(in_, producer, reader.mesh, reader.stage);
      node.attributes.Erase("sub_batches");
    } else {
      node.op = slice_;
      node.operands = {whole};
      node.mesh = reader.mesh;
      node.stage = reader.stage;
      node.phase = reader.phase;
    }
    known->second =
        AddLike(value, std::move(node), out_.UniqueName(StrCat(in_.value(value).name, ".sub", sub)),
                ShardingOf(value, dim, sub));
    return known->second;
  }

  ValueId AddLike(ValueId value, Node node, const std::string& name,
                  std::optional<Sharding> sharding) {
    const TensorType type = in_.value(value).type;
    const std::string names[] = {name};
    const TensorType types[] = {type};
    const NodeId made = out_.AddTyped(std::move(node), types, names);
    const ValueId result = out_.node(made).results[0];
    out_.mutable_value(result).sharding = std::move(sharding);
    return result;
  }

  const graph::OpRegistry& ops_;
  const Graph& in_;
  const Chooser& chooser_;
  const int count_;
  const graph::Op* join_ = nullptr;
  const graph::Op* slice_ = nullptr;
  Graph out_;
  std::map<Item, NodeId> made_;
  std::map<ValueId, ValueId> whole_;
  std::map<std::pair<ValueId, int>, ValueId> parts_;
  std::map<std::tuple<ValueId, int, int, int, graph::Phase>, ValueId> slices_;
};

// What is made once a step would be taken apart in a phase of its own, behind which the phase that
// reads the parts may not come.
bool TakesPartOnceAStep(const Graph& graph, const std::vector<NodePhase>& phases, NodeId id) {
  const NodePhase& phase = phases[id];
  return phase.is_live && !phase.is_leaf && phase.key.lane() != Lane::kCompute &&
         TakesSubBatch(graph, graph.node(id));
}

}  // namespace

bool TakesSubBatch(const Graph& graph, const Node& node) {
  if (node.op->role() != OpRole::kLocalSlice) return false;
  const std::optional<Sharding>& from = graph.value(node.operands[0]).sharding;
  const std::optional<Sharding>& to = graph.value(node.results[0]).sharding;
  for (size_t d = 0; to.has_value() && d < to->dims.size(); ++d) {
    const bool was = from.has_value() && from->dims[d].sub_batch.has_value();
    if (to->dims[d].sub_batch.has_value() && !was) return true;
  }
  return false;
}

absl::Status SplitIntoSubBatches(const graph::OpRegistry& ops, int64_t least_bytes, Graph& graph) {
  ASSIGN_OR_RETURN(const int64_t count, CountSubBatches(graph));
  if (count == 1) return absl::OkStatus();
  ASSIGN_OR_RETURN(std::vector<NodePhase> phases, AssignPhases(graph, {}));
  Chooser chooser(graph, std::move(phases), count, least_bytes);
  chooser.Run();
  if (!chooser.has_splits()) return absl::OkStatus();
  ASSIGN_OR_RETURN(Graph split, Rewriter(ops, graph, chooser, count).Run());
  ASSIGN_OR_RETURN(const std::vector<NodePhase> split_phases, AssignPhases(split, {}));
  for (NodeId id = 0; id < split.num_nodes(); ++id) {
    if (TakesPartOnceAStep(split, split_phases, id)) return absl::OkStatus();
  }
  graph = std::move(split);
  return absl::OkStatus();
}

}  // namespace penstock::planner
