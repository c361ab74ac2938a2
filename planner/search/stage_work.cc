#include "planner/search/stage_work.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/op.h"
#include "planner/lower/communication.h"
#include "planner/lower/phases.h"
#include "planner/lower/sub_batches.h"
#include "planner/plan/coordinates.h"
#include "planner/search/kernel_seconds.h"
#include "planner/sharding/execution_sharding.h"
#include "planner/sharding/halo.h"
#include "planner/sharding/split_sends.h"
#include "planner/strategy/offload.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::Graph;
using graph::Mesh;
using graph::Node;
using graph::NodeId;
using graph::Sharding;
using graph::ValueId;

// Values of this size count for their latency only.
constexpr double kSmallBytes = 64;

// Where a node's work and memory count.
enum class Moment : uint8_t { kForward, kBackward, kUpdate };

Moment MomentOf(const PhaseKey& key) {
  if (key.lane() != Lane::kCompute) return Moment::kUpdate;
  return key.order == 0 ? Moment::kForward : Moment::kBackward;
}

class Measurer {
 public:
  Measurer(const Graph& graph, const Machine& machine, const WorkOptions& options)
      : graph_(graph),
        machine_(machine),
        options_(options),
        mesh_(graph.meshes()[0]),
        sends_(graph.meshes()[0], options.send_costs) {
    const int64_t n = mesh_.num_devices();
    if (options.group.has_value()) {
      alike_groups_.assign(static_cast<size_t>(options.num_groups), *options.group);
    } else {
      alike_groups_ = FirstAlikeGroups(machine.cluster, n, options.num_groups);
    }
    for (const int g : alike_groups_) kernels_.try_emplace(g, machine, g * n, n);
  }

