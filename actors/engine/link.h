// Turns one device's part of a plan into what its executor runs: packed arrays joined by integer
// indices, with every pointer resolved that does not change from instance to instance.
//
// Example: a phase of kernels a, b (channel a -> b) that reads a channel register of two slots:
//   actors    a {early messages [b]}, b; needs 0, 1
//   counters  one that counts the tokens of the register, need 1
//   slots     one group of two slots, whose patch sets a's argument before each instance
//
// Thread rule: Link and the result belong to the device's executor.
// Invariants: indices were checked by CheckPlan and are not checked again.

#ifndef PENSTOCK_ACTORS_ENGINE_LINK_H_
#define PENSTOCK_ACTORS_ENGINE_LINK_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "actors/engine/device_communication.h"
#include "actors/engine/lane_stream.h"
#include "actors/engine/tile_copy.h"
#include "base/device.h"
#include "kernels/kernel.h"
#include "planner/plan/launch_order.h"
#include "planner/plan/plan.h"
#include "transport/stream_collective.h"
#include "transport/transport.h"

namespace penstock::actors {

// What firing an actor reads. Actors lie in the planned order, so these stream through the caches.
struct Actor {
  kernels::Kernel* kernel = nullptr;  // of a kernel actor; owned by LinkedDevice::kernels
  void* workspace = nullptr;          // of the kernel, in the arena
  uint32_t first_arg = 0;             // into args: inputs, then outputs
  uint32_t first_message = 0;         // into messages: early, then late
  uint32_t first_increment = 0;       // into increments
  uint32_t part = 0;                  // into comms, stream_comms, copies, or memory_copies
  uint32_t first_join = 0;            // into joins
  uint16_t num_inputs = 0;            // arguments that it reads
  uint16_t num_outputs = 0;           // arguments that it writes, behind those
  // Messages when it starts. Of what runs on a stream these are all: who gets one follows on the
  // stream, or is ordered behind it by the stream. Of communication: to the next of its group.
  uint16_t num_early = 0;
  uint16_t num_late = 0;        // messages when communication has completed
  uint16_t num_increments = 0;  // counters that it adds tokens or credits to when it has completed
  // Communication and copies on streams of their own that come before what this one does on its
  // stream.
  uint16_t num_joins = 0;
  planner::ActorKind kind = planner::ActorKind::kKernel;  // as in the plan
  bool runs_on_stream = true;                             // as opposed to moving by itself
  // What firing it takes, as last measured on a synchronous device; until then it counts as long.
  uint32_t act_ns = 1'000'000;
};
static_assert(sizeof(Actor) <= 64, "an actor is at most one cache line");

// Whether the device runs the actor's communication itself: see StreamComm.
inline bool IsStreamComm(const Actor& actor) {
  return actor.runs_on_stream && planner::IsCommunication(actor.kind);
}

// A message is an in-phase token: the index of the actor that gets it, and whether that
// communicates.
inline constexpr uint32_t kToCommunication = uint32_t{1} << 31;

// What an actor adds to a counter each time.
struct Increment {
  uint32_t counter = 0;  // into counters
  uint32_t amount = 0;   // tokens of a producer, credits of a consumer
};

// Tokens or credits that a phase takes `need` of when it starts. The executor's thread counts; any
// thread may read the count.
class TokenCounter {
 public:
  // `count` tokens or credits are there from the beginning.
  TokenCounter(uint32_t count, uint32_t need, uint32_t phase)
      : need(need), phase(phase), count_(count) {}
  // For arrays that grow while they are built. REQUIRES: nobody counts yet.
  TokenCounter(const TokenCounter& other) : TokenCounter(other.count(), other.need, other.phase) {}

  // What is there and was not taken.
  uint32_t count() const { return count_.load(std::memory_order_relaxed); }
  // Whether the phase cannot start for want of it.
  bool is_short() const { return count() < need; }
  // Of one thread, so no locked instruction is needed.
  void Add(uint32_t amount) { count_.store(count() + amount, std::memory_order_relaxed); }
  // Takes what the phase needs, on the executor's thread. REQUIRES: !is_short().
  void Take() { count_.store(count() - need, std::memory_order_relaxed); }

  const uint32_t need;   // taken by each instance of the phase
  const uint32_t phase;  // that takes, into phases

