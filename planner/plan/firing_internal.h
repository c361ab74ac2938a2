// A plan as a network that fires without kernels, and its state. Its parts:
//   firing_network.cc    counters and items of a plan
//   fire_plan.cc         firing, and how many bytes are live
//   firing_launches.cc   the order in which devices launch communication themselves
//   firing_deadlock.cc   who waits for whom when nothing can fire any more
//
// Thread rule: one thread.

#ifndef PENSTOCK_PLANNER_PLAN_FIRING_INTERNAL_H_
#define PENSTOCK_PLANNER_PLAN_FIRING_INTERNAL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "planner/plan/check_memory.h"
#include "planner/plan/event_queue_internal.h"
#include "planner/plan/fire_plan.h"
#include "planner/plan/launch_order.h"
#include "planner/plan/plan.h"
#include "planner/plan/rendezvous.h"
#include "planner/plan/show_plan.h"
#include "planner/policy/policy.h"

namespace penstock::planner::internal {

// A channel between phases. Phases are numbered over all devices.
struct TokenCounter {
  uint32_t tokens = 0;
  uint32_t credits = 0;
  uint32_t produce = 1;
  uint32_t consume = 1;
  uint32_t producer_phase = 0;
  uint32_t consumer_phase = 0;
  uint32_t reg = kNone;  // number over all devices, of a channel register
  uint32_t capacity = 1;
  uint32_t tokens_per_slot = 1;
  uint32_t channel = 0;  // of the device
};

// An actor at which something happens besides computation; with times, any actor.
struct Item {
  uint32_t actor = 0;
  uint32_t member = kNone;  // index into RendezvousTable::actors, of communication
  // Members to wait for; with times, the items that wait for it: waits_[previous item's end .. this
  // end).
  uint32_t waits_end = 0;
  uint32_t produced_end = 0;  // counters to put tokens into when it completes, likewise
  uint32_t consumed_end = 0;  // counters to give credits back to when it completes, likewise
};

struct PhaseState {
  uint32_t device = 0;
  uint32_t phase = 0;  // of the device
  uint32_t first_item = 0;
  uint32_t end_item = 0;
  uint32_t num_closed = 0;  // gates
  uint32_t num_started = 0;
  uint32_t num_to_start = 0;
  uint32_t next_item = 0;    // the first that has not fired; with times, as many as have fired
  uint32_t num_pending = 0;  // items that have fired and not completed
  bool is_running = false;
  bool is_listed = false;      // in the worklist
  uint32_t computing = kNone;  // with times: the item that computes
};

// With times: what an item takes, and what it waits for.
struct TimedItem {
  double seconds = 0;              // of computation or a copy
  double after_s = 0;              // when the copies that it waits for end
  uint32_t copy = kNone;           // into copies_, of one that runs beside kernels
  uint32_t next_of_group = kNone;  // of a collective: the item that may fire after it has
  uint32_t num_inputs = 0;         // items that it waits for in its phase
  uint32_t num_waiting = 0;        // of these in the instance that runs
};

// With times: items of a phase that are ready, as heaps whose first is the first in the plan.
struct ReadyItems {
  using Heap = absl::InlinedVector<uint32_t, 4>;
  Heap computation;
  Heap communication;
};

// With times: a copy that runs beside the kernels of its device.
struct StreamCopy {
  uint32_t phase = 0;
  uint32_t item = 0;
  bool is_to_host = false;
};

// With times: the end of a phase's computation, of a rendezvous, or of a copy beside kernels.
struct TimedEvent {
  enum class Kind : uint8_t { kComputation, kRendezvous, kCopy };
  Kind kind = Kind::kComputation;
  uint32_t index = 0;  // of the phase, rendezvous or copy
};

// A member of a rendezvous.
struct Member {
  uint32_t phase = 0;
  uint32_t item = 0;
  uint32_t rendezvous = 0;
  uint32_t num_completed = 0;
  bool has_arrived = false;  // while launches are ordered: its phase stands at the rendezvous
};

// One phase at a time, in an order.
struct LaneState {
  uint32_t position = 0;     // in the lane's order, over all steps
  uint32_t running = kNone;  // phase
};

// The order of a stage's compute lane: of one step where it is planned, of all steps otherwise,
// decided while firing.
struct StageOrder {
  bool is_planned = false;
  std::vector<uint32_t> order;  // of phase types
  std::vector<bool> has_type;
};

// Slots of a channel register in use: the most over its channels.
struct LiveSlots {
  std::vector<uint32_t> counters;
  uint32_t level = 0;
  uint32_t num_at_level = 0;  // channels whose level it is
  uint64_t slot_bytes = 0;
};

class Firing {
 public:
  Firing(const Plan& plan, const PolicyRegistry& policies, const RendezvousTable& rendezvous_table,
         const PhaseWorkspaceBytes& workspace_bytes, FiringTimes* times)
      : plan_(plan),
        policies_(policies),
        rendezvous_(rendezvous_table),
        workspace_bytes_(workspace_bytes),
        times_(times),
        num_steps_(times == nullptr ? kUntimedSteps : kTimedSteps) {}

