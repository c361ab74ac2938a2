#include "planner/chakra/program_nodes.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::planner {
namespace {

// Of a trace. Each takes some dozens of bytes here and in the file.
constexpr uint64_t kMaxProgramNodes = uint64_t{1} << 27;

// How many of something that comes `each` at a time make up `missing`.
uint32_t NumFor(int64_t missing, uint32_t each) {
  return missing <= 0 ? 0 : static_cast<uint32_t>((missing + each - 1) / each);
}

class ProgramLowering {
 public:
  ProgramLowering(const DevicePlan& program, uint32_t num_microbatches,
                  absl::Span<const uint32_t> order, absl::Span<const uint32_t> group_of,
                  uint32_t num_steps)
      : program_(program),
        num_microbatches_(num_microbatches),
        group_of_(group_of),
        num_steps_(num_steps),
        first_nodes_(program.phases.size()) {
    AddChannels();
    AddLanes(order);
  }

  absl::StatusOr<ProgramNodes> Run() {
    uint64_t num_nodes = 0;
    for (uint32_t p = 0; p < program_.phases.size(); ++p) {
      num_nodes +=
          uint64_t{num_steps_} * PerStep(p) * (program_.phases[p].num_actors + uint64_t{2});
    }
    if (num_nodes > kMaxProgramNodes) {
      return absl::ResourceExhaustedError(StrCat("a trace of ", num_steps_, " steps has ",
                                                 num_nodes, " nodes, expected at most ",
                                                 kMaxProgramNodes, "; write fewer steps"));
    }
    bool has_progress = true;
    while (has_progress) {
      has_progress = false;
      for (const uint32_t p : floating_) {
        while (IsReady(p)) {
          Add(p);
          has_progress = true;
        }
      }
      for (LaneQueue& lane : lanes_) {
        while (lane.position < lane.order.size() && IsReady(lane.order[lane.position])) {
          AddToLane(&lane);
          has_progress = true;
        }
      }
    }
    for (uint32_t p = 0; p < program_.phases.size(); ++p) {
      if (NumStarted(p) == NumToStart(p)) continue;
      return absl::FailedPreconditionError(
          StrCat("phase ", program_.phases[p].name, " of stage ", program_.stage, " has run ",
                 NumStarted(p), " of ", NumToStart(p), " times when nothing can go on"));
    }
    return std::move(result_);
  }

 private:
  // Between phases.
  struct Gate {
    const ChannelPlan* channel = nullptr;
    uint32_t other_phase = 0;  // that puts tokens, or gives credits back
  };
  struct LaneQueue {
    std::vector<uint32_t> order;  // phases, one entry for each instance, over all steps
    size_t position = 0;
    uint32_t last_end = kNone;  // node
  };

  uint32_t PerStep(uint32_t p) const {
    return program_.phases[p].per_microbatch ? num_microbatches_ : 1;
  }
  uint32_t NumToStart(uint32_t p) const { return num_steps_ * PerStep(p); }
  uint32_t NumStarted(uint32_t p) const { return static_cast<uint32_t>(first_nodes_[p].size()); }
  uint32_t NodeOf(uint32_t p, uint32_t instance, uint32_t actor) const {
    return first_nodes_[p][instance] + 1 + (actor - program_.phases[p].first_actor);
  }
  bool ShareLane(uint32_t a, uint32_t b) const {
    return program_.phases[a].lane == program_.phases[b].lane &&
           program_.phases[a].lane != Lane::kFloating;
  }

  void AddChannels() {
    std::vector<uint32_t> phase_of(program_.actors.size(), 0);
    for (uint32_t p = 0; p < program_.phases.size(); ++p) {
      const PhasePlan& phase = program_.phases[p];
      std::fill_n(phase_of.begin() + phase.first_actor, phase.num_actors, p);
    }
    tokens_.resize(program_.phases.size());
    credits_.resize(program_.phases.size());
    inputs_.resize(program_.actors.size());
    has_reader_.assign(program_.actors.size(), false);
    for (const ChannelPlan& channel : program_.channels) {
      const uint32_t from = phase_of[channel.producer];
      const uint32_t to = phase_of[channel.consumer];
      if (from == to) {
        inputs_[channel.consumer].push_back(&channel);
        has_reader_[channel.producer] = true;
      } else {
        tokens_[to].push_back({&channel, from});
        credits_[from].push_back({&channel, to});
      }
    }
  }

