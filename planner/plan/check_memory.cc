#include "planner/plan/check_memory.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_set.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/invalid_plan_internal.h"
#include "planner/plan/lifetimes.h"
#include "planner/plan/plan.h"
#include "planner/plan/show_plan.h"

namespace penstock::planner {
namespace {

using internal::Invalid;

// Bytes [begin, end) of the arena, on the device or its host, in use from actor `first` to actor
// `last` of a phase, both included: a register, or the scratch of `writer` when reg is kNone.
struct Block {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint32_t first = 0;
  uint32_t last = 0;
  uint32_t writer = kNone;  // that writes it first; of what comes from another phase: kNone
  uint32_t reg = kNone;
  uint32_t home = kNone;  // of workspace: its phase
  bool is_touched = true;
};

class DeviceMemoryCheck {
 public:
  DeviceMemoryCheck(const Plan& plan, uint32_t d)
      : plan_(plan), d_(d), device_(plan.devices[d]), blocks_(device_.phases.size()) {}

  // Most workspace bytes live at once, of each phase.
  absl::StatusOr<std::vector<uint64_t>> Run() {
    FindCompletions();
    registers_.resize(device_.registers.size());
    for (uint32_t p = 0; p < device_.phases.size(); ++p) RETURN_IF_ERROR(WalkPhase(p));
    RETURN_IF_ERROR(CheckGates());
    AddWorkspaces();
    std::vector<uint64_t> peaks(device_.phases.size());
    for (uint32_t p = 0; p < device_.phases.size(); ++p) {
      ASSIGN_OR_RETURN(peaks[p], SweepPhase(p, &blocks_[p]));
    }
    RETURN_IF_ERROR(CheckAcrossPhases());
    return peaks;
  }

 private:
  // What has been seen of a register while walking through phases in order.
  struct RegisterState {
    uint32_t writer = kNone;        // the last one so far
    uint32_t async_reader = kNone;  // the one beside the stream that completes last, so far
    uint32_t home = kNone;          // of a workspace: its phase
    uint32_t first_writer = 0;      // of a workspace
    uint32_t first = 0;             // of a workspace: first and last actor while it lives
    uint32_t last = 0;
    uint32_t last_use = kNone;  // of others: index of the last entry of uses_
    uint32_t last_write = kNone;
  };
  struct Use {
    uint32_t reg = 0;
    uint32_t phase = 0;
    friend auto operator<=>(const Use&, const Use&) = default;
  };

  std::string Describe(uint32_t actor) const { return DescribeActor(plan_, d_, actor); }
  bool IsAsync(uint32_t actor) const { return IsCommunication(device_.actors[actor].kind); }
  bool IsWorkspace(uint32_t reg) const {
    return device_.registers[reg].register_class == RegisterClass::kWorkspace;
  }

  // The first actor that starts only when `actor` has completed, or the end of the phase.
  uint32_t CompletionOf(uint32_t actor) const {
    return IsAsync(actor) ? completion_[actor] : actor + 1;
  }
  // The last actor during which the operands of `actor` may still be in use.
  uint32_t LastOf(uint32_t actor) const { return CompletionOf(actor) - 1; }

  void FindCompletions() {
    completion_.assign(device_.actors.size(), 0);
    stream_token_.assign(device_.actors.size(), kNone);
    for (const PhasePlan& phase : device_.phases) {
      std::fill_n(completion_.begin() + phase.first_actor, phase.num_actors,
                  phase.first_actor + phase.num_actors);
    }
    for (const ChannelPlan& channel : device_.channels) {
      const uint32_t phase = PhaseOfActor(device_, channel.producer);
      if (phase != PhaseOfActor(device_, channel.consumer)) {
        phase_pairs_.insert({phase, PhaseOfActor(device_, channel.consumer)});
        continue;
      }
      uint32_t& completion = completion_[channel.producer];
      completion = std::min(completion, channel.consumer);
      uint32_t& token = stream_token_[channel.consumer];
      if (!IsAsync(channel.producer) && (token == kNone || token < channel.producer)) {
        token = channel.producer;
      }
    }
    // As if actors started in the planned order, where those after it need not wait for what one
    // has waited for. Any other order is made to agree (access_order.h).
    start_.resize(device_.actors.size());
    for (const PhasePlan& phase : device_.phases) {
      uint32_t drained = phase.first_actor;
      for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
        start_[a] = a;
        if (!IsAsync(a)) continue;
        if (stream_token_[a] != kNone) drained = std::max(drained, stream_token_[a] + 1);
        start_[a] = drained;
      }
    }
  }