 private:
  std::atomic<uint32_t> count_;
};

// What a report says of a counter.
struct TokenCounterInfo {
  uint32_t channel = 0;  // in DevicePlan::channels
  // Counts its credits, for the producer's phase; else its tokens, for the consumer's.
  bool is_credit = false;
};

// Arguments that move with the slot of one register.
struct SlotGroup {
  uint64_t slot_bytes = 0;      // from one slot to the next
  uint32_t slots = 1;           // more than one; instances use them in turn
  uint32_t first_patch = 0;     // into patches
  uint32_t num_patches = 0;     // an argument each
  bool per_microbatch = false;  // the slot changes with each micro-batch; else with each step
};

// An argument of a SlotGroup: it points to `slot0` + slot * slot_bytes.
struct Patch {
  std::byte* slot0 = nullptr;  // the operand in the first slot
  uint32_t arg = 0;            // into args
};

// What starting a phase reads. Its actors, counters and so on are ranges of arrays of LinkedDevice.
struct Phase {
  uint32_t first_actor = 0;                      // into actors
  uint32_t end_actor = 0;                        // behind its last one
  uint32_t first_counter = 0;                    // into counters
  uint32_t num_counters = 0;                     // those that it takes from when it starts
  uint32_t first_group = 0;                      // into groups
  uint32_t num_groups = 0;                       // registers with several slots that its actors use
  uint32_t num_on_stream = 0;                    // actors that run on the phase's stream
  uint32_t first_stream_comm = 0;                // into stream_comms
  uint32_t num_stream_comms = 0;                 // that its actors run, in planned order
  uint32_t num_copies = 0;                       // copies that have streams of their own
  uint32_t first_fetch = 0;                      // into fetches
  uint32_t num_fetches = 0;                      // fetches among its actors
  uint32_t first_start = 0;                      // into starts
  uint32_t num_starts = 0;                       // communication that starts with the phase
  uint32_t missing = 0;                          // counters whose count is below their need
  planner::Lane lane = planner::Lane::kCompute;  // that it runs in
  uint32_t type = 0;                             // of the compute lane: planner::PhaseType
  bool per_microbatch = true;                    // runs for each micro-batch; else once a step
  bool has_host_copies = false;                  // feeds or fetches
  // The other lanes that it has channels with: what it uses, they may be using. A bit each, by
  // Lane.
  uint8_t joined_lanes = 0;
  // Into floating_streams; kNone: its stream is that of its lane.
  uint32_t floating_stream = planner::kNone;
  uint32_t first_source = 0;  // into sources
  uint32_t num_sources = 0;   // phases on other streams that it follows
};

// A feed or fetch.
struct HostCopy {
  TileCopy tile;           // where the device's part lies in the fed or fetched tensor
  uint32_t target = 0;     // index in Plan::feeds or Plan::fetches
  uint64_t num_bytes = 0;  // of the tile
};

// Between the memories of the device and its host.
struct MemoryCopy {
  uint64_t num_bytes = 0;                   // of the value
  CopyKind kind = CopyKind::kHostToDevice;  // from host to device or the other way
  uint32_t stream = planner::kNone;         // into copy_streams; kNone: the stream of its phase
  std::unique_ptr<Event> done;              // of the last run, with a stream of its own
};

// Copies in one direction of the phases of one lane: kernels overlap them. Copies of another lane
// or direction must not wait behind them.
struct CopyStream {
  planner::Lane lane = planner::Lane::kCompute;  // of the phases
  CopyKind kind = CopyKind::kHostToDevice;       // the direction
  int64_t last_ns = 0;                           // when the last traced copy had begun or ended
  std::unique_ptr<LaneStream> stream;            // the copies run on it
};

// In LinkedDevice::joins: an index of memory_copies instead of stream_comms.
inline constexpr uint32_t kJoinsCopy = uint32_t{1} << 31;

// Of a phase that gets tokens or credits from another one on another stream: instance n follows the
// instance ceil(((n + 1) need - initial) / rate) - 1 of that one.
struct PhaseSource {
  uint32_t phase = 0;    // that is followed, into phases
  uint32_t need = 0;     // that an instance of this phase takes
  uint32_t initial = 0;  // that are there before the first instance
  uint32_t rate = 0;     // that an instance of `phase` gives