  void AddLanes(absl::Span<const uint32_t> order) {
    std::map<uint32_t, uint32_t> phase_of_type;
    std::vector<uint32_t> per_step;
    for (uint32_t p = 0; p < program_.phases.size(); ++p) {
      const PhasePlan& phase = program_.phases[p];
      if (phase.lane == Lane::kFloating) floating_.push_back(p);
      if (phase.lane == Lane::kPerStep) per_step.insert(per_step.end(), PerStep(p), p);
      if (phase.lane == Lane::kCompute) phase_of_type[PhaseType(phase.kind, phase.chunk)] = p;
    }
    std::vector<uint32_t> computing;
    for (const uint32_t type : order) {
      const auto found = phase_of_type.find(type);
      if (found != phase_of_type.end()) computing.push_back(found->second);
    }
    for (const std::vector<uint32_t>& phases : {per_step, computing}) {
      LaneQueue& lane = lanes_.emplace_back();
      for (uint32_t step = 0; step < num_steps_; ++step) {
        lane.order.insert(lane.order.end(), phases.begin(), phases.end());
      }
    }
  }

  // Instances of the producer that put the tokens of instance `instance`.
  static uint32_t NumForTokens(const ChannelPlan& channel, uint32_t instance) {
    const int64_t needed = (int64_t{instance} + 1) * channel.consume;
    return NumFor(needed - channel.initial, channel.produce);
  }
  // Instances of the consumer that give back the credits of instance `instance`.
  static uint32_t NumForCredits(const ChannelPlan& channel, uint32_t instance) {
    const int64_t needed = (int64_t{instance} + 1) * channel.produce;
    return NumFor(needed - (int64_t{channel.capacity} - channel.initial), channel.consume);
  }

  bool IsReady(uint32_t p) const {
    const uint32_t instance = NumStarted(p);
    if (instance == NumToStart(p)) return false;
    const auto is_open = [&](const Gate& gate, uint32_t num) {
      return num <= NumStarted(gate.other_phase);
    };
    return std::all_of(tokens_[p].begin(), tokens_[p].end(),
                       [&](const Gate& gate) {
                         return is_open(gate, NumForTokens(*gate.channel, instance));
                       }) &&
           std::all_of(credits_[p].begin(), credits_[p].end(), [&](const Gate& gate) {
             return is_open(gate, NumForCredits(*gate.channel, instance));
           });
  }

  void AddToLane(LaneQueue* lane) {
    const uint32_t p = lane->order[lane->position++];
    if (lane->last_end != kNone) result_.ctrl_deps.push_back(lane->last_end);
    Add(p);
    lane->last_end = static_cast<uint32_t>(result_.nodes.size()) - 1;
  }

