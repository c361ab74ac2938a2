#include "planner/search/stage_work.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/op.h"
#include "planner/lower/communication.h"
#include "planner/lower/phases.h"
#include "planner/lower/sub_batches.h"
#include "planner/search/kernel_seconds.h"
#include "planner/search/stage_memory_internal.h"
#include "planner/search/staged_graph_internal.h"
#include "planner/search/work_groups_internal.h"
#include "planner/sharding/execution_sharding.h"
#include "planner/sharding/halo.h"
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

class Measurer {
 public:
  Measurer(const StagedGraph& staged, const Machine& machine, const WorkOptions& options)
      : staged_(staged),
        graph_(*staged.graph),
        mesh_(*staged.mesh),
        phases_(staged.phases),
        users_(staged.users),
        machine_(machine),
        options_(options),
        groups_(machine, mesh_, options, &work_.reduction_groups) {
    const int64_t n = mesh_.num_devices();
    if (options.group.has_value()) {
      alike_groups_.assign(static_cast<size_t>(options.num_groups), *options.group);
    } else {
      alike_groups_ = FirstAlikeGroups(machine.cluster, n, options.num_groups);
    }
    for (const int g : alike_groups_) kernels_.try_emplace(g, machine, g * n, n);
  }

  ModelWork Run() {
    work_.num_microbatches = mesh_.num_microbatches();
    work_.devices_per_stage = mesh_.num_devices();
    for (const NodePhase& phase : phases_) {
      if (!phase.is_live) continue;
      const auto needed = static_cast<size_t>(phase.virtual_stage) + 1;
      if (work_.stages.size() < needed) work_.stages.resize(needed);
    }
    has_zero_ = std::any_of(graph_.nodes().begin(), graph_.nodes().end(), [](const Node& node) {
      return node.attributes.GetBool("per_use", false) ||
             node.op->role() == graph::OpRole::kReduceScatter;
    });
    has_host_copies_ = std::any_of(graph_.nodes().begin(), graph_.nodes().end(),
                                   [](const Node& node) { return IsHostCopy(node.op->role()); });
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
      if (phases_[id].is_live && !phases_[id].is_leaf) AddNode(id);
    }
    for (StageWork& stage : work_.stages) {
      HideSubBatches(&stage.forward);
      HideSubBatches(&stage.backward);
    }
    for (const auto& [key, clock] : host_clocks_) {
      if (clock.copying == nullptr) continue;
      const double end_s = std::max(clock.link_free_s[0], clock.link_free_s[1]);
      clock.copying->communication_s += std::max(end_s - clock.now_s, 0.0);
    }
    AddMemoryAndTransfers(staged_, options_.send_costs, &groups_, &work_);
    return std::move(work_);
  }

 private:
  StageWork& StageOf(NodeId id) { return work_.stages[phases_[id].virtual_stage]; }
  PhaseWork& PhaseWorkOf(NodeId id) {
    const Moment moment = MomentOf(phases_[id].key);
    StageWork& stage = StageOf(id);
    return moment == Moment::kForward    ? stage.forward
           : moment == Moment::kBackward ? stage.backward
                                         : stage.update;
  }

  // A sum of what the backward pass made that only nodes that run once a step read.
  bool IsGradientReduction(NodeId id) const {
    const Node& node = graph_.node(id);
    const PhaseKey& made = staged_.PhaseOf(node.operands[0]).key;
    if (staged_.PhaseOf(node.operands[0]).is_leaf || staged_.IsState(node.operands[0]))
      return false;
    if (!made.per_microbatch || MomentOf(made) != Moment::kBackward) return false;
    return std::all_of(users_[node.results[0]].begin(), users_[node.results[0]].end(),
                       [&](NodeId user) {
                         const NodePhase& phase = phases_[user];
                         return !phase.is_live || MomentOf(phase.key) == Moment::kUpdate;
                       });
  }

  // And to the part of its backward phase that makes gradients of weights, if it does.
  void AddNode(NodeId id) {
    StageWork& stage = StageOf(id);
    const PhaseWork before = stage.backward;
    if (has_host_copies_) {
      WaitForHostCopies(id);
      const PhaseWork& phase = PhaseWorkOf(id);
      const double before_s = phase.compute_s + phase.communication_s;
      AddNodeToPhase(id);
      HostClockOf(id).now_s += phase.compute_s + phase.communication_s - before_s;
    } else {
      AddNodeToPhase(id);
    }
    if (graph_.node(id).phase == graph::Phase::kWeightBackward) {
      stage.weight.compute_s += stage.backward.compute_s - before.compute_s;
      stage.weight.communication_s += stage.backward.communication_s - before.communication_s;
      stage.weight.core_s += stage.backward.core_s - before.core_s;
      stage.weight.launch_s += stage.backward.launch_s - before.launch_s;
    }
    if (!has_zero_) return;
    const Node& node = graph_.node(id);
    if (!staged_.IsFree(id) && !CollectiveOf(node.op->role()).has_value() &&
        !IsHostCopy(node.op->role())) {
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
      memory += staged_.BytesOf(node.results[0]);
    }
    if (staged_.IsFree(id)) return;
    const Moment moment = MomentOf(key);
    PhaseWork& phase = PhaseWorkOf(id);
    const double times = moment == Moment::kUpdate && key.per_microbatch
                             ? static_cast<double>(work_.num_microbatches)
                             : 1;
    phase.launch_s += times * KernelsOf(id).LaunchSeconds();
    if (IsHostCopy(node.op->role())) {
      const double seconds =
          times * KernelsOf(id).HostCopySeconds(staged_.BytesOf(node.results[0]));
      if (KernelsOf(id).HasHostLinks()) {
        AddHostCopy(id, seconds);
      } else {
        phase.communication_s += seconds;
      }
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
        staged_.BytesOf(*kind == CollectiveKind::kAllGather ? node.results[0] : node.operands[0]);
    if (ExchangedDim(from, to) >= 0) {
      AddHaloExchange(id, from, to, times, &phase);
      return;
    }
    const std::optional<TileRoll> roll = TileRollOf(graph_, node);
    const int group =
        groups_.Find(*kind, MovedAxes(*kind, from, to, roll),
                     roll.has_value() ? std::optional<int64_t>(roll->by) : std::nullopt);
    if (work_.reduction_groups[group].shapes[0].num_members == 1) return;
    if (IsGradientReduction(id)) {
      AddReduction({group, bytes}, &stage.gradients);
      return;
    }
    double seconds = groups_.Seconds(group, bytes);
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
        groups_.Find(CollectiveKind::kPermute, MovedAxes(CollectiveKind::kAllToAll, from, to), 1);
    if (work_.reduction_groups[group].shapes[0].num_members == 1) return;
    AddCommunication(group, times * groups_.Seconds(group, bytes), phase);
    phase->compute_s +=
        times * KernelsOf(id).Seconds(
                    "", staged_.types[node.results[0]].dtype,
                    {.flops = 0, .bytes = 2 * (bytes + staged_.BytesOf(node.results[0]))});
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

  // Copies to and from the hosts in the phases of one kind, which go on beside what follows them:
  // when each link is free, as the phases' work is done in the order of the nodes.
  struct HostClock {
    double now_s = 0;
    std::array<double, 2> link_free_s = {};  // from and to the host
    PhaseWork* copying = nullptr;            // the phase of the last copy
  };
  HostClock& HostClockOf(NodeId id) {
    return host_clocks_[{WaitingStageOf(id), MomentOf(phases_[id].key)}];
  }

  void AddHostCopy(NodeId id, double seconds) {
    HostClock& clock = HostClockOf(id);
    const Node& node = graph_.node(id);
    double& free_s = clock.link_free_s[node.op->role() == graph::OpRole::kToHost ? 1 : 0];
    free_s = std::max({free_s, clock.now_s, CopiedAt(id, node.operands[0])}) + seconds;
    copied_s_[{&clock, staged_.roots[node.results[0]]}] = free_s;
    clock.copying = &PhaseWorkOf(id);
  }

  // What has not been copied in phases of the node's kind has been there before them.
  double CopiedAt(NodeId id, ValueId value) {
    const auto found = copied_s_.find({&HostClockOf(id), staged_.roots[value]});
    return found == copied_s_.end() ? 0 : found->second;
  }

  void WaitForHostCopies(NodeId id) {
    const Node& node = graph_.node(id);
    if (staged_.IsFree(id) || IsHostCopy(node.op->role())) return;
    for (const ValueId operand : node.operands) {
      const double wait_s = CopiedAt(id, operand) - HostClockOf(id).now_s;
      if (wait_s <= 0) continue;
      PhaseWorkOf(id).communication_s += wait_s;
      HostClockOf(id).now_s += wait_s;
    }
  }

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
           WaitingStageOf(kernel) == WaitingStageOf(collective) && !staged_.IsFree(kernel) &&
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
      if (kernel <= made || phases_[kernel].key != phases_[id].key || staged_.IsFree(kernel) ||
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
      bytes += 2 * staged_.BytesOf(node.operands[0]);
    }
    if (kind == CollectiveKind::kAllGather || kind == CollectiveKind::kAllToAll) {
      bytes += 2 * staged_.BytesOf(node.results[0]);
    }
    return KernelsOf(id).Seconds("", staged_.types[node.results[0]].dtype,
                                 {.flops = 0, .bytes = bytes});
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
    for (const ValueId operand : node.operands) operands.push_back(staged_.types[operand]);
    for (const ValueId result : node.results) results.push_back(staged_.types[result]);
    graph::OpCost cost = node.op->Cost({node.attributes, operands, results});
    // The kernel that makes the terms adds them to the sum.
    if (node.op->role() == graph::OpRole::kAccumulate &&
        staged_.roots[node.results[0]] != node.results[0]) {
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

  // The collectives of sub-batches in a phase.
  struct InParts {
    double seconds = 0;
    int count = 0;
  };

  const StagedGraph& staged_;
  const Graph& graph_;
  const Mesh& mesh_;
  const std::vector<NodePhase>& phases_;
  const std::vector<std::vector<NodeId>>& users_;
  const Machine& machine_;
  const WorkOptions& options_;
  ModelWork work_;
  WorkGroups groups_;
  std::vector<int> alike_groups_;       // of each group, the one whose devices time its kernels
  std::map<int, KernelTimes> kernels_;  // by such a group
  std::map<NodeId, double> hides_;      // seconds of a kernel that hide nothing yet
  std::map<int, NodeId> last_inline_;  // of each stage: the last collective that backward waits for
  std::map<const PhaseWork*, InParts> in_parts_;
  bool has_zero_ = false;  // whether anything may go into beside_
  std::map<std::pair<int, Moment>, Beside> beside_;
  bool has_host_copies_ = false;  // whether the following are used
  std::map<std::pair<int, Moment>, HostClock> host_clocks_;
  std::map<std::pair<const HostClock*, ValueId>, double> copied_s_;  // by root: when it is there
};

}  // namespace

absl::StatusOr<ModelWork> MeasureWork(const Graph& graph, const Machine& machine,
                                      const WorkOptions& options) {
  const int64_t num_devices = options.num_groups * graph.meshes()[0].num_devices();
  if (num_devices > machine.cluster.num_devices()) {
    return absl::InvalidArgumentError(
        StrCat("the layout needs ", num_devices, " devices, and the cluster ",
               machine.cluster.spec().name, " has ", machine.cluster.num_devices()));
  }
  ASSIGN_OR_RETURN(const StagedGraph staged, StagedGraph::Create(graph));
  return Measurer(staged, machine, options).Run();
}

}  // namespace penstock::planner
