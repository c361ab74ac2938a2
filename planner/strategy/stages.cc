#include "planner/strategy/stages.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/strings.h"
#include "graph/op.h"
#include "graph/text.h"

namespace penstock::planner {
namespace {

using graph::Graph;
using graph::kNoNode;
using graph::Node;
using graph::NodeId;
using graph::Phase;
using graph::ValueId;

constexpr int kUnassigned = -1;

// The work that the time of moving one byte is worth: operators without arithmetic take time too.
constexpr double kFlopsPerByte = 10;

// CutSequence weighs a balance against what crosses the cuts.
constexpr double kCrossingPenalty = 0.1;
constexpr int kMaxThresholds = 8;

double WorkOf(const Graph& graph, const Node& node) {
  const std::vector<TensorType> operands = graph.OperandTypes(node);
  const std::vector<TensorType> results = graph.ResultTypes(node);
  const graph::OpCost cost = node.op->Cost({node.attributes, operands, results});
  return cost.flops + kFlopsPerByte * cost.bytes;
}

struct Cut {
  std::vector<int> starts;
  double slowest = std::numeric_limits<double>::infinity();
};

// The best cut of the sequence at `points` (a point p cuts after element p) into num_parts.
// `total` holds the prefix sums of the cost.
Cut CutAt(absl::Span<const int> points, absl::Span<const double> total,
          absl::Span<const double> crossing, int num_parts) {
  // Ends of parts: the points, and the end of the sequence.
  std::vector<int> ends(points.begin(), points.end());
  ends.push_back(static_cast<int>(total.size()) - 2);
  const int count = static_cast<int>(ends.size());
  struct Best {
    double slowest = std::numeric_limits<double>::infinity();
    double crossing = std::numeric_limits<double>::infinity();
    int previous = -1;
  };
  // best[k][e]: k + 1 parts that end with ends[e].
  std::vector<std::vector<Best>> best(num_parts, std::vector<Best>(count));
  for (int e = 0; e < count; ++e) best[0][e] = {total[ends[e] + 1], 0.0, -1};
  for (int k = 1; k < num_parts; ++k) {
    for (int e = k; e < count; ++e) {
      for (int p = k - 1; p < e; ++p) {
        const Best& before = best[k - 1][p];
        const double part = total[ends[e] + 1] - total[ends[p] + 1];
        const double slowest = std::max(before.slowest, part);
        const double crossed = before.crossing + crossing[ends[p]];
        Best& here = best[k][e];
        if (std::pair(slowest, crossed) < std::pair(here.slowest, here.crossing)) {
          here = {slowest, crossed, p};
        }
      }
    }
  }
  Cut cut;
  cut.slowest = best[num_parts - 1][count - 1].slowest;
  cut.starts.assign(num_parts, 0);
  int e = count - 1;
  for (int k = num_parts - 1; k > 0; --k) {
    e = best[k][e].previous;
    cut.starts[k] = ends[e] + 1;
  }
  return cut;
}

class StageAssigner {
 public:
  explicit StageAssigner(Graph& graph) : graph_(graph), users_(graph.Users()) {}

  void KeepForward() {
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
      if (graph_.node(id).phase != Phase::kForward) Set(id, kUnassigned);
    }
  }

