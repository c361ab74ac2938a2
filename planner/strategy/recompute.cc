#include "planner/strategy/recompute.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "graph/op.h"
#include "planner/plan/recomputed_mark.h"
#include "planner/sharding/execution_sharding.h"
#include "planner/strategy/repeated_layers.h"
#include "planner/strategy/stages.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::Graph;
using graph::kNoNode;
using graph::kNoValue;
using graph::Mesh;
using graph::Node;
using graph::NodeId;
using graph::Phase;
using graph::ValueId;

constexpr char kRecomputeMark[] = "recompute";
constexpr int kUnmarked = -1;
constexpr int kAnySegment = 0;

// A node is cheap if it moves at most so many bytes for each byte that it makes, and computes as
// little for each element: gelu and dropout take 16 to 32 operations, attention several for each
// key.
constexpr double kMaxBytesPerByte = 8;
constexpr double kMaxFlopsPerElement = 32;

bool IsBackward(const Node& node) {
  return node.phase == Phase::kBackward || node.phase == Phase::kWeightBackward;
}

bool IsRecomputable(const Node& node) {
  return node.phase == Phase::kForward && !node.op->has_declared_type() &&
         (!node.operands.empty() || node.op->is_random());
}

graph::ShardingRule ShardingRuleOf(const Graph& graph, const Node& node) {
  const std::vector<TensorType> operands = graph.OperandTypes(node);
  const std::vector<TensorType> results = graph.ResultTypes(node);
  return node.op->Rule({node.attributes, operands, results});
}

bool HasFactor(const graph::TensorFactors& dims, int factor) {
  return std::any_of(dims.begin(), dims.end(), [factor](const graph::DimFactors& dim) {
    return std::find(dim.begin(), dim.end(), factor) != dim.end();
  });
}

// Whether the node sums over a factor that several operands share: matmul, einsum, attention.
bool IsProduct(const graph::ShardingRule& rule) {
  for (int factor = 0; factor < static_cast<int>(rule.factors.size()); ++factor) {
    const auto count = std::count_if(
        rule.operands.begin(), rule.operands.end(),
        [factor](const graph::TensorFactors& dims) { return HasFactor(dims, factor); });
    const bool is_made =
        std::any_of(rule.results.begin(), rule.results.end(),
                    [factor](const graph::TensorFactors& dims) { return HasFactor(dims, factor); });
    if (count > 1 && !is_made) return true;
  }
  return false;
}

bool IsCheap(const Graph& graph, const Node& node) {
  if (IsProduct(ShardingRuleOf(graph, node))) return false;
  const std::vector<TensorType> operands = graph.OperandTypes(node);
  const std::vector<TensorType> results = graph.ResultTypes(node);
  double made_bytes = 0;
  double made_elements = 0;
  for (const TensorType& type : results) {
    made_bytes += static_cast<double>(type.num_bytes());
    made_elements += static_cast<double>(type.num_elements());
  }
  const graph::OpCost cost = node.op->Cost({node.attributes, operands, results});
  return cost.bytes <= kMaxBytesPerByte * made_bytes &&
         cost.flops <= kMaxFlopsPerElement * made_elements;
}

// Marks cheap nodes whose operands are at hand in the backward pass anyway.
void MarkCheap(Graph& graph) {
  std::vector<bool> is_at_hand(graph.num_values(), false);
  for (const Node& node : graph.nodes()) {
    if (!IsBackward(node)) continue;
    for (const ValueId operand : node.operands) is_at_hand[operand] = true;
  }
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const Node& node = graph.node(id);
    if (node.phase != Phase::kForward) continue;
    bool is_marked = false;
    if (IsRecomputable(node)) {
      is_marked = std::all_of(node.operands.begin(), node.operands.end(),
                              [&](ValueId operand) { return is_at_hand[operand]; }) &&
                  IsCheap(graph, node);
      if (is_marked) graph.mutable_node(id).attributes.Set(kRecomputeMark, int64_t{kAnySegment});
    }
    // Parameters, inputs and constants do not have to be kept.
    if (!is_marked && IsRecomputable(node)) continue;
    for (const ValueId result : node.results) is_at_hand[result] = true;
  }
}

bool IsTemporal(const Mesh& mesh, absl::Span<const AxisRef> axes) {
  return std::any_of(axes.begin(), axes.end(),
                     [&](const AxisRef& axis) { return graph::IsTemporal(mesh, axis); });
}