  absl::StatusOr<FiringResult> Run();

  // Fires one step in which what is launched takes place when the phases of all members have come
  // to it, and no phase passes one that has not. All phases go on in turns, an item at a time.
  absl::StatusOr<LaunchOrder> OrderLaunches(Launched launched);
  // Fires two steps in which a device launches in the order given, and does not wait for what it
  // has launched before something needs its result.
  absl::Status CheckLaunches(const LaunchOrder& order, Launched launched);

 private:
  static constexpr uint32_t kUntimedSteps = 2;
  static constexpr uint32_t kTimedSteps = 4;

  struct Wait {
    std::string text;  // "waits for ..." naming phase `next`
    uint32_t next = kNone;
  };

  // Making the network.
  void Number();
  absl::Status OrderStages();
  void AddDevice(uint32_t d);
  // What an actor waits for and where it produced and consumed, gathered by actor and cut into
  // items.
  void AddItems(uint32_t d);
  // `previous`: PreviousOfGroups.
  void AddTimes(const PhaseState& state, const std::vector<uint32_t>& previous);
  void AddCounter(uint32_t d, uint32_t c, uint32_t from, uint32_t to);

  // Firing.
  const PhasePlan& PlanOf(const PhaseState& state) const {
    return plan_.devices[state.device].phases[state.phase];
  }
  bool IsDone(uint32_t p) const {
    return phases_[p].num_started == phases_[p].num_to_start && !phases_[p].is_running;
  }
  void List(uint32_t p) {
    if (p == kNone || phases_[p].is_listed) return;
    phases_[p].is_listed = true;
    worklist_.push_back(p);
  }
  LaneState* LaneOf(const PhaseState& state) {
    const Lane lane = PlanOf(state).lane;
    return lane == Lane::kFloating ? nullptr : &lanes_[state.device][static_cast<size_t>(lane)];
  }
  // The phase whose turn it is in a lane of the device; kNone: not yet chosen, or all steps are
  // done.
  uint32_t Expected(uint32_t d, Lane lane);
  // kNone: the device has none.
  uint32_t PhaseOfType(uint32_t d, uint32_t type) const {
    return type < phase_of_type_[d].size() ? phase_of_type_[d][type] : kNone;
  }
  void Poll(uint32_t p);
  // The counters where a phase produced tokens, and where it takes them: those of all its items.
  std::pair<uint32_t, uint32_t> ProducedBy(const PhaseState& state) const;
  std::pair<uint32_t, uint32_t> ConsumedBy(const PhaseState& state) const;
  void Start(uint32_t p);
  void Advance(uint32_t p);
  // Without times: runs the phase until it waits for communication, or to its end.
  void AdvanceInOrder(uint32_t p);
  // While launches are ordered: the phase's next item.
  void AdvanceInTurn(uint32_t p);
  // Whether it is the turn of the phase to launch, and then the next one's.
  bool MayLaunch(const PhaseState& state) const;
  void CountLaunch(const PhaseState& state);
  void SetLaunched(Launched launched) {
    num_launched_ = static_cast<uint32_t>(
        launched == Launched::kCollectives ? plan_.collectives.size() : rendezvous_.size());
  }
  // Whether devices launch it themselves: a collective, or with messages any communication.
  bool IsLaunched(const Item& item) const {
    return item.member != kNone && members_[item.member].rendezvous < num_launched_;
  }
  // Tokens of what devices launch themselves are added at the end of a phase.
  void CompleteLaunched(const PhaseState& state);
  // The item's part of waits_.
  absl::Span<const uint32_t> WaitsOf(uint32_t item) const {
    const uint32_t begin = item == 0 ? 0 : items_[item - 1].waits_end;
    return {waits_.data() + begin, items_[item].waits_end - begin};
  }
  // With times: starts what is ready, of computation one item at a time, the first.
  void FireReady(uint32_t p);
  void FireTimed(uint32_t p, uint32_t item);
  void FireCopy(uint32_t p, uint32_t item);
  // With times: an item of the phase waits for one less.
  void Release(uint32_t p, uint32_t item);
  // With times: its dependents wait for one less, and Complete.
  void CompleteTimed(uint32_t p, uint32_t item);
  // A copy beside kernels has ended.
  void CompleteCopy(const StreamCopy& copy);
  // A communication of the phase starts.
  void StartCommunication(uint32_t p, uint32_t item);
  // All who meet have what they wait for. The phase `advancing` goes on by itself.
  void CompleteRendezvous(uint32_t rendezvous, uint32_t advancing);
  void AddEvent(double time, TimedEvent::Kind kind, uint32_t index) {
    events_.Add(time, {kind, index});
  }
  // Moves time to the next event, which happens; false: there is none.
  bool TakeEvent();
  // Fetches what the events behind the next one will read: each device is another part of memory.
  void Prefetch() const;
  // The first member that the phase's next item waits for; kNone: it can start.
  uint32_t FirstWait(const PhaseState& state) const;
  void Complete(uint32_t index);
  void Open(uint32_t p) {
    if (--phases_[p].num_closed == 0) List(p);
  }
  // A policy without a planned order: the stage takes a phase that is ready on all its devices,
  // once they all have finished the one before; backwards and weight gradients before forwards.
  bool Choose(uint32_t s);
  // Whether the stage has phases of the kind left to choose in its present step. REQUIRES: no
  // device of the stage is behind with what was chosen.
  bool IsWanted(const StageOrder& stage, uint32_t type, const std::vector<uint32_t>& devices) const;
  // Slots of its register in use as far as one channel is concerned.
  static uint32_t LevelOf(const TokenCounter& counter) {
    if (counter.reg == kNone) return 0;
    return (counter.capacity - counter.credits + counter.tokens_per_slot - 1) /
           counter.tokens_per_slot;
  }
  void Raise(uint32_t d, const TokenCounter& counter, uint32_t before);
  void Lower(uint32_t d, const TokenCounter& counter, uint32_t before);