  absl::Status WalkPhase(uint32_t p) {
    const PhasePlan& phase = device_.phases[p];
    for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
      const ActorPlan& actor = device_.actors[a];
      for (const OperandPlan& operand : actor.inputs) {
        if (operand.reg != kNone) RETURN_IF_ERROR(Read(p, a, operand.reg));
      }
      for (const OperandPlan& operand : actor.outputs) {
        if (operand.reg != kNone) RETURN_IF_ERROR(Write(p, a, operand.reg));
      }
      if (actor.workspace_bytes > 0) {
        blocks_[p].push_back({actor.workspace_offset,
                              actor.workspace_offset + actor.workspace_bytes, a, a, a, kNone, p});
      }
    }
    return absl::OkStatus();
  }

  absl::Status Read(uint32_t p, uint32_t a, uint32_t r) {
    RegisterState& reg = registers_[r];
    const uint32_t first_actor = device_.phases[p].first_actor;
    const bool is_written_here = reg.writer != kNone && reg.writer >= first_actor;
    if (is_written_here && reg.writer != a) {
      if (IsAsync(reg.writer) && CompletionOf(reg.writer) > a) {
        return Invalid(Describe(a), " reads register ", r, " without a token from ",
                       Describe(reg.writer), ", which writes it");
      }
      if (IsAsync(a) && !IsAsync(reg.writer) &&
          (stream_token_[a] == kNone || stream_token_[a] < reg.writer)) {
        return Invalid(Describe(a), " reads register ", r,
                       " beside the stream without a token from ", Describe(reg.writer),
                       ", which writes it");
      }
    }
    if (IsWorkspace(r)) {
      if (reg.home == kNone) {
        return Invalid(Describe(a), " reads workspace register ", r,
                       " before anything has written it");
      }
      RETURN_IF_ERROR(CheckHome(p, a, r));
      reg.last = std::max(reg.last, LastOf(a));
    } else {
      Note(p, r, &reg.last_use, &reads_);
    }
    const bool is_first_async = reg.async_reader == kNone || reg.async_reader < first_actor;
    if (IsAsync(a) && (is_first_async || CompletionOf(reg.async_reader) < CompletionOf(a))) {
      reg.async_reader = a;
    }
    return absl::OkStatus();
  }

  absl::Status Write(uint32_t p, uint32_t a, uint32_t r) {
    RegisterState& reg = registers_[r];
    if (reg.async_reader != kNone && reg.async_reader != a &&
        reg.async_reader >= device_.phases[p].first_actor && CompletionOf(reg.async_reader) > a) {
      return Invalid(Describe(a), " writes register ", r, " while ", Describe(reg.async_reader),
                     " may still read it");
    }
    if (IsWorkspace(r)) {
      if (reg.home == kNone) {
        reg.home = p;
        reg.first_writer = a;
        reg.first = a;
        reg.last = a;
      }
      reg.first = std::min(reg.first, start_[a]);
      RETURN_IF_ERROR(CheckHome(p, a, r));
      reg.last = std::max(reg.last, LastOf(a));
    } else {
      Note(p, r, &reg.last_write, &writes_);
    }
    reg.writer = a;
    return absl::OkStatus();
  }

  absl::Status CheckHome(uint32_t p, uint32_t a, uint32_t r) const {
    if (registers_[r].home == p) return absl::OkStatus();
    return Invalid(Describe(a), " uses workspace register ", r, " of phase ",
                   device_.phases[registers_[r].home].name);
  }