  absl::StatusOr<ModelWork> Run() {
    work_.num_microbatches = mesh_.num_microbatches();
    work_.devices_per_stage = mesh_.num_devices();
    const int64_t num_devices = options_.num_groups * mesh_.num_devices();
    if (num_devices > machine_.cluster.num_devices()) {
      return absl::InvalidArgumentError(
          StrCat("the layout needs ", num_devices, " devices, and the cluster ",
                 machine_.cluster.spec().name, " has ", machine_.cluster.num_devices()));
    }
    ASSIGN_OR_RETURN(phases_, AssignPhases(graph_, {}));
    users_ = graph_.Users();
    for (const NodePhase& phase : phases_) {
      if (!phase.is_live) continue;
      const auto needed = static_cast<size_t>(phase.virtual_stage) + 1;
      if (work_.stages.size() < needed) work_.stages.resize(needed);
    }
    types_.reserve(graph_.num_values());
    for (ValueId value = 0; value < graph_.num_values(); ++value) types_.push_back(TileType(value));
    FindRoots();
    has_zero_ = std::any_of(graph_.nodes().begin(), graph_.nodes().end(), [](const Node& node) {
      return node.attributes.GetBool("per_use", false) ||
             node.op->role() == graph::OpRole::kReduceScatter;
    });
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
      if (phases_[id].is_live && !phases_[id].is_leaf) AddNode(id);
    }
    for (StageWork& stage : work_.stages) {
      HideSubBatches(&stage.forward);
      HideSubBatches(&stage.backward);
    }
    AddValues();
    AddWorkspaces();
    return std::move(work_);
  }

 private:
  // One use of memory inside a phase, in positions of nodes, both included.
  struct Lifetime {
    double bytes = 0;
    NodeId first = 0;
    NodeId last = 0;
    bool is_taken_over = false;  // by the result of the last reader
  };

  TensorType TileType(ValueId value) const {
    const graph::Value& v = graph_.value(value);
    return v.sharding.has_value() ? LargestTile(v.type, *v.sharding) : v.type;
  }

  double BytesOf(ValueId value) const { return static_cast<double>(types_[value].num_bytes()); }
  const Node& ProducerOf(ValueId value) const { return graph_.node(graph_.value(value).producer); }
  const NodePhase& PhaseOf(ValueId value) const { return phases_[graph_.value(value).producer]; }
  bool IsState(ValueId value) const {
    const Node& node = ProducerOf(value);
    return node.op->has_declared_type() && node.op->role() != graph::OpRole::kInput;
  }
  bool IsFromHost(ValueId value) const {
    return ProducerOf(value).op->role() == graph::OpRole::kToDevice;
  }
  StageWork& StageOf(NodeId id) { return work_.stages[phases_[id].virtual_stage]; }

  // A sum of what the backward pass made that only nodes that run once a step read.
  bool IsGradientReduction(NodeId id) const {
    const Node& node = graph_.node(id);
    const PhaseKey& made = PhaseOf(node.operands[0]).key;
    if (PhaseOf(node.operands[0]).is_leaf || IsState(node.operands[0])) return false;
    if (!made.per_microbatch || MomentOf(made) != Moment::kBackward) return false;
    return std::all_of(users_[node.results[0]].begin(), users_[node.results[0]].end(),
                       [&](NodeId user) {
                         const NodePhase& phase = phases_[user];
                         return !phase.is_live || MomentOf(phase.key) == Moment::kUpdate;
                       });
  }

  // Values that share bytes: reshapes, sums reduced or accumulated in place, next versions of
  // states, sub-batches.
  void FindRoots() {
    root_.resize(graph_.num_values());
    for (ValueId value = 0; value < graph_.num_values(); ++value) {
      root_[value] = value;
      const Node& node = ProducerOf(value);
      if (!PhaseOf(value).is_live || node.operands.empty()) continue;
      const graph::OpRole role = node.op->role();
      ValueId source = graph::kNoValue;
      if (role == graph::OpRole::kReshape || TakesSubBatch(graph_, node)) {
        source = node.operands[0];
      }
      if ((role == graph::OpRole::kAllReduce || role == graph::OpRole::kAccumulate) &&
          users_[node.operands[0]].size() == 1) {
        source = node.operands[0];
      }
      const std::vector<int> updated = node.op->updated_operands();
      const auto result = static_cast<size_t>(graph_.value(value).result_index);
      if (result < updated.size() &&
          (IsState(node.operands[updated[result]]) || IsFromHost(node.operands[updated[result]]))) {
        source = node.operands[updated[result]];
      }
      if (source == graph::kNoValue || PhaseOf(source).is_leaf) continue;
      if (PhaseOf(source).virtual_stage != PhaseOf(value).virtual_stage) continue;
      if (IsState(source) && role != graph::OpRole::kReshape && updated.empty()) continue;
      root_[value] = root_[source];
    }
    std::map<ValueId, ValueId> joined;  // roots of sub-batches, and the whole
    for (const Node& node : graph_.nodes()) {
      if (node.op->role() != graph::OpRole::kJoinSubBatches) continue;
      for (const ValueId part : node.operands) joined[root_[part]] = node.results[0];
    }
    for (ValueId value = 0; !joined.empty() && value < graph_.num_values(); ++value) {
      const auto whole = joined.find(root_[value]);
      if (whole != joined.end()) root_[value] = whole->second;
    }
  }

  bool IsFree(NodeId id) const {
    const Node& node = graph_.node(id);
    if (node.op->has_declared_type() || node.op->role() == graph::OpRole::kAssign) return true;
    if (node.op->role() == graph::OpRole::kJoinSubBatches) return true;
    const bool may_share =
        node.op->role() == graph::OpRole::kReshape || TakesSubBatch(graph_, node);
    return may_share && root_[node.results[0]] != node.results[0];
  }

  // And to the part of its backward phase that makes gradients of weights, if it does.
  void AddNode(NodeId id) {
    StageWork& stage = StageOf(id);
    const PhaseWork before = stage.backward;
    AddNodeToPhase(id);
    if (graph_.node(id).phase == graph::Phase::kWeightBackward) {
      stage.weight.compute_s += stage.backward.compute_s - before.compute_s;
      stage.weight.communication_s += stage.backward.communication_s - before.communication_s;
      stage.weight.core_s += stage.backward.core_s - before.core_s;
      stage.weight.launch_s += stage.backward.launch_s - before.launch_s;
    }
    if (!has_zero_) return;
    const Node& node = graph_.node(id);
    if (!IsFree(id) && !CollectiveOf(node.op->role()).has_value() && !IsHostCopy(node.op->role())) {
      HideBehind(id);
    }
  }

  void AddNodeToPhase(NodeId id) {
    const Node& node = graph_.node(id);
    const PhaseKey& key = phases_[id].key;
    StageWork& stage = StageOf(id);
    if (node.op->has_declared_type()) {
      double& memory = IsOnHost(graph_, node.results[0])              ? stage.memory.host
                       : node.op->role() == graph::OpRole::kParameter ? stage.memory.parameters
                                                                      : stage.memory.optimizer;
      memory += BytesOf(node.results[0]);
    }
    if (IsFree(id)) return;
    const Moment moment = MomentOf(key);
    PhaseWork& phase = moment == Moment::kForward    ? stage.forward
                       : moment == Moment::kBackward ? stage.backward
                                                     : stage.update;
    const double times = moment == Moment::kUpdate && key.per_microbatch
                             ? static_cast<double>(work_.num_microbatches)
                             : 1;
    phase.launch_s += times * KernelsOf(id).LaunchSeconds();
    if (IsHostCopy(node.op->role())) {
      phase.communication_s += times * KernelsOf(id).HostCopySeconds(BytesOf(node.results[0]));
      return;
    }
    const std::optional<CollectiveKind> kind = CollectiveOf(node.op->role());
    if (!kind.has_value()) {
      phase.compute_s += times * KernelSeconds(id);
      return;
    }
    const Sharding from = ClosedSharding(mesh_, graph_.value(node.operands[0]));
    const Sharding to = ClosedSharding(mesh_, graph_.value(node.results[0]));
    const double bytes =
        BytesOf(*kind == CollectiveKind::kAllGather ? node.results[0] : node.operands[0]);
    if (ExchangedDim(from, to) >= 0) {
      AddHaloExchange(id, from, to, times, &phase);
      return;
    }
    const std::optional<TileRoll> roll = TileRollOf(graph_, node);
    const int group = GroupOf(*kind, MovedAxes(*kind, from, to, roll),
                              roll.has_value() ? std::optional<int64_t>(roll->by) : std::nullopt);
    if (work_.reduction_groups[group].shapes[0].num_members == 1) return;
    if (IsGradientReduction(id)) {
      AddReduction({group, bytes}, &stage.gradients);
      return;
    }
    double seconds = PredictSeconds(machine_, work_.reduction_groups[group], bytes);
    if (roll.has_value()) {
      seconds = ExposedSeconds(id, seconds);
    } else if (*kind == CollectiveKind::kAllGather && node.attributes.GetBool("per_use", false)) {
      seconds -= HiddenByEarlier(id, group, seconds);
    } else if (*kind == CollectiveKind::kReduceScatter && moment == Moment::kBackward &&
               IsReadByUpdates(id)) {
      BesideOf(id).scattered.push_back({phases_[id].virtual_stage,
                                        node.phase == graph::Phase::kWeightBackward,
                                        HideableSeconds(group, seconds)});
    } else if (moment == Moment::kBackward && node.phase == graph::Phase::kBackward &&
               !IsOfSubBatch(to)) {
      stage.hidden_by_weights_s += HiddenByWeights(id, HideableSeconds(group, seconds));
    }
    AddCommunication(group, times * seconds, &phase);
    phase.compute_s += times * PackingSeconds(*kind, id);
    if (IsOfSubBatch(to)) {
      InParts& in_parts = in_parts_[&phase];
      in_parts.seconds += times * seconds;
      ++in_parts.count;
    }
  }

  static bool IsOfSubBatch(const Sharding& sharding) {
    return std::any_of(sharding.dims.begin(), sharding.dims.end(),
                       [](const graph::DimSharding& dim) { return dim.sub_batch.has_value(); });
  }

  // Collectives of sub-batches run beside kernels, but for what comes before the first and behind
  // the last of them, and what they take of the core.
  void HideSubBatches(PhaseWork* phase) {
    const auto found = in_parts_.find(phase);
    if (found == in_parts_.end()) return;
    const InParts& in_parts = found->second;
    const double beside = 1 - 1.0 / in_parts.count;
    const double core_share = phase->core_s / std::max(phase->communication_s, 1e-12);
    phase->communication_s -=
        (1 - core_share) * beside * std::min(in_parts.seconds, phase->compute_s);
  }

  // What a part lacks comes from its neighbours, as in a permute; what it has is copied.
  void AddHaloExchange(NodeId id, const Sharding& from, const Sharding& to, double times,
                       PhaseWork* phase) {
    const Node& node = graph_.node(id);
    const auto bytes = static_cast<double>(HaloBytes(graph_.value(node.results[0]).type, from, to));
    const int group =
        GroupOf(CollectiveKind::kPermute, MovedAxes(CollectiveKind::kAllToAll, from, to), 1);
    if (work_.reduction_groups[group].shapes[0].num_members == 1) return;
    AddCommunication(group, times * PredictSeconds(machine_, work_.reduction_groups[group], bytes),
                     phase);
    phase->compute_s += times * KernelsOf(id).Seconds(
                                    "", types_[node.results[0]].dtype,
                                    {.flops = 0, .bytes = 2 * (bytes + BytesOf(node.results[0]))});
  }

  void AddCommunication(int group, double seconds, PhaseWork* phase) const {
    phase->communication_s += seconds;
    phase->core_s += seconds * CoreShare(machine_, work_.reduction_groups[group]);
  }

  // What kernels of one kind of phase can hide: parameters are gathered ahead of their use
  // (planner/lower/prefetch.h), and gradients that are scattered once a micro-batch go on beside
  // the kernels after them. A kernel hides as much as it takes, of both together.
  struct Beside {
    struct Scatter {
      int stage = 0;
      bool is_weight = false;  // counted in StageWork::weight, too
      double seconds = 0;      // that later kernels may hide
    };
    double idle_s = 0;  // of kernels so far, while which nothing is communicated
    std::vector<Scatter> scattered;
  };

  // Segments of one group are one phase after another, in the order of the nodes.
  int WaitingStageOf(NodeId id) const {
    return options_.group.has_value() ? 0 : phases_[id].virtual_stage;
  }
  Beside& BesideOf(NodeId id) { return beside_[{WaitingStageOf(id), MomentOf(phases_[id].key)}]; }

  // Not what takes the core on which the device computes.
  double HideableSeconds(int group, double seconds) const {
    return seconds * (1 - CoreShare(machine_, work_.reduction_groups[group]));
  }

  double HiddenByEarlier(NodeId id, int group, double seconds) {
    double& idle_s = BesideOf(id).idle_s;
    const double hidden = std::min(idle_s, HideableSeconds(group, seconds));
    idle_s -= hidden;
    return hidden;
  }

  // What gradients of weights hide of a collective that the backward phase waits for, of which so
  // much can be hidden: those that it does not need and that come behind the one before it, which
  // StartCommunicationEarly moves behind this one, and those before the first node that reads it. A
  // kernel hides as much as it takes, of all together.
  double HiddenByWeights(NodeId id, double hideable_s) {
    const Node& node = graph_.node(id);
    NodeId& last = last_inline_.try_emplace(WaitingStageOf(id), -1).first->second;
    std::vector<NodeId> beside;
    absl::flat_hash_set<NodeId> needed;
    const auto need_operands_of = [&](const Node& reader) {
      for (const ValueId operand : reader.operands) needed.insert(graph_.value(operand).producer);
    };
    need_operands_of(node);
    for (NodeId kernel = id - 1; kernel > last; --kernel) {
      if (needed.contains(kernel)) {
        need_operands_of(graph_.node(kernel));
      } else if (MakesWeightGradientsBeside(kernel, id)) {
        beside.push_back(kernel);
      }
    }
    last = id;
    double& idle_s = BesideOf(id).idle_s;
    double left_s = hideable_s;
    const auto hide = [&](NodeId kernel, double most_s) {
      double& of_kernel = hides_.try_emplace(kernel, KernelSeconds(kernel)).first->second;
      const double hidden = std::min({of_kernel, left_s, most_s});
      of_kernel -= hidden;
      left_s -= hidden;
      return hidden;
    };
    for (const NodeId kernel : beside) {
      const double hidden = hide(kernel, has_zero_ ? idle_s : left_s);
      if (has_zero_) idle_s -= hidden;
    }
    const std::vector<NodeId>& readers = users_[node.results[0]];
    const NodeId end = readers.empty() ? id : *std::min_element(readers.begin(), readers.end());
    for (NodeId kernel = id + 1; kernel < end; ++kernel) {
      if (MakesWeightGradientsBeside(kernel, id)) hide(kernel, left_s);
    }
    return hideable_s - left_s;
  }

  bool MakesWeightGradientsBeside(NodeId kernel, NodeId collective) const {
    const Node& node = graph_.node(kernel);
    return node.phase == graph::Phase::kWeightBackward && phases_[kernel].is_live &&
           phases_[kernel].key == phases_[collective].key &&
           WaitingStageOf(kernel) == WaitingStageOf(collective) && !IsFree(kernel) &&
           !CollectiveOf(node.op->role()).has_value() && !IsHostCopy(node.op->role());
  }

  // Whether only sums that the update reads take what the collective makes.
  bool IsReadByUpdates(NodeId id) const {
    const std::vector<NodeId>& users = users_[graph_.node(id).results[0]];
    return std::all_of(users.begin(), users.end(), [&](NodeId user) {
      return !phases_[user].is_live || graph_.node(user).op->role() == graph::OpRole::kAccumulate ||
             MomentOf(phases_[user].key) == Moment::kUpdate;
    });
  }

  // Scatters before the kernel, and gathers after it, run while it does.
  void HideBehind(NodeId id) {
    Beside& beside = BesideOf(id);
    const auto known = hides_.find(id);
    double left_s = known != hides_.end() ? known->second : KernelSeconds(id);
    for (Beside::Scatter& scatter : beside.scattered) {
      const double hidden = std::min(scatter.seconds, left_s);
      scatter.seconds -= hidden;
      left_s -= hidden;
      StageWork& stage = work_.stages[scatter.stage];
      stage.backward.communication_s -= hidden;
      if (scatter.is_weight) stage.weight.communication_s -= hidden;
    }
    std::erase_if(beside.scattered,
                  [](const Beside::Scatter& scatter) { return scatter.seconds <= 0; });
    beside.idle_s += left_s;
  }

  // What an exchange that takes so long leaves to wait for. Beside it run kernels after what it
  // passes on is made: those that read that too, and those that make what the reader of its result
  // needs besides. A kernel hides only as much as it takes, of all exchanges together.
  double ExposedSeconds(NodeId id, double seconds) {
    const Node& node = graph_.node(id);
    const NodeId made = graph_.value(node.operands[0]).producer;
    std::vector<NodeId> beside = users_[node.operands[0]];
    for (const NodeId reader : users_[node.results[0]]) {
      for (const ValueId operand : graph_.node(reader).operands) {
        beside.push_back(graph_.value(operand).producer);
      }
    }
    for (const NodeId kernel : beside) {
      const Node& other = graph_.node(kernel);
      if (kernel <= made || phases_[kernel].key != phases_[id].key || IsFree(kernel) ||
          CollectiveOf(other.op->role()).has_value()) {
        continue;
      }
      const auto left = hides_.try_emplace(kernel, KernelSeconds(kernel)).first;
      const double hidden = std::min(left->second, seconds);
      left->second -= hidden;
      seconds -= hidden;
    }
    return seconds;
  }

  // The copies around a collective whose parts do not lie one after another.
  double PackingSeconds(CollectiveKind kind, NodeId id) const {
    const Node& node = graph_.node(id);
    double bytes = 0;
    if (kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllToAll) {
      bytes += 2 * BytesOf(node.operands[0]);
    }
    if (kind == CollectiveKind::kAllGather || kind == CollectiveKind::kAllToAll) {
      bytes += 2 * BytesOf(node.results[0]);
    }
    return KernelsOf(id).Seconds("", types_[node.results[0]].dtype, {.flops = 0, .bytes = bytes});
  }

  // Of the devices that run the node.
  const KernelTimes& KernelsOf(NodeId id) const {
    const StagePlacement placement = {options_.num_groups, 1, options_.placement};
    const int group = placement.GroupOf(phases_[id].virtual_stage);
    return kernels_.at(
        alike_groups_[options_.device_groups.empty() ? group : options_.device_groups[group]]);
  }

  double KernelSeconds(NodeId id) const {
    const Node& node = graph_.node(id);
    std::vector<TensorType> operands;
    std::vector<TensorType> results;
    for (const ValueId operand : node.operands) operands.push_back(types_[operand]);
    for (const ValueId result : node.results) results.push_back(types_[result]);
    graph::OpCost cost = node.op->Cost({node.attributes, operands, results});
    // The kernel that makes the terms adds them to the sum.
    if (node.op->role() == graph::OpRole::kAccumulate &&
        root_[node.results[0]] != node.results[0]) {
      cost = {.flops = 0, .bytes = static_cast<double>(results[0].num_bytes())};
    }
    return KernelsOf(id).Seconds(node.op->name(), KernelTimes::ComputeType(operands, results),
                                 cost);
  }

  static void AddReduction(const GradientReduction& reduction,
                           std::vector<GradientReduction>* list) {
    for (GradientReduction& other : *list) {
      if (other.group != reduction.group) continue;
      other.num_bytes += reduction.num_bytes;
      return;
    }
    list->push_back(reduction);
  }

  int GroupOf(CollectiveKind kind, const std::vector<AxisRef>& axes,
              std::optional<int64_t> shift = std::nullopt) {
    const auto [it, is_new] =
        groups_.try_emplace({kind, axes, shift}, static_cast<int>(work_.reduction_groups.size()));
    if (!is_new) return it->second;
    work_.reduction_groups.push_back(
        options_.groups != nullptr
            ? options_.groups->Find(machine_, mesh_, kind, axes, options_.num_groups, shift)
            : GroupsOf(machine_, mesh_, kind, axes, options_.num_groups, shift));
    return it->second;
  }

  // The collectives of sub-batches in a phase.
  struct InParts {
    double seconds = 0;
    int count = 0;
  };

  // Who touches the bytes of a root value on its own stage.
  struct Touches {
    bool forward = false;
    bool backward = false;
    bool update = false;
    bool is_whole = false;  // formed by all micro-batches
    bool b = false;         // parts of backward phases
    bool w = false;
    NodeId first = 0;
    NodeId last = 0;

    void Add(const PhaseKey& key, graph::Phase part, NodeId id) {
      const Moment moment = MomentOf(key);
      (part == graph::Phase::kWeightBackward ? w : b) |= moment == Moment::kBackward;
      forward |= moment == Moment::kForward;
      backward |= moment == Moment::kBackward;
      update |= moment == Moment::kUpdate;
      last = std::max(last, id);
    }
    int num_moments() const { return (forward ? 1 : 0) + (backward ? 1 : 0) + (update ? 1 : 0); }
  };

  void AddValues() {
    std::map<ValueId, Touches> touches;
    for (ValueId value = 0; value < graph_.num_values(); ++value) {
      const NodePhase& phase = PhaseOf(value);
      if (!phase.is_live || phase.is_leaf) continue;
      const ValueId root = root_[value];
      const NodeId producer = graph_.value(value).producer;
      const auto [it, is_new] = touches.try_emplace(root);
      if (is_new) it->second.first = producer;
      it->second.Add(phase.key, graph_.node(producer).phase, producer);
      it->second.is_whole |= FormsWhole(graph_.node(producer).op->role());
      for (const NodeId user : users_[value]) {
        if (!phases_[user].is_live) continue;
        if (phases_[user].virtual_stage != phase.virtual_stage) continue;
        if (graph_.node(user).op->role() == graph::OpRole::kAssign) continue;
        it->second.Add(phases_[user].key, graph_.node(user).phase, user);
      }
    }
    for (const auto& [root, touch] : touches) {
      if (!IsState(root)) AddRegister(root, touch);
    }
    for (ValueId value = 0; value < graph_.num_values(); ++value) {
      const NodePhase& phase = PhaseOf(value);
      if (phase.is_live && !phase.is_leaf) AddTransfers(value, touches.at(root_[value]));
    }
  }

  void AddRegister(ValueId root, const Touches& touch) {
    const NodePhase& phase = PhaseOf(root);
    const double bytes = BytesOf(root);
    StageMemory& memory = work_.stages[phase.virtual_stage].memory;
    if (IsOnHost(graph_, root)) {
      // What is assigned to a state lies there.
      if (touch.num_moments() > 1) memory.host_activations += bytes;
      return;
    }
    const bool is_per_microbatch = phase.key.per_microbatch && !touch.is_whole;
    if (touch.is_whole || (touch.num_moments() > 1 && !is_per_microbatch)) {
      memory.gradients += bytes;
    } else if (touch.update && touch.num_moments() > 1) {
      memory.gradients += bytes * static_cast<double>(work_.num_microbatches);
    } else if (touch.num_moments() > 1) {
      memory.activations += bytes;
    } else {
      if (touch.b && touch.w) memory.until_weight += bytes;
      const NodeId last = touch.last;
      Lifetime lifetime = {bytes, touch.first, last};
      // An elementwise kernel may write its result over an operand that nobody reads later.
      const Node& reader = graph_.node(last);
      lifetime.is_taken_over =
          last != touch.first && !reader.results.empty() &&
          reader.op->propagation_priority() == graph::PropagationPriority::kFirst &&
          root_[reader.results[0]] == reader.results[0] && BytesOf(reader.results[0]) == bytes;
      lifetimes_[{phase.virtual_stage, MomentOf(phase.key)}].push_back(lifetime);
    }
  }

  void AddTransfers(ValueId value, const Touches& touch) {
    const NodePhase& phase = PhaseOf(value);
    struct Readers {
      bool forward = false;
      bool backward = false;
      bool w = false;
      std::vector<Sharding> needed;
    };
    std::map<int, Readers> readers;  // by stage
    for (const NodeId user : users_[value]) {
      const NodePhase& reader = phases_[user];
      if (!reader.is_live || reader.virtual_stage == phase.virtual_stage) continue;
      if (graph_.node(user).op->role() == graph::OpRole::kAssign) continue;
      Readers& of_stage = readers[reader.virtual_stage];
      const bool is_backward = MomentOf(reader.key) == Moment::kBackward;
      (is_backward ? of_stage.backward : of_stage.forward) = true;
      of_stage.w |= is_backward && graph_.node(user).phase == graph::Phase::kWeightBackward;
      Sharding needed = NeededAs(value, graph_.node(user));
      if (std::find(of_stage.needed.begin(), of_stage.needed.end(), needed) ==
          of_stage.needed.end()) {
        of_stage.needed.push_back(std::move(needed));
      }
    }
    for (const auto& [to, of_stage] : readers) {
      StageTransfer transfer;
      transfer.value = value;
      transfer.from = phase.virtual_stage;
      transfer.to = to;
      transfer.num_bytes = BytesOf(value);
      transfer.sent_bytes = transfer.num_bytes;
      transfer.is_read_backward_only = of_stage.backward && !of_stage.forward;
      ChargeSending(value, of_stage.needed, &transfer);
      const bool is_made_often =
          phase.key.per_microbatch && !FormsWhole(ProducerOf(value).op->role());
      if (is_made_often && phase.key.level == 0) {
        const bool is_forward = phase.key.order == 0;
        transfer.moment =
            is_forward ? StageTransfer::Moment::kForward : StageTransfer::Moment::kBackward;
        transfer.is_kept_by_source = is_forward && touch.backward;
        transfer.is_kept_by_reader = is_forward && of_stage.backward;
        // Whether it is received or made on the same group, as stages are joined later.
        if (!is_forward && of_stage.w) {
          work_.stages[to].memory.until_weight += transfer.num_bytes;
        }
      } else {
        transfer.moment = IsState(value) || (phase.key.level == 0 && !phase.key.per_microbatch)
                              ? StageTransfer::Moment::kBeforeStep
                              : StageTransfer::Moment::kAfterStep;
      }
      if (transfer.num_bytes > kSmallBytes || is_made_often) {
        work_.transfers.push_back(transfer);
        continue;
      }
      // Scalars of the optimiser: between two stages they travel together.
      const auto [it, is_new] = small_transfers_.try_emplace(
          {transfer.from, transfer.to, transfer.moment}, work_.transfers.size());
      if (is_new) {
        work_.transfers.push_back(transfer);
      } else {
        work_.transfers[it->second].num_bytes += transfer.num_bytes;
        work_.transfers[it->second].sent_bytes += transfer.sent_bytes;
      }
    }
  }

  // As what a reader needs a value. Reshards are lowered: those that begin with a slice are known.
  Sharding NeededAs(ValueId value, const Node& reader) const {
    const bool is_slice = reader.op->role() == graph::OpRole::kLocalSlice;
    return ClosedSharding(mesh_, graph_.value(is_slice ? reader.results[0] : value));
  }

  // What split-sends would do with a value for one of the stages that read it.
  void ChargeSending(ValueId value, const std::vector<Sharding>& needed, StageTransfer* transfer) {
    const TensorType& type = graph_.value(value).type;
    const Sharding held = ClosedSharding(mesh_, graph_.value(value));
    const Sharding sent = sends_.Choose(type, held, {needed});
    if (sent == held) return;
    transfer->sent_bytes = static_cast<double>(LargestTile(type, sent).num_bytes());
    const bool is_read_as_held = std::find(needed.begin(), needed.end(), held) != needed.end();
    for (const Sharding& each : needed) {
      if (is_read_as_held && each != held) continue;
      transfer->gather_s += RedistributionSeconds(type, sent, each);
    }
    const bool is_only_sent = std::all_of(
        users_[value].begin(), users_[value].end(),
        [&](NodeId user) { return phases_[user].virtual_stage != PhaseOf(value).virtual_stage; });
    if (is_only_sent) transfer->saved_s = SavedSeconds(value, sent);
  }

  double RedistributionSeconds(const TensorType& type, const Sharding& from, const Sharding& to) {
    double seconds = 0;
    Sharding last = from;
    for (const ReshardStep& step : sends_.Steps(from, to)) {
      if (const auto kind = CollectiveOf(step.op); kind.has_value()) {
        const bool grows = *kind == CollectiveKind::kAllGather;
        const TensorType tile = LargestTile(type, grows ? step.sharding : last);
        const int group = GroupOf(*kind, MovedAxes(*kind, last, step.sharding));
        seconds += PredictSeconds(machine_, work_.reduction_groups[group],
                                  static_cast<double>(tile.num_bytes()));
      }
      last = step.sharding;
    }
    return seconds;
  }

  // What all_reduces before a value take longer than reduce_scatters, if it is made as `part`.
  double SavedSeconds(ValueId value, const Sharding& part) {
    const Node& node = ProducerOf(value);
    if (node.op->role() == graph::OpRole::kAllReduce) {
      const TensorType& type = graph_.value(value).type;
      const Sharding from = ClosedSharding(mesh_, graph_.value(node.operands[0]));
      const Sharding to = ClosedSharding(mesh_, graph_.value(value));
      return std::max(
          RedistributionSeconds(type, from, to) - RedistributionSeconds(type, from, part), 0.0);
    }
    const auto operands = OperandsForPart(graph_, node, part);
    if (!operands.has_value() || CollectiveOf(node.op->role()).has_value()) return 0;
    double seconds = 0;
    for (size_t o = 0; o < node.operands.size(); ++o) {
      const ValueId operand = node.operands[o];
      if (users_[operand].size() != 1 ||
          PhaseOf(operand).virtual_stage != PhaseOf(value).virtual_stage) {
        continue;
      }
      seconds += SavedSeconds(operand, (*operands)[o]);
    }
    return seconds;
  }

  // The most bytes that live at once in each kind of phase.
  void AddWorkspaces() {
    for (const auto& [where, lifetimes] : lifetimes_) {
      // What ends before a node makes room for its results only if they take it over.
      std::vector<std::pair<int64_t, double>> changes;
      for (const Lifetime& lifetime : lifetimes) {
        changes.emplace_back(2 * int64_t{lifetime.first}, lifetime.bytes);
        const int64_t end = 2 * int64_t{lifetime.last} + (lifetime.is_taken_over ? -1 : 1);
        changes.emplace_back(end, -lifetime.bytes);
      }
      std::sort(changes.begin(), changes.end());
      double now = 0;
      double most = 0;
      for (const auto& [position, change] : changes) most = std::max(most, now += change);
      StageMemory& memory = work_.stages[where.first].memory;
      switch (where.second) {
        case Moment::kForward:
          memory.forward_workspace = most;
          break;
        case Moment::kBackward:
          memory.backward_workspace = most;
          break;
        case Moment::kUpdate:
          memory.update_workspace = most;
          break;
      }
    }
  }

  const Graph& graph_;
  const Machine& machine_;
  const WorkOptions& options_;
  const Mesh& mesh_;
  SendChooser sends_;
  ModelWork work_;
  std::vector<int> alike_groups_;       // of each group, the one whose devices time its kernels
  std::map<int, KernelTimes> kernels_;  // by such a group
  std::vector<NodePhase> phases_;
  std::vector<std::vector<NodeId>> users_;
  std::vector<TensorType> types_;      // tiles
  std::map<NodeId, double> hides_;     // seconds of a kernel that hide nothing yet
  std::map<int, NodeId> last_inline_;  // of each stage: the last collective that backward waits for
  std::map<const PhaseWork*, InParts> in_parts_;
  bool has_zero_ = false;  // whether anything may go into beside_
  std::map<std::pair<int, Moment>, Beside> beside_;
  std::vector<ValueId> root_;
  std::map<std::tuple<CollectiveKind, std::vector<AxisRef>, std::optional<int64_t>>, int> groups_;
  std::map<std::pair<int, Moment>, std::vector<Lifetime>> lifetimes_;
  std::map<std::tuple<int, int, StageTransfer::Moment>, size_t> small_transfers_;
};

}  // namespace