// One run of the pass.
class Recomputer {
 public:
  explicit Recomputer(const Graph& in) : in_(in), out_(in.name()) {
    out_.mutable_meshes() = in.meshes();
    out_.ReserveNames(in);
  }

  Graph Run() {
    if (Mark()) FindKept();
    Copy();
    return std::move(out_);
  }

  std::vector<bool> ReadAsMade() {
    Mark();
    return FindKept();
  }

 private:
  // Finds the segments of nodes that may be computed again. Whether there are any.
  bool Mark() {
    marks_.assign(in_.num_nodes(), kUnmarked);
    bool any = false;
    for (NodeId id = 0; id < in_.num_nodes(); ++id) {
      const Node& node = in_.node(id);
      if (node.attributes.Find(kRecomputeMark) == nullptr || !IsRecomputable(node)) continue;
      const auto mark = static_cast<int>(node.attributes.GetInt(kRecomputeMark, kAnySegment));
      if (!RunsEachMicrobatch(node)) continue;
      if (mark == kAnySegment && Communicates(node)) continue;
      marks_[id] = mark;
      any = true;
    }
    return any;
  }

  // Finds the nodes to clone. What is kept for some reader need not be computed again for another.
  // Returns the values that are read as they were made.
  std::vector<bool> FindKept() {
    is_kept_.assign(in_.num_values(), false);
    std::vector<bool> kept = FindClones();
    is_kept_ = std::move(kept);
    return FindClones();
  }

  // What is not split over micro-batches is made once a step, and kept for all of it.
  bool RunsEachMicrobatch(const Node& node) const {
    if (in_.meshes().empty() || in_.meshes()[0].num_microbatches() == 1) return true;
    const auto is_split = [&](ValueId value) {
      const std::optional<graph::Sharding>& sharding = in_.value(value).sharding;
      if (!sharding.has_value()) return false;
      const Mesh& mesh = in_.meshes()[in_.node(in_.value(value).producer).mesh];
      return std::any_of(
                 sharding->dims.begin(), sharding->dims.end(),
                 [&](const graph::DimSharding& dim) { return IsTemporal(mesh, dim.axes); }) ||
             std::any_of(sharding->partials.begin(), sharding->partials.end(),
                         [&](const graph::PartialSpec& p) { return IsTemporal(mesh, p.axes); });
    };
    return std::any_of(node.operands.begin(), node.operands.end(), is_split) ||
           std::any_of(node.results.begin(), node.results.end(), is_split);
  }

  // Whether the node runs otherwise than its values lie, or sums over devices.
  bool Communicates(const Node& node) const {
    if (in_.meshes().empty()) return false;
    const Mesh& mesh = in_.meshes()[node.mesh];
    const auto is_foreign = [&](ValueId value) {
      return in_.node(in_.value(value).producer).mesh != node.mesh;
    };
    if (std::any_of(node.operands.begin(), node.operands.end(), is_foreign)) return true;
    const graph::ShardingRule rule = ShardingRuleOf(in_, node);
    for (int factor = 0; factor < static_cast<int>(rule.factors.size()); ++factor) {
      std::optional<std::vector<AxisRef>> axes;
      const auto differs = [&](ValueId value, const graph::TensorFactors& dims) {
        const graph::Sharding sharding = ClosedSharding(mesh, in_.value(value));
        const std::optional<std::vector<AxisRef>> here = AxesOn(factor, sharding, dims, rule);
        if (!here.has_value()) return false;
        if (!axes.has_value()) axes = here;
        return *axes != *here;
      };
      for (size_t o = 0; o < node.operands.size(); ++o) {
        if (differs(node.operands[o], rule.operands[o])) return true;
      }
      bool is_in_results = true;
      for (size_t r = 0; r < node.results.size(); ++r) {
        if (differs(node.results[r], rule.results[r])) return true;
        is_in_results = is_in_results && HasFactor(rule.results[r], factor);
      }
      const bool is_pass_through = rule.factors[factor].kind == graph::FactorKind::kPassThrough;
      const bool is_whole = !axes.has_value() || axes->empty();
      if (!is_whole && !(is_pass_through && is_in_results)) return true;
    }
    return false;
  }

  // Whether a node, of the backward pass or a clone, is to read a clone of the value.
  bool ReadsClone(ValueId value, int stage, int segment) const {
    const NodeId producer = in_.value(value).producer;
    return marks_[producer] != kUnmarked && !is_kept_[value] && in_.node(producer).stage == stage &&
           (marks_[producer] == kAnySegment || marks_[producer] == segment);
  }