  void AssignForward(const ForwardSequence& sequence, absl::Span<const int> starts) {
    int stage = 0;
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) Set(id, kUnassigned);
    for (size_t i = 0; i < sequence.nodes.size(); ++i) {
      while (stage + 1 < static_cast<int>(starts.size()) &&
             static_cast<int>(i) >= starts[stage + 1]) {
        ++stage;
      }
      Set(sequence.nodes[i], stage);
    }
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
      const Node& node = graph_.node(id);
      if (node.phase == Phase::kForward && node.operands.empty()) {
        Set(id, FirstUserStage(id, Phase::kForward).value_or(kUnassigned));
      }
    }
  }

  void AssignBackward(int num_stages) {
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
      if (!IsBackward(id)) continue;
      const Node& node = graph_.node(id);
      const int earliest = EarliestGradient(node);
      const bool has_forward = node.forward != kNoNode && Stage(node.forward) != kUnassigned;
      // The gradients of a value that only later stages read are added there and sent once.
      const bool is_sum = node.op->role() == graph::OpRole::kAdd && earliest != kUnassigned;
      Set(id, has_forward && !is_sum ? Stage(node.forward) : earliest);
    }
    // What depends on no gradient (the gradient of the loss itself) stays with its reader.
    for (NodeId id = graph_.num_nodes() - 1; id >= 0; --id) {
      if (!IsBackward(id) || Stage(id) != kUnassigned) continue;
      int stage = num_stages - 1;
      for (const NodeId user : users_[graph_.node(id).results[0]]) {
        if (IsBackward(user) && Stage(user) != kUnassigned) {
          stage = Stage(user);
          break;
        }
      }
      Set(id, stage);
    }
  }

  void AssignUpdate() {
    // Parameters that only the backward pass reads, or nothing.
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
      if (IsStored(id) && IsParameter(id) && Stage(id) == kUnassigned) {
        const std::optional<int> backward = FirstUserStage(id, Phase::kBackward);
        const std::optional<int> weight = FirstUserStage(id, Phase::kWeightBackward);
        Set(id, backward.value_or(weight.value_or(0)));
      }
    }
    // The state of an optimizer goes with the parameter that it updates.
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
      const std::optional<int> stage = StageOfUpdatedParameter(id);
      if (!stage.has_value()) continue;
      Set(id, *stage);
      for (const ValueId operand : graph_.node(id).operands) {
        const NodeId producer = graph_.value(operand).producer;
        if (IsStored(producer) && Stage(producer) == kUnassigned &&
            !graph_.value(operand).type.shape.empty()) {
          Set(producer, *stage);
        }
      }
    }
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
      if (Stage(id) != kUnassigned) continue;
      const Node& node = graph_.node(id);
      if (node.op->role() == graph::OpRole::kAssign) {
        Set(id, Stage(graph_.value(node.operands[0]).producer));
      } else {
        Set(id, CommonOperandStage(node));
      }
    }
  }

 private:
  // The first stage that makes a gradient which the node reads.
  int EarliestGradient(const Node& node) const {
    int stage = kUnassigned;
    for (const ValueId operand : node.operands) {
      const NodeId producer = graph_.value(operand).producer;
      if (!IsBackward(producer) || Stage(producer) == kUnassigned) continue;
      if (stage == kUnassigned || Stage(producer) < stage) stage = Stage(producer);
    }
    return stage;
  }

  int Stage(NodeId id) const { return graph_.node(id).stage; }
  void Set(NodeId id, int stage) { graph_.mutable_node(id).stage = stage; }

  bool IsBackward(NodeId id) const {
    const Phase phase = graph_.node(id).phase;
    return phase == Phase::kBackward || phase == Phase::kWeightBackward;
  }
  bool IsParameter(NodeId id) const {
    return graph_.node(id).op->role() == graph::OpRole::kParameter;
  }
  bool IsStored(NodeId id) const {
    return IsParameter(id) || graph_.node(id).op->role() == graph::OpRole::kState;
  }

  // The lowest stage among the users of one phase.
  std::optional<int> FirstUserStage(NodeId id, Phase phase) const {
    std::optional<int> first;
    for (const ValueId result : graph_.node(id).results) {
      for (const NodeId user : users_[result]) {
        if (graph_.node(user).phase != phase || Stage(user) == kUnassigned) continue;
        first = std::min(first.value_or(Stage(user)), Stage(user));
      }
    }
    return first;
  }

  // Of an update node that reads a parameter.
  std::optional<int> StageOfUpdatedParameter(NodeId id) const {
    const Node& node = graph_.node(id);
    if (node.phase != Phase::kUpdate) return std::nullopt;
    for (const ValueId operand : node.operands) {
      const NodeId producer = graph_.value(operand).producer;
      if (IsParameter(producer)) return Stage(producer);
    }
    return std::nullopt;
  }

  // The stage of all operands, or 0 where they differ or there are none.
  int CommonOperandStage(const Node& node) const {
    std::optional<int> common;
    for (const ValueId operand : node.operands) {
      const int stage = Stage(graph_.value(operand).producer);
      if (common.has_value() && *common != stage) return 0;
      common = stage;
    }
    return common.value_or(0);
  }

  Graph& graph_;
  const std::vector<std::vector<NodeId>> users_;
};

void AssignAll(const ForwardSequence& sequence, absl::Span<const int> starts, Graph& graph) {
  StageAssigner assigner(graph);
  assigner.AssignForward(sequence, starts);
  assigner.AssignBackward(static_cast<int>(starts.size()));
  assigner.AssignUpdate();
}

}  // namespace

ForwardSequence ForwardSequenceOf(const Graph& graph) {
  ForwardSequence sequence;
  std::vector<int> position(graph.num_nodes(), -1);
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const Node& node = graph.node(id);
    if (node.phase != Phase::kForward || node.operands.empty()) continue;
    position[id] = static_cast<int>(sequence.nodes.size());
    sequence.nodes.push_back(id);
    sequence.cost.push_back(WorkOf(graph, node));
  }
  const size_t count = sequence.nodes.size();
  // Bytes that begin and end to cross at each position.
  std::vector<double> change(count + 1, 0.0);
  std::vector<int> last_use(graph.num_values(), -1);
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const Node& node = graph.node(id);
    if (node.phase != Phase::kForward) {
      if (node.forward != kNoNode && position[node.forward] >= 0) {
        sequence.cost[position[node.forward]] += WorkOf(graph, node);
      }
      continue;
    }
    for (const ValueId operand : node.operands) last_use[operand] = position[id];
  }
  for (ValueId id = 0; id < graph.num_values(); ++id) {
    const graph::Value& value = graph.value(id);
    const int from = position[value.producer];
    if (from < 0 || last_use[id] <= from) continue;
    change[from] += static_cast<double>(value.type.num_bytes());
    change[last_use[id]] -= static_cast<double>(value.type.num_bytes());
  }
  double crossing = 0;
  for (size_t i = 0; i < count; ++i) {
    crossing += change[i];
    sequence.crossing.push_back(crossing);
  }
  return sequence;
}