  // Remembers that phase p uses register r, once.
  static void Note(uint32_t p, uint32_t r, uint32_t* last, std::vector<Use>* uses) {
    if (*last == p) return;
    *last = p;
    uses->push_back({r, p});
  }

  // A phase that reads a channel register has a channel from a phase that writes it, or comes after
  // it in the per-step lane.
  absl::Status CheckGates() {
    std::sort(reads_.begin(), reads_.end());
    std::sort(writes_.begin(), writes_.end());
    auto writers = writes_.begin();
    for (const Use& read : reads_) {
      if (device_.registers[read.reg].register_class != RegisterClass::kChannel) continue;
      while (writers != writes_.end() && writers->reg < read.reg) ++writers;
      if (writers == writes_.end() || writers->reg != read.reg) {
        return Invalid(DescribePhase(plan_, d_, read.phase), " reads channel register ", read.reg,
                       ", which nothing writes");
      }
      bool is_gated = false;
      for (auto it = writers; it != writes_.end() && it->reg == read.reg && !is_gated; ++it) {
        const bool follows = it->phase < read.phase &&
                             device_.phases[it->phase].lane == Lane::kPerStep &&
                             device_.phases[read.phase].lane == Lane::kPerStep;
        is_gated =
            it->phase == read.phase || follows || phase_pairs_.contains({it->phase, read.phase});
      }
      if (is_gated) continue;
      return Invalid(DescribePhase(plan_, d_, read.phase), " reads channel register ", read.reg,
                     " without a channel from phase ", device_.phases[writers->phase].name,
                     ", which writes it");
    }
    return absl::OkStatus();
  }

  std::string DescribeBlock(const Block& block) const {
    return StrCat(
        block.reg == kNone ? std::string("the scratch") : StrCat("workspace register ", block.reg),
        " of ", Describe(block.writer), " at bytes ", block.begin, " to ", block.end);
  }

  // As it looks from another phase.
  std::string DescribeOwner(const Block& block) const {
    const std::string bytes = StrCat(" at bytes ", block.begin, " to ", block.end);
    if (block.home != kNone) {
      return StrCat("the workspace of ", DescribePhase(plan_, d_, block.home), bytes);
    }
    return StrCat(Name(device_.registers[block.reg].register_class), " register ", block.reg,
                  bytes);
  }

  // Whether actor `after.writer` writes its output 0 where `before`, which it reads last, begins.
  bool WorksInPlace(const Block& before, const Block& after) const {
    if (after.writer == kNone || before.writer == kNone) return false;
    const ActorPlan& actor = device_.actors[after.writer];
    if (before.reg == kNone || after.reg == kNone || before.last != after.writer ||
        before.begin != after.begin || before.end < after.end || actor.kind != ActorKind::kKernel ||
        actor.outputs[0].reg != after.reg || actor.outputs[0].offset != 0) {
      return false;
    }
    return std::any_of(actor.inputs.begin(), actor.inputs.end(), [&](const OperandPlan& input) {
      return input.reg == before.reg && input.offset == 0;
    });
  }

  // What the block takes of the device's own memory.
  uint64_t DeviceBytes(const Block& block) const {
    return block.begin < device_.arena_bytes ? block.end - block.begin : 0;
  }

  // Workspace registers join the scratch of their phase.
  void AddWorkspaces() {
    for (uint32_t r = 0; r < device_.registers.size(); ++r) {
      const RegisterPlan& reg = device_.registers[r];
      const RegisterState& state = registers_[r];
      const uint64_t num_bytes = reg.slots * reg.slot_bytes;
      if (state.home == kNone || num_bytes == 0) continue;
      blocks_[state.home].push_back({reg.offset, reg.offset + num_bytes, state.first, state.last,
                                     state.first_writer, r, state.home});
    }
  }