  int SegmentOf(const Node& node) const {
    return node.forward == kNoNode ? kUnmarked : marks_[node.forward];
  }

  // Finds the nodes to clone and the phases of the clones. Returns the values that are read as
  // they were made.
  std::vector<bool> FindClones() {
    clone_phase_.assign(in_.num_nodes(), Phase::kForward);
    std::vector<bool> is_read(in_.num_values(), false);
    std::vector<NodeId> open;
    const auto read = [&](ValueId value, int stage, int segment, Phase phase) {
      if (!ReadsClone(value, stage, segment)) {
        is_read[value] = true;
        return;
      }
      const NodeId producer = in_.value(value).producer;
      Phase& now = clone_phase_[producer];
      if (now == phase || now == Phase::kBackward) return;
      now = phase;
      open.push_back(producer);
    };
    for (NodeId id = 0; id < in_.num_nodes(); ++id) {
      const Node& node = in_.node(id);
      if (!IsBackward(node)) continue;
      for (const ValueId operand : node.operands) {
        read(operand, node.stage, SegmentOf(node), node.phase);
      }
      while (!open.empty()) {
        const NodeId clone = open.back();
        open.pop_back();
        const Node& original = in_.node(clone);
        for (const ValueId operand : original.operands) {
          read(operand, original.stage, marks_[clone], clone_phase_[clone]);
        }
      }
    }
    return is_read;
  }

  void Copy() {
    now_.assign(in_.num_values(), kNoValue);
    clones_.assign(in_.num_values(), kNoValue);
    for (NodeId id = 0; id < in_.num_nodes(); ++id) {
      const Node& node = in_.node(id);
      Node copy = node;
      for (ValueId& operand : copy.operands) {
        const bool reads_clone = IsBackward(node) && !is_kept_.empty() &&
                                 ReadsClone(operand, node.stage, SegmentOf(node));
        operand = reads_clone ? CloneOf(operand) : now_[operand];
      }
      copy.attributes.Erase(kRecomputeMark);
      if (copy.forward != kNoNode) copy.forward = now_node_[copy.forward];
      std::vector<std::string> names;
      for (const ValueId result : node.results) names.push_back(in_.value(result).name);
      now_node_.push_back(Add(std::move(copy), node, names, &now_));
    }
    for (const graph::Return& ret : in_.returns()) {
      out_.mutable_returns().push_back({now_[ret.value], ret.sharding});
    }
  }

  NodeId Add(Node copy, const Node& node, absl::Span<const std::string> names,
             std::vector<ValueId>* made) {
    const NodeId id = out_.AddTyped(std::move(copy), in_.ResultTypes(node), names);
    for (size_t r = 0; r < node.results.size(); ++r) {
      (*made)[node.results[r]] = out_.node(id).results[r];
      out_.mutable_value(out_.node(id).results[r]).sharding = in_.value(node.results[r]).sharding;
    }
    return id;
  }

  // The clone of a value and of what it needs, made when first asked for.
  ValueId CloneOf(ValueId value) {
    std::vector<NodeId> open = {in_.value(value).producer};
    while (!open.empty()) {
      const NodeId id = open.back();
      const Node& node = in_.node(id);
      if (clones_[node.results[0]] != kNoValue) {
        open.pop_back();
        continue;
      }
      Node copy = node;
      bool is_ready = true;
      for (ValueId& operand : copy.operands) {
        if (!ReadsClone(operand, node.stage, marks_[id])) {
          operand = now_[operand];
        } else if (clones_[operand] != kNoValue) {
          operand = clones_[operand];
        } else {
          open.push_back(in_.value(operand).producer);
          is_ready = false;
        }
      }
      if (!is_ready) continue;
      open.pop_back();
      copy.attributes.Erase(kRecomputeMark);
      copy.attributes.Set(kRecomputedMark, true);
      copy.phase = clone_phase_[id];
      copy.forward = now_node_[id];
      std::vector<std::string> names;
      for (const ValueId result : node.results) {
        names.push_back(out_.UniqueName(absl::StrCat(in_.value(result).name, ".recomputed")));
      }
      Add(std::move(copy), node, names, &clones_);
    }
    return clones_[value];
  }