CommunicatingGroups GroupsOf(const Machine& machine, const Mesh& mesh, CollectiveKind kind,
                             const std::vector<AxisRef>& axes, int num_groups,
                             std::optional<int64_t> shift) {
  std::vector<std::vector<int64_t>> members;
  const std::vector<std::vector<uint32_t>> of_stage = GroupDevices(mesh, axes);
  for (int64_t g = 0; g < num_groups; ++g) {
    for (const std::vector<uint32_t>& devices : of_stage) {
      std::vector<int64_t>& group = members.emplace_back();
      for (const uint32_t device : devices) group.push_back(g * mesh.num_devices() + device);
    }
  }
  CommunicatingGroups groups;
  groups.kind = kind;
  for (const std::vector<int64_t>& group : members) {
    GroupShape shape = ShapeOf(machine.cluster, group);
    if (std::find(groups.shapes.begin(), groups.shapes.end(), shape) == groups.shapes.end()) {
      groups.shapes.push_back(std::move(shape));
    }
  }
  groups.at_once = CountGroupsAtOnce(machine.cluster, members);
  if (!shift.has_value()) return groups;
  std::vector<MessageEnds> messages;
  for (const std::vector<int64_t>& group : members) {
    for (size_t i = 0; i < group.size(); ++i) {
      messages.emplace_back(group[i], group[(i + static_cast<size_t>(*shift)) % group.size()]);
    }
  }
  groups.crossing = CountCrossing(machine.cluster, messages);
  return groups;
}