  // Walks through the phase with the blocks that live at each position, in order of address. As
  // they are disjoint, a new one can only collide with its neighbours. Returns the most bytes of
  // the device's memory at once.
  absl::StatusOr<uint64_t> SweepPhase(uint32_t p, std::vector<Block>* phase_blocks) const {
    std::vector<Block>& blocks = *phase_blocks;
    std::sort(blocks.begin(), blocks.end(),
              [](const Block& a, const Block& b) { return a.first < b.first; });
    std::vector<uint32_t> by_last(blocks.size());
    std::iota(by_last.begin(), by_last.end(), 0);
    std::sort(by_last.begin(), by_last.end(),
              [&](uint32_t a, uint32_t b) { return blocks[a].last < blocks[b].last; });

    absl::btree_map<uint64_t, uint32_t> live;  // begin -> block
    uint64_t live_bytes = 0;
    uint64_t peak_bytes = 0;
    size_t next_to_die = 0;
    for (uint32_t i = 0; i < blocks.size(); ++i) {
      const Block& block = blocks[i];
      for (; blocks[by_last[next_to_die]].last < block.first; ++next_to_die) {
        const Block& dead = blocks[by_last[next_to_die]];
        const auto it = live.find(dead.begin);
        live_bytes -= DeviceBytes(dead);
        // Its bytes may have gone to the block that was computed in place.
        if (it != live.end() && it->second == by_last[next_to_die]) live.erase(it);
      }
      auto after = live.upper_bound(block.begin);
      if (after != live.begin()) {
        const auto before = std::prev(after);
        const Block& other = blocks[before->second];
        if (other.end > block.begin) {
          if (!WorksInPlace(other, block)) return Collision(p, other, block);
          live.erase(before);
          after = live.upper_bound(block.begin);
        }
      }
      if (after != live.end() && after->first < block.end) {
        return Collision(p, blocks[after->second], block);
      }
      live[block.begin] = i;
      live_bytes += DeviceBytes(block);
      peak_bytes = std::max(peak_bytes, live_bytes);
    }
    return peak_bytes;
  }

  absl::Status Collision(uint32_t p, const Block& a, const Block& b) const {
    if (a.writer != kNone && b.writer != kNone) {
      return Invalid(DescribeBlock(a), " and ", DescribeBlock(b), " overlap while both live");
    }
    // By address; registers that cross phases before workspace.
    const bool is_ordered =
        std::tuple(a.begin, a.home != kNone, a.reg) < std::tuple(b.begin, b.home != kNone, b.reg);
    return Invalid("device ", d_, ": ", DescribeOwner(is_ordered ? a : b), " and ",
                   DescribeOwner(is_ordered ? b : a), " overlap, and no channel keeps both from",
                   " being in use in ", DescribePhase(plan_, d_, p));
  }

