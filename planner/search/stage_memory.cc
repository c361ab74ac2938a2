#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "graph/op.h"
#include "planner/lower/communication.h"
#include "planner/search/stage_memory_internal.h"
#include "planner/sharding/execution_sharding.h"
#include "planner/sharding/split_sends.h"
#include "planner/strategy/offload.h"

namespace penstock::planner {
namespace {

using graph::Graph;
using graph::Mesh;
using graph::Node;
using graph::NodeId;
using graph::Sharding;
using graph::ValueId;

// Values of this size count for their latency only.
constexpr double kSmallBytes = 64;

class MemoryMeasurer {
 public:
  MemoryMeasurer(const StagedGraph& staged, const SendCosts& send_costs, WorkGroups* groups,
                 ModelWork* work)
      : staged_(staged),
        graph_(*staged.graph),
        mesh_(*staged.mesh),
        phases_(staged.phases),
        users_(staged.users),
        roots_(staged.roots),
        sends_(*staged.mesh, send_costs),
        groups_(groups),
        work_(work) {}

  void Run() {
    AddValues();
    AddWorkspaces();
  }

 private:
  // One use of memory inside a phase, in positions of nodes, both included.
  struct Lifetime {
    double bytes = 0;
    NodeId first = 0;
    NodeId last = 0;
    bool is_taken_over = false;  // by the result of the last reader
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
      const NodePhase& phase = staged_.PhaseOf(value);
      if (!phase.is_live || phase.is_leaf) continue;
      const ValueId root = roots_[value];
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
      if (!staged_.IsState(root)) AddRegister(root, touch);
    }
    for (ValueId value = 0; value < graph_.num_values(); ++value) {
      const NodePhase& phase = staged_.PhaseOf(value);
      if (phase.is_live && !phase.is_leaf) AddTransfers(value, touches.at(roots_[value]));
    }
  }

  void AddRegister(ValueId root, const Touches& touch) {
    const NodePhase& phase = staged_.PhaseOf(root);
    const double bytes = staged_.BytesOf(root);
    StageMemory& memory = work_->stages[phase.virtual_stage].memory;
    if (IsOnHost(graph_, root)) {
      // What is assigned to a state lies there.
      if (touch.num_moments() > 1) memory.host_activations += bytes;
      return;
    }
    const bool is_per_microbatch = phase.key.per_microbatch && !touch.is_whole;
    if (touch.is_whole || (touch.num_moments() > 1 && !is_per_microbatch)) {
      memory.gradients += bytes;
    } else if (touch.update && touch.num_moments() > 1) {
      memory.gradients += bytes * static_cast<double>(work_->num_microbatches);
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
          roots_[reader.results[0]] == reader.results[0] &&
          staged_.BytesOf(reader.results[0]) == bytes;
      lifetimes_[{phase.virtual_stage, MomentOf(phase.key)}].push_back(lifetime);
    }
  }

  void AddTransfers(ValueId value, const Touches& touch) {
    const NodePhase& phase = staged_.PhaseOf(value);
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
      transfer.num_bytes = staged_.BytesOf(value);
      transfer.sent_bytes = transfer.num_bytes;
      transfer.is_read_backward_only = of_stage.backward && !of_stage.forward;
      ChargeSending(value, of_stage.needed, &transfer);
      const bool is_made_often =
          phase.key.per_microbatch && !FormsWhole(staged_.ProducerOf(value).op->role());
      if (is_made_often && phase.key.level == 0) {
        const bool is_forward = phase.key.order == 0;
        transfer.moment =
            is_forward ? StageTransfer::Moment::kForward : StageTransfer::Moment::kBackward;
        transfer.is_kept_by_source = is_forward && touch.backward;
        transfer.is_kept_by_reader = is_forward && of_stage.backward;
        // Whether it is received or made on the same group, as stages are joined later.
        if (!is_forward && of_stage.w) {
          work_->stages[to].memory.until_weight += transfer.num_bytes;
        }
      } else {
        transfer.moment =
            staged_.IsState(value) || (phase.key.level == 0 && !phase.key.per_microbatch)
                ? StageTransfer::Moment::kBeforeStep
                : StageTransfer::Moment::kAfterStep;
      }
      if (transfer.num_bytes > kSmallBytes || is_made_often) {
        work_->transfers.push_back(transfer);
        continue;
      }
      // Scalars of the optimiser: between two stages they travel together.
      const auto [it, is_new] = small_transfers_.try_emplace(
          {transfer.from, transfer.to, transfer.moment}, work_->transfers.size());
      if (is_new) {
        work_->transfers.push_back(transfer);
      } else {
        work_->transfers[it->second].num_bytes += transfer.num_bytes;
        work_->transfers[it->second].sent_bytes += transfer.sent_bytes;
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
    const bool is_only_sent =
        std::all_of(users_[value].begin(), users_[value].end(), [&](NodeId user) {
          return phases_[user].virtual_stage != staged_.PhaseOf(value).virtual_stage;
        });
    if (is_only_sent) transfer->saved_s = SavedSeconds(value, sent);
  }

  double RedistributionSeconds(const TensorType& type, const Sharding& from, const Sharding& to) {
    double seconds = 0;
    Sharding last = from;
    for (const ReshardStep& step : sends_.Steps(from, to)) {
      if (const auto kind = CollectiveOf(step.op); kind.has_value()) {
        const bool grows = *kind == CollectiveKind::kAllGather;
        const TensorType tile = LargestTile(type, grows ? step.sharding : last);
        const int group = groups_->Find(*kind, MovedAxes(*kind, last, step.sharding));
        seconds += groups_->Seconds(group, static_cast<double>(tile.num_bytes()));
      }
      last = step.sharding;
    }
    return seconds;
  }

  // What all_reduces before a value take longer than reduce_scatters, if it is made as `part`.
  double SavedSeconds(ValueId value, const Sharding& part) {
    const Node& node = staged_.ProducerOf(value);
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
          staged_.PhaseOf(operand).virtual_stage != staged_.PhaseOf(value).virtual_stage) {
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
      StageMemory& memory = work_->stages[where.first].memory;
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

  const StagedGraph& staged_;
  const Graph& graph_;
  const Mesh& mesh_;
  const std::vector<NodePhase>& phases_;
  const std::vector<std::vector<NodeId>>& users_;
  const std::vector<ValueId>& roots_;
  SendChooser sends_;
  WorkGroups* const groups_;
  ModelWork* const work_;
  std::map<std::pair<int, Moment>, std::vector<Lifetime>> lifetimes_;
  std::map<std::tuple<int, int, StageTransfer::Moment>, size_t> small_transfers_;
};

}  // namespace

void AddMemoryAndTransfers(const StagedGraph& staged, const SendCosts& send_costs,
                           WorkGroups* groups, ModelWork* work) {
  MemoryMeasurer(staged, send_costs, groups, work).Run();
}

}  // namespace penstock::planner