  // Adds the next instance of a phase; dependencies of its beginning may have been added.
  void Add(uint32_t p) {
    const PhasePlan& phase = program_.phases[p];
    const uint32_t instance = NumStarted(p);
    const auto data_begin = static_cast<ptrdiff_t>(result_.data_deps.size());
    for (const Gate& gate : tokens_[p]) {
      const uint32_t num = NumForTokens(*gate.channel, instance);
      if (num == 0) continue;
      result_.data_deps.push_back(NodeOf(gate.other_phase, num - 1, gate.channel->producer));
    }
    for (const Gate& gate : credits_[p]) {
      const uint32_t num = NumForCredits(*gate.channel, instance);
      if (num == 0 || ShareLane(p, gate.other_phase)) continue;
      result_.ctrl_deps.push_back(NodeOf(gate.other_phase, num - 1, gate.channel->consumer));
    }
    if (phase.lane == Lane::kFloating && instance > 0) {
      result_.ctrl_deps.push_back(first_nodes_[p][instance - 1] + 1 + phase.num_actors);
    }
    const auto begin = static_cast<uint32_t>(result_.nodes.size());
    Close(p, instance, kNone, false, data_begin);
    first_nodes_[p].push_back(begin);
    std::map<uint32_t, uint32_t> last_of_group;
    for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
      const auto inputs_begin = static_cast<ptrdiff_t>(result_.data_deps.size());
      bool follows_another = false;
      for (const ChannelPlan* channel : inputs_[a]) {
        const uint32_t producer = NodeOf(p, instance, channel->producer);
        (channel->reg == kNone ? result_.ctrl_deps : result_.data_deps).push_back(producer);
        follows_another = true;
      }
      if (group_of_[a] != kNone) {
        const auto [it, is_first] = last_of_group.try_emplace(group_of_[a], a);
        if (!is_first) {
          result_.ctrl_deps.push_back(NodeOf(p, instance, std::exchange(it->second, a)));
          follows_another = true;
        }
      }
      if (!follows_another) result_.ctrl_deps.push_back(begin);
      Close(p, instance, a, false, inputs_begin);
    }
    for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
      if (!has_reader_[a]) result_.ctrl_deps.push_back(NodeOf(p, instance, a));
    }
    if (phase.num_actors == 0) result_.ctrl_deps.push_back(begin);
    Close(p, instance, kNone, true, static_cast<ptrdiff_t>(result_.data_deps.size()));
  }

  // Adds a node with the dependencies that have been added since the last one.
  void Close(uint32_t p, uint32_t instance, uint32_t actor, bool is_end, ptrdiff_t data_begin) {
    const ptrdiff_t ctrl_begin = result_.nodes.empty() ? 0 : result_.nodes.back().ctrl_deps_end;
    const auto sort_unique = [](std::vector<uint32_t>* deps, ptrdiff_t begin) {
      std::sort(deps->begin() + begin, deps->end());
      deps->erase(std::unique(deps->begin() + begin, deps->end()), deps->end());
    };
    sort_unique(&result_.data_deps, data_begin);
    sort_unique(&result_.ctrl_deps, ctrl_begin);
    result_.nodes.push_back({p, instance, actor, is_end,
                             static_cast<uint32_t>(result_.data_deps.size()),
                             static_cast<uint32_t>(result_.ctrl_deps.size())});
  }

  const DevicePlan& program_;
  const uint32_t num_microbatches_;
  const absl::Span<const uint32_t> group_of_;
  const uint32_t num_steps_;
  std::vector<std::vector<Gate>> tokens_;                // into each phase
  std::vector<std::vector<Gate>> credits_;               // likewise
  std::vector<std::vector<const ChannelPlan*>> inputs_;  // of each actor, in its phase
  std::vector<bool> has_reader_;                         // of each actor, in its phase
  std::vector<uint32_t> floating_;                       // phases
  std::vector<LaneQueue> lanes_;                         // per-step, then compute
  std::vector<std::vector<uint32_t>> first_nodes_;       // of each phase's instances
  ProgramNodes result_;
};

}  // namespace

absl::Span<const uint32_t> ProgramNodes::DataDepsOf(uint32_t node) const {
  const uint32_t begin = node == 0 ? 0 : nodes[node - 1].data_deps_end;
  return absl::MakeConstSpan(data_deps).subspan(begin, nodes[node].data_deps_end - begin);
}

absl::Span<const uint32_t> ProgramNodes::CtrlDepsOf(uint32_t node) const {
  const uint32_t begin = node == 0 ? 0 : nodes[node - 1].ctrl_deps_end;
  return absl::MakeConstSpan(ctrl_deps).subspan(begin, nodes[node].ctrl_deps_end - begin);
}

absl::StatusOr<ProgramNodes> LowerProgram(const DevicePlan& program, uint32_t num_microbatches,
                                          absl::Span<const uint32_t> order,
                                          absl::Span<const uint32_t> group_of, uint32_t num_steps) {
  return ProgramLowering(program, num_microbatches, order, group_of, num_steps).Run();
}

}  // namespace penstock::planner