  // What is always in use overlaps nothing; what is in use in several phases, or until a phase of
  // another lane waits for it, overlaps nothing that those use.
  absl::Status CheckAcrossPhases() {
    const DeviceUses uses =
        FindUses(device_, plan_.stages[device_.stage].order, plan_.num_microbatches);
    std::vector<Block> always;
    // Blocks of other phases, and of registers that cross phases: by phases as in PhaseSpan.
    const size_t num_phases = device_.phases.size();
    std::vector<std::vector<Block>> guests(2 * num_phases);
    std::vector<std::vector<Block>> held(2 * num_phases);
    const auto add = [&](const Uses& use, Block block) {
      if (use.always) {
        always.push_back(block);
        return;
      }
      for (const PhaseSpan& span : use.spans) {
        const PhasePlan& phase = device_.phases[span.phase % num_phases];
        if (span.phase % num_phases == block.home || phase.num_actors == 0) continue;
        block.first = phase.first_actor + static_cast<uint32_t>(span.first);
        block.last = phase.first_actor + static_cast<uint32_t>(span.last);
        block.is_touched = span.is_touched;
        guests[span.phase].push_back(block);
      }
      for (const uint32_t p : use.held) {
        held[p].push_back(block);
      }
    };
    for (uint32_t r = 0; r < device_.registers.size(); ++r) {
      const RegisterPlan& reg = device_.registers[r];
      const uint64_t num_bytes = reg.slots * reg.slot_bytes;
      const uint32_t home = registers_[r].home;
      if (num_bytes == 0 || (home == kNone && IsWorkspace(r))) continue;
      const std::vector<Uses>& slots = uses.registers[r];
      const uint64_t slot_bytes = num_bytes / slots.size();
      for (size_t s = 0; s < slots.size(); ++s) {
        const uint64_t begin = reg.offset + s * slot_bytes;
        add(slots[s], {begin, begin + slot_bytes, 0, 0, kNone, r, home});
      }
    }
    for (uint32_t p = 0; p < device_.phases.size(); ++p) {
      const PhasePlan& phase = device_.phases[p];
      for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
        const ActorPlan& actor = device_.actors[a];
        if (actor.workspace_bytes == 0) continue;
        add(uses.scratch[a],
            {actor.workspace_offset, actor.workspace_offset + actor.workspace_bytes, 0, 0, kNone,
             kNone, p});
      }
    }
    std::sort(always.begin(), always.end(),
              [](const Block& a, const Block& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < always.size(); ++i) {
      const Block& a = always[i - 1];
      const Block& b = always[i];
      if (b.begin >= a.end || (a.home != kNone && a.home == b.home)) continue;
      return Invalid("device ", d_, ": ", DescribeOwner(a), " and ", DescribeOwner(b), " overlap");
    }
    for (size_t i = 0; i < guests.size(); ++i) {
      const auto p = static_cast<uint32_t>(i % num_phases);
      const PhasePlan& phase = device_.phases[p];
      if (phase.num_actors == 0) continue;
      if (i >= num_phases && !HasFirstInstance(phase, plan_.num_microbatches)) continue;
      std::vector<Block> blocks = blocks_[p];
      blocks.insert(blocks.end(), guests[i].begin(), guests[i].end());
      for (Block block : always) {
        if (block.home == p) continue;
        block.first = phase.first_actor;
        block.last = phase.first_actor + phase.num_actors - 1;
        blocks.push_back(block);
      }
      RETURN_IF_ERROR(SweepPhase(p, &blocks).status());
      RETURN_IF_ERROR(CheckHeld(p, blocks, &held[i]));
    }
    return absl::OkStatus();
  }

  // What a phase touches overlaps nothing that is held there.
  absl::Status CheckHeld(uint32_t p, const std::vector<Block>& blocks,
                         std::vector<Block>* held) const {
    std::sort(held->begin(), held->end(),
              [](const Block& a, const Block& b) { return a.begin < b.begin; });
    // Up to each of them, the one that reaches furthest.
    std::vector<const Block*> furthest;
    for (const Block& block : *held) {
      furthest.push_back(furthest.empty() || furthest.back()->end < block.end ? &block
                                                                              : furthest.back());
    }
    for (const Block& block : blocks) {
      if (!block.is_touched) continue;
      auto next = std::lower_bound(held->begin(), held->end(), block.end,
                                   [](const Block& a, uint64_t end) { return a.begin < end; });
      if (next == held->begin()) continue;
      const Block& other = *furthest[next - held->begin() - 1];
      if (other.end > block.begin) return Collision(p, other, block);
    }
    return absl::OkStatus();
  }

  const Plan& plan_;
  const uint32_t d_;
  const DevicePlan& device_;
  std::vector<uint32_t> completion_;    // of an actor beside the stream: see CompletionOf
  std::vector<uint32_t> start_;         // of an actor: from which one on it may write
  std::vector<uint32_t> stream_token_;  // the last actor on the stream that an actor waits for
  absl::flat_hash_set<std::pair<uint32_t, uint32_t>> phase_pairs_;  // joined by a channel
  std::vector<RegisterState> registers_;
  std::vector<Use> reads_;  // of state and channel registers, by phases
  std::vector<Use> writes_;
  std::vector<std::vector<Block>> blocks_;  // of each phase
};

}  // namespace

absl::StatusOr<PhaseWorkspaceBytes> CheckMemory(const Plan& plan) {
  PhaseWorkspaceBytes bytes;
  for (uint32_t d = 0; d < plan.devices.size(); ++d) {
    ASSIGN_OR_RETURN(std::vector<uint64_t> peaks, DeviceMemoryCheck(plan, d).Run());
    bytes.push_back(std::move(peaks));
  }
  return bytes;
}

}  // namespace penstock::planner