const CommunicatingGroups& GroupsCache::Find(const Machine& machine, const Mesh& mesh,
                                             CollectiveKind kind, const std::vector<AxisRef>& axes,
                                             int num_groups, std::optional<int64_t> shift) {
  // Micro-batches have no devices: spatial axes are numbered without them.
  std::vector<int64_t> key = {static_cast<int64_t>(kind), num_groups, shift.value_or(-1)};
  std::vector<int64_t> numbers;
  for (const graph::MeshAxis& axis : mesh.axes) {
    numbers.push_back(static_cast<int64_t>(key.size()));
    if (!axis.is_temporal) key.push_back(axis.size);
  }
  key.push_back(-1);
  for (const AxisRef& axis : axes) {
    if (graph::IsTemporal(mesh, axis)) continue;
    key.insert(key.end(), {numbers[static_cast<size_t>(axis.axis)], axis.pre, axis.size});
  }
  const auto [it, is_new] = groups_.try_emplace(std::move(key));
  if (is_new) it->second = GroupsOf(machine, mesh, kind, axes, num_groups, shift);
  return it->second;
}

double PredictSeconds(const Machine& machine, const CommunicatingGroups& groups, double num_bytes) {
  double slowest = 0;
  for (const GroupShape& shape : groups.shapes) {
    const double seconds = groups.crossing.empty()
                               ? PredictCollective(machine.cluster, shape, groups.kind, num_bytes,
                                                   groups.at_once, machine.methods)
                                     .seconds
                               : PredictPermute(machine.cluster, shape, groups.crossing, num_bytes);
    slowest = std::max(slowest, seconds);
  }
  return slowest;
}

double CoreShare(const Machine& machine, const CommunicatingGroups& groups) {
  double most = 0;
  for (const GroupShape& shape : groups.shapes) {
    most = std::max(most, machine.CoreShare(static_cast<int>(shape.levels.size()) - 1));
  }
  return most;
}

absl::StatusOr<ModelWork> MeasureWork(const Graph& graph, const Machine& machine,
                                      const WorkOptions& options) {
  return Measurer(graph, machine, options).Run();
}

}  // namespace penstock::planner