  const Graph& in_;
  Graph out_;
  std::vector<int> marks_;          // of nodes
  std::vector<bool> is_kept_;       // values that some reader reads as they were made
  std::vector<Phase> clone_phase_;  // kForward: no clone
  std::vector<ValueId> now_;        // of values
  std::vector<ValueId> clones_;     // likewise
  std::vector<NodeId> now_node_;
};

}  // namespace

std::string_view Name(Recompute level) {
  switch (level) {
    case Recompute::kNone:
      return "none";
    case Recompute::kSelective:
      return "selective";
    case Recompute::kFull:
      return "full";
  }
  return "none";
}

std::optional<Recompute> FindRecompute(std::string_view name) {
  for (const Recompute level : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    if (Name(level) == name) return level;
  }
  return std::nullopt;
}

std::vector<int> RecomputeSegments(const Graph& graph) {
  const ForwardSequence sequence = ForwardSequenceOf(graph);
  const auto count = static_cast<int>(sequence.nodes.size());
  std::vector<int> segments(graph.num_nodes(), 0);
  // Positions in the sequence where a segment begins; the last is the end.
  std::vector<int> starts;
  const auto position_of = [&](NodeId node) {
    return static_cast<int>(std::lower_bound(sequence.nodes.begin(), sequence.nodes.end(), node) -
                            sequence.nodes.begin());
  };
  // Of the positions [begin, end), the first before which least crosses.
  const auto cheapest = [&](int begin, int end) {
    int best = begin;
    for (int i = begin; i < end; ++i) {
      const double here = i == 0 ? 0 : sequence.crossing[i - 1];
      const double least = best == 0 ? 0 : sequence.crossing[best - 1];
      if (here < least * (1 - 1e-9)) best = i;
    }
    return best;
  };
  const std::vector<RepeatedLayers> runs = FindForwardRuns(graph, 2);
  const auto begin_of = [&](const RepeatedLayers& run, int copy) {
    return position_of(run.first_node + copy * run.nodes_per_copy);
  };
  int num_in_layers = 0;
  for (const RepeatedLayers& run : runs) {
    num_in_layers += begin_of(run, run.num_copies) - begin_of(run, 0);
  }
  // Layers that make up most of the graph.
  if (2 * num_in_layers > count) {
    const auto begin_at = [&](int position) {
      if (starts.empty() || starts.back() < position) starts.push_back(position);
    };
    for (const RepeatedLayers& run : runs) {
      const int shift = cheapest(begin_of(run, 1), begin_of(run, 2)) - begin_of(run, 1);
      begin_at(begin_of(run, 0));
      for (int copy = 0; copy < run.num_copies; ++copy) begin_at(begin_of(run, copy) + shift);
      begin_at(begin_of(run, run.num_copies));
    }
  } else if (count > 0) {
    const int num_parts = std::max(1, static_cast<int>(std::lround(std::sqrt(count))));
    const int window = std::max(1, count / num_parts / 2);
    starts.push_back(0);
    for (int part = 1; part < num_parts; ++part) {
      const int near = static_cast<int>(int64_t{count} * part / num_parts);
      const int first = std::max(starts.back() + 1, near - window / 2);
      starts.push_back(cheapest(first, std::min(first + window, count)));
    }
    starts.push_back(count);
  }
  for (size_t s = 0; s + 1 < starts.size(); ++s) {
    const NodeId begin = sequence.nodes[starts[s]];
    const NodeId end = starts[s + 1] < count ? sequence.nodes[starts[s + 1]] : graph.num_nodes();
    for (NodeId id = begin; id < end; ++id) {
      if (IsRecomputable(graph.node(id))) segments[id] = static_cast<int>(s) + 1;
    }
  }
  return segments;
}

std::vector<bool> ReadAsMade(const Graph& graph) { return Recomputer(graph).ReadAsMade(); }

void MarkRecompute(Recompute level, Graph& graph) {
  if (level == Recompute::kNone) return;
  if (level == Recompute::kSelective) {
    MarkCheap(graph);
    return;
  }
  const std::vector<int> segments = RecomputeSegments(graph);
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    if (segments[id] > 0)
      graph.mutable_node(id).attributes.Set(kRecomputeMark, int64_t{segments[id]});
  }
}

absl::Status AddRecomputation(Graph& graph) {
  const bool any = std::any_of(graph.nodes().begin(), graph.nodes().end(), [](const Node& node) {
    return node.attributes.Find(kRecomputeMark) != nullptr;
  });
  if (any) graph = Recomputer(graph).Run();
  return absl::OkStatus();
}

}  // namespace penstock::planner