std::vector<int> CutSequence(absl::Span<const double> cost, absl::Span<const double> crossing,
                             int num_parts) {
  const int count = static_cast<int>(cost.size());
  if (num_parts == 1) return {0};
  std::vector<double> total(count + 1, 0.0);
  for (int i = 0; i < count; ++i) total[i + 1] = total[i] + cost[i];

  // The cheapest crossing away from both ends, where a part could not be of use.
  const double margin = total[count] / (2.0 * num_parts);
  double cheapest = std::numeric_limits<double>::infinity();
  for (int i = 0; i + 1 < count; ++i) {
    if (total[i + 1] >= margin && total[i + 1] <= total[count] - margin) {
      cheapest = std::min(cheapest, crossing[i]);
    }
  }
  std::vector<double> thresholds(crossing.begin(), crossing.end() - 1);
  std::sort(thresholds.begin(), thresholds.end());
  thresholds.erase(std::unique(thresholds.begin(), thresholds.end()), thresholds.end());
  if (cheapest == std::numeric_limits<double>::infinity()) cheapest = thresholds.front();

  Cut best;
  double best_score = std::numeric_limits<double>::infinity();
  int tried = 0;
  for (const double threshold : thresholds) {
    if (threshold < cheapest && threshold != thresholds.back()) continue;
    std::vector<int> points;
    for (int i = 0; i + 1 < count; ++i) {
      if (crossing[i] <= threshold) points.push_back(i);
    }
    if (static_cast<int>(points.size()) < num_parts - 1) continue;
    Cut cut = CutAt(points, total, crossing, num_parts);
    const double growth = cheapest > 0 ? threshold / cheapest - 1 : 0;
    const double score = cut.slowest * (1 + kCrossingPenalty * growth);
    if (score < best_score) {
      best_score = score;
      best = std::move(cut);
    }
    if (++tried == kMaxThresholds) break;
  }
  return best.starts;
}

absl::Status AssignStages(int num_stages, Graph& graph) {
  if (num_stages < 1) {
    return absl::InvalidArgumentError(
        StrCat("pp = ", num_stages, ": there must be at least one stage"));
  }
  const ForwardSequence sequence = ForwardSequenceOf(graph);
  if (num_stages > 1 && static_cast<int>(sequence.nodes.size()) < num_stages) {
    return absl::InvalidArgumentError(StrCat(num_stages, " stages are more than the ",
                                             sequence.nodes.size(), " operators of the model"));
  }
  AssignAll(sequence, CutSequence(sequence.cost, sequence.crossing, num_stages), graph);
  return absl::OkStatus();
}

absl::Status FollowStages(Graph& graph) {
  std::vector<int> mesh_of_stage;
  for (const Node& node : graph.nodes()) {
    if (node.phase != Phase::kForward) continue;
    if (node.stage < 0) {
      const graph::SourceLocation& place = node.location;
      return absl::InvalidArgumentError(
          StrCat(place.line > 0 ? StrCat(place.file, ":", place.line, ":", place.column, ": ") : "",
                 "this statement has no stage; where one statement says its stage, all do\n  in: ",
                 graph::PrintNode(graph, node)));
    }
    if (node.stage >= static_cast<int>(mesh_of_stage.size())) {
      mesh_of_stage.resize(node.stage + 1, node.mesh);
    }
    mesh_of_stage[node.stage] = node.mesh;
  }
  StageAssigner assigner(graph);
  assigner.KeepForward();
  assigner.AssignBackward(std::max(static_cast<int>(mesh_of_stage.size()), 1));
  assigner.AssignUpdate();
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    Node& node = graph.mutable_node(id);
    if (node.phase != Phase::kForward && !mesh_of_stage.empty()) {
      node.mesh = mesh_of_stage[node.stage];
    }
  }
  return absl::OkStatus();
}

void AssignUpdateStages(Graph& graph) { StageAssigner(graph).AssignUpdate(); }

absl::Status AssignStagesAt(absl::Span<const int> starts, Graph& graph) {
  const ForwardSequence sequence = ForwardSequenceOf(graph);
  bool is_cut = !starts.empty() && starts[0] == 0;
  for (size_t i = 1; i < starts.size(); ++i) is_cut = is_cut && starts[i] > starts[i - 1];
  if (!is_cut || starts.back() >= static_cast<int>(std::max<size_t>(sequence.nodes.size(), 1))) {
    return absl::InvalidArgumentError(StrCat("the starts of ", starts.size(),
                                             " stages do not cut the ", sequence.nodes.size(),
                                             " operators of the model"));
  }
  AssignAll(sequence, starts, graph);
  return absl::OkStatus();
}

}  // namespace penstock::planner