  // Negative: none.
  int64_t InstanceFor(int64_t instance) const {
    const int64_t missing = (instance + 1) * int64_t{need} - int64_t{initial};
    return missing <= 0 ? -1 : (missing + rate - 1) / rate - 1;
  }
  friend auto operator<=>(const PhaseSource&, const PhaseSource&) = default;
};

// A collective, or one side of a message, that the device runs itself, on a stream of its own:
// kernels and other communication overlap it.
struct StreamComm {
  uint32_t actor = 0;    // into actors
  uint32_t ordinal = 0;  // among the communicating actors of the device
  planner::ActorKind kind = planner::ActorKind::kCollective;  // a collective, a send or a receive
  int64_t last_ns = 0;  // when the last run that was noticed had ended
  // Of a message, too: transport::MessageOf.
  std::unique_ptr<transport::StreamCollective> collective;
  std::unique_ptr<LaneStream> stream;  // its work uses the collective
};

// What a communication of the plan moves, without its collective and phase. REQUIRES: the actor is
// a collective, a send or a receive.
Comm DescribeComm(const planner::Plan& plan, uint32_t device, uint32_t actor);
// REQUIRES: the actor is a feed or a fetch.
HostCopy DescribeHostCopy(const planner::Plan& plan, uint32_t device, uint32_t actor);

// A device's part of a plan, linked. "Into" a name, above, means an index into the array of that
// name.
struct LinkedDevice {
  std::vector<Actor> actors;          // as in DevicePlan::actors, in the planned order
  std::vector<uint32_t> needs;        // an actor each: messages it waits for
  std::vector<uint32_t> starts;       // communication that waits for none; that of a phase together
  std::vector<uint32_t> messages;     // with kToCommunication; those of an actor together
  std::vector<Increment> increments;  // those of an actor together
  std::vector<TokenCounter> counters;           // those of a phase lie together
  std::vector<TokenCounterInfo> counter_infos;  // a counter each
  std::vector<Phase> phases;                    // as in DevicePlan::phases
  std::vector<SlotGroup> groups;                // those of a phase together
  std::vector<Patch> patches;                   // those of a group together
  // Pointers to operands, those of an actor together; null: an operand that is not there.
  std::vector<void*> args;
  // Collectives and transfers that the host runs, in the order of their actors.
  std::vector<Comm> comms;
  std::vector<StreamComm> stream_comms;  // those of a phase lie together
  std::vector<CopyStream> copy_streams;  // of an asynchronous device
  std::vector<uint32_t> joins;           // indices of stream_comms; of memory_copies: kJoinsCopy
  // The order in which the device launches them in a step, by phase.
  std::vector<planner::LaunchRun> launches;
  // Where the device runs these itself, streams wait for those of other devices. What waits for
  // what has to follow from the plan alone: it must not differ between devices. So floating phases,
  // which start in any order, have streams of their own, and a phase follows those phase instances
  // that its tokens and credits come from, and no more.
  std::vector<std::unique_ptr<LaneStream>> floating_streams;
  std::vector<PhaseSource> sources;  // those of a phase lie together
  std::vector<HostCopy> copies;      // feeds and fetches, in the order of their actors
  // Copies between the memories of device and host, likewise.
  std::vector<MemoryCopy> memory_copies;
  std::vector<uint32_t> fetches;                          // actors; those of a phase together
  std::vector<std::unique_ptr<kernels::Kernel>> kernels;  // that actors point to, each once
};

// What a device's part of a plan is linked against; all of it outlives the result.
struct LinkTarget {
  Device* device = nullptr;                          // that kernels are made for and work on
  const kernels::KernelRegistry* kernels = nullptr;  // of the device's kind
  std::byte* arena = nullptr;                        // of at least arena_bytes
  std::byte* host_arena = nullptr;          // of at least host_bytes; null where there are none
  transport::Endpoint* endpoint = nullptr;  // null where the device sends and receives nothing
  // Null: the host runs the collectives and messages of the device. REQUIRES: null for a
  // synchronous device.
  transport::Communicator* communicator = nullptr;
  // With a communicator, the plan's (planner::OrderLaunches).
  const planner::LaunchOrder* launch_order = nullptr;
  // With a communicator, an entry for each of Plan::collectives.
  const std::vector<bool>* tells_failures = nullptr;
  std::array<Stream*, kNumLanes> streams = {};  // by Lane
  // With a communicator, what launch_order has.
  planner::Launched launched = planner::Launched::kCollectives;
};

// REQUIRES: CheckPlan(plan) is OK. Errors: a kernel that is unknown, refuses its spec or wants more
// workspace than the plan gives it.
absl::StatusOr<LinkedDevice> Link(const planner::Plan& plan, uint32_t device,
                                  const LinkTarget& target);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_LINK_H_