  // Naming a deadlock.
  std::string Describe(uint32_t p) const {
    return DescribePhase(plan_, phases_[p].device, phases_[p].phase);
  }
  // What a phase that is not done waits for, after nothing can fire any more.
  Wait WaitOf(uint32_t p);
  Wait WaitForGate(uint32_t p) const;
  // A running phase stands at an actor that needs communication which has not completed, or has
  // come to its end and waits for the communication that it started.
  Wait WaitForRendezvous(const PhaseState& state) const;
  // The stage has chosen no phase: because a device is still at the last one, or none is ready.
  Wait WaitForChoice(uint32_t p);
  // Every phase that cannot go on waits for another one of them, so following the waits from any of
  // them leads into a cycle.
  absl::Status Deadlock(uint32_t start);

  const Plan& plan_;
  const PolicyRegistry& policies_;
  const RendezvousTable& rendezvous_;
  const PhaseWorkspaceBytes& workspace_bytes_;
  FiringTimes* const times_;
  uint32_t num_steps_;

  // The network. Phases, counters and registers are numbered over all devices.
  std::vector<uint32_t> phase_base_;     // of each device: its first phase
  std::vector<uint32_t> register_base_;  // likewise
  std::vector<TokenCounter> counters_;
  std::vector<Item> items_;
  std::vector<TimedItem> timed_items_;  // of each item, with times
  std::vector<StreamCopy> copies_;
  std::vector<uint32_t> waits_;
  std::vector<uint32_t> produced_;
  std::vector<uint32_t> consumed_;
  std::vector<std::vector<uint32_t>> members_of_device_;
  std::vector<std::vector<uint32_t>> phase_of_type_;   // in the compute lane, of each device
  std::vector<std::vector<uint32_t>> per_step_order_;  // of each device, one step

  // Its state.
  std::vector<PhaseState> phases_;
  std::vector<ReadyItems> ready_;  // of each phase, with times
  std::vector<Member> members_;
  std::vector<uint32_t> num_arrived_;            // at each rendezvous
  std::vector<std::array<LaneState, 2>> lanes_;  // of each device: compute and per-step
  std::vector<StageOrder> stages_;
  std::vector<uint32_t> worklist_;
  std::vector<LiveSlots> live_slots_;  // of each register
  std::vector<uint64_t> live_bytes_;   // of each device
  std::vector<uint64_t> peak_bytes_;
  std::vector<uint64_t> num_remaining_;  // phase instances of each step
  double now_s_ = 0;
  EventQueue<TimedEvent> events_;
  // Where devices launch communication themselves: rendezvous below this one.
  uint32_t num_launched_ = 0;
  // Of each device: its launches in the step.
  LaunchOrder ordered_;                 // that were found
  const LaunchOrder* order_ = nullptr;  // that is checked
  struct Position {
    uint32_t run = 0;
    uint32_t launched = 0;  // of the run
  };
  std::vector<Position> positions_;  // in order_, of each device
  bool is_ordering_ = false;
  std::vector<double> step_ends_s_;
};

}  // namespace penstock::planner::internal

#endif  // PENSTOCK_PLANNER_PLAN_FIRING_INTERNAL_H_
