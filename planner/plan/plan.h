// A plan: the static topology of actors that the engine runs. Self-contained; speaks of logical
// devices only. Written by the planner (lower_to_plan.h), serialised by plan_io.h, verified by
// verify_plan.h, loaded by actors/.
//
// How a plan runs. Every device has *phases*; a phase is a range of the device's actors in the
// planned order. A phase instance has a number n = 0, 1, 2, ...: of a phase that runs once a
// micro-batch, step n / M and micro-batch n % M; of one that runs once a step, step n.
//   - A phase instance starts when its step has been submitted, every *gate* is open (below), and
//     its lane is free and its turn has come:
//       lane kCompute   one phase at a time, in the order that the stage's policy decides
//       lane kPerStep   one at a time, in the order of the device's phase list, for step after
//       step;
//                       a phase that runs once a micro-batch runs its M instances in a row there
//       lane kFloating  any number at once, as soon as the gates are open; every phase has its own
//                       turn (instance n starts after instance n - 1 has completed)
//   - Within a phase, an actor is ready when its in-phase tokens have come. A collective, send or
//     receive then starts at once, except that the collectives of one group start in the order of
//     the list, and completes later. Of the kernels, feeds and fetches that are ready the first in
//     the list is submitted to the device's stream, which runs them one after another; it has
//     completed when its event is done. So what waits holds up nothing that could run. The instance
//     has completed when all its actors have.
//   - When an actor completes it puts its tokens and gives back its credits.
// "Has completed" is meant in the order of the device's streams: on one whose work runs behind the
// host, tokens are put and phases start while the work that they follow still waits in a stream.
//
// Channels. A channel joins a producer actor to a reader. Within one phase it is an in-phase token:
// the consumer waits for the producer, nothing else is needed (the phase runs to its end before it
// starts again). Actors of one phase that use the same bytes, at least one of them writing, are
// joined by a path of such channels. Those that reuse bytes are joined by ordering channels, which
// carry no value. Then any order in which they become ready gives the same results
// (access_order.h).
//
// Between phases a channel has a capacity: the producer's *phase* starts only with `produce`
// credits, the consumer's *phase* only with `consume` tokens; the producer's completion puts
// `produce` tokens, the consumer's gives `consume` credits back. At the start there are `initial`
// tokens and `capacity - initial` credits. Several actors of a consuming phase may read the value:
// then `consumer` is the last of those that run on the device's stream, which the others come
// before, and every collective or send that reads it has a channel of its own.
//
//   F (once a micro-batch) -> B (once a micro-batch): produce 1, consume 1, capacity k: k registers
//   B -> update (once a step), an accumulated gradient: produce 1, consume M, capacity M
//   before-step -> F, a value made once a step:        produce M, consume 1, capacity M
//   update -> F, a parameter:                           produce M, consume 1, capacity M, initial M
//
// Memory. A device's arena is one range of offsets in two memories: [0, arena_bytes) lies in the
// device's memory, [arena_bytes, arena_bytes + host_bytes) in pinned memory of its host. A register
// lies in one of them. Kernels, feeds, fetches and communication use the device's alone; a copy
// (ActorKind::kCopy) joins a register in one memory to a register in the other; a device with
// memory of its own runs it beside its kernels.
//
// Registers. Registers that are never in use at once may share bytes (lifetimes.h). Slot s of a
// register lies at offset + s * slot_bytes. An actor uses slot n % slots
// where n is the instance number at the *register's* rate: step * M + micro-batch if the register
// is per_microbatch, else step.
//
// Thread rule: a value; a const Plan is safe to read from many threads.

#ifndef PENSTOCK_PLANNER_PLAN_PLAN_H_
#define PENSTOCK_PLANNER_PLAN_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/collective.h"
#include "base/dtype.h"
#include "base/tensor.h"
#include "graph/kernel_spec.h"
#include "planner/policy/phase.h"

namespace penstock::planner {

inline constexpr uint32_t kNone = 0xffffffff;           // no index
inline constexpr uint32_t kMaxMicrobatches = 1 << 14;   // a step
inline constexpr uint32_t kMaxThreadsPerDevice = 4096;  // of kernels

using KernelPlan = graph::KernelSpec;  // an operator at the shapes of one device
using TilePlan = graph::TileDesc;      // the part of a tensor that a device holds

// How long the contents of a register are needed.
enum class RegisterClass : uint8_t {
  kState,      // outlives the step
  kChannel,    // crosses phases
  kWorkspace,  // lives inside one phase instance
};

// A piece of a device's memory that values are written into, of one or more slots: with two,
// the next micro-batch is written while this one is read.
struct RegisterPlan {
  RegisterClass register_class = RegisterClass::kWorkspace;  // how long its contents are needed
  bool per_microbatch = true;  // it is written once a micro-batch; else once a step
  uint32_t slots = 1;          // values that it holds at a time
  uint64_t offset = 0;      // in the device's arena or, from arena_bytes on, in its host's memory;
                            // 64-byte aligned
  uint64_t slot_bytes = 0;  // 64-byte aligned
  friend bool operator==(const RegisterPlan&, const RegisterPlan&) = default;
};

// A tensor's place: `offset` bytes into the slot of a register. Unbound: reg == kNone.
struct OperandPlan {
  uint32_t reg = kNone;  // into DevicePlan::registers
  uint64_t offset = 0;   // in bytes
  friend bool operator==(const OperandPlan&, const OperandPlan&) = default;
};

// What an actor does when it fires, and what ActorPlan::target is.
enum class ActorKind : uint8_t {
  kKernel,      // target: unused
  kFeed,        // copies its tile of the step's fed tensor `target` (Plan::feeds) to output 0
  kFetch,       // copies input 0 to its place in the step's result `target` (Plan::fetches)
  kCollective,  // runs Plan::collectives[target], from input t to output t for each tensor t
  kSend,        // sends input 0 over Plan::transfers[target]
  kRecv,        // receives output 0 over Plan::transfers[target]
  kCopy,        // copies input 0 to output 0, one of them on the host; target: unused
};
// "kernel", "feed", ... for messages.
std::string_view Name(ActorKind kind);

// Moves by itself and completes later. Other actors run on the device's stream.
inline bool IsCommunication(ActorKind kind) {
  return kind == ActorKind::kCollective || kind == ActorKind::kSend || kind == ActorKind::kRecv;
}

// An actor of a device: it fires once in each instance of its phase.
struct ActorPlan {
  std::string name;                     // of the node or redistribution it came from
  ActorKind kind = ActorKind::kKernel;  // what it does
  uint32_t kernel = kNone;  // into Plan::kernels; of a feed or fetch: a KernelPlan whose op is
                            // "feed" or "fetch" and which holds the tile; of a copy: one whose op
                            // is "to_host" or "to_device" and which holds the tile on both sides
  uint32_t target = kNone;  // see ActorKind
  std::vector<OperandPlan> inputs;   // what it reads, in the operator's order
  std::vector<OperandPlan> outputs;  // what it writes, likewise
  uint64_t workspace_offset = 0;     // kernel scratch in the arena
  uint64_t workspace_bytes = 0;      // of that scratch memory
  friend bool operator==(const ActorPlan&, const ActorPlan&) = default;
};

// A channel between two actors of a device: see the top of this file for its counts.
struct ChannelPlan {
  uint32_t producer = 0;  // into DevicePlan::actors
  uint32_t consumer = 0;  // likewise
  uint32_t reg = kNone;   // what the token stands for; kNone: an ordering channel
  uint32_t produce = 1;   // tokens that the producer puts, and credits that it takes
  uint32_t consume = 1;   // tokens that the consumer takes, and credits that it gives back
  uint32_t capacity = 1;  // tokens and credits together
  uint32_t initial = 0;   // tokens at the start
  friend bool operator==(const ChannelPlan&, const ChannelPlan&) = default;
};

// What decides when a phase runs.
enum class Lane : uint8_t {
  kCompute,   // the stage's policy, one phase at a time
  kPerStep,   // the order of the phase list, one phase at a time
  kFloating,  // its gates alone
};

// Actors of a device that run together: see the top of this file.
struct PhasePlan {
  std::string name;                      // "F", "B", "update", "recv h3.y", ...
  PhaseKind kind = PhaseKind::kForward;  // what the policy takes it for
  Lane lane = Lane::kCompute;            // what decides when it runs
  bool per_microbatch = true;            // it runs once a micro-batch; else once a step
  uint32_t first_actor = 0;              // into DevicePlan::actors
  uint32_t num_actors = 0;               // from that one on
  double predicted_s = 0;                // that an instance takes
  uint32_t chunk = 0;                    // in the compute lane: of the model, see policy.h
  friend bool operator==(const PhasePlan&, const PhasePlan&) = default;
};

// What a logical device holds and runs.
struct DevicePlan {
  uint32_t stage = 0;                   // of the pipeline, into Plan::stages
  uint64_t arena_bytes = 0;             // of the device's memory
  uint64_t host_bytes = 0;              // of pinned memory of the host
  uint64_t state_bytes = 0;             // of arena_bytes
  uint64_t channel_bytes = 0;           // where channel registers lie
  uint64_t workspace_bytes = 0;         // where only workspace lies
  std::vector<RegisterPlan> registers;  // what its memory is divided into
  std::vector<ActorPlan> actors;        // phases are contiguous ranges, in the planned order
  std::vector<ChannelPlan> channels;    // between these actors
  std::vector<PhasePlan> phases;        // in the order of the per-step lane
  friend bool operator==(const DevicePlan&, const DevicePlan&) = default;
};

// Whether the register lies in the memory of the device's host. One without bytes lies nowhere.
inline bool IsOnHost(const DevicePlan& device, const RegisterPlan& reg) {
  return reg.offset >= device.arena_bytes && reg.slot_bytes > 0;
}

// A point-to-point channel between two devices.
struct TransferPlan {
  uint32_t channel = 0;        // tag; numbered together with collectives, dense from 0
  uint32_t source = 0;         // device that sends
  uint32_t destination = 0;    // device that receives
  uint64_t num_bytes = 0;      // of each message
  bool per_microbatch = true;  // a message a micro-batch; else one a step
  friend bool operator==(const TransferPlan&, const TransferPlan&) = default;
};

// The devices of a stage, and the order in which all of them run the phases of their compute lane.
struct StagePlan {
  std::vector<uint32_t> devices;  // indices into Plan::devices
  // Of one step; empty: the policy decides as the plan runs.
  std::vector<PhaseChoice> order = {};
  friend bool operator==(const StagePlan&, const StagePlan&) = default;
};

// A tensor that the user hands in each step.
struct FeedPlan {
  std::string name;  // of the input
  TensorType type;   // global
  friend bool operator==(const FeedPlan&, const FeedPlan&) = default;
};

// A tensor that the user gets back each step; assembled from the fetch actors' tiles.
struct FetchPlan {
  std::string name;         // of the value
  TensorType type;          // global
  uint32_t num_actors = 0;  // fetch firings a step that make it complete
  friend bool operator==(const FetchPlan&, const FetchPlan&) = default;
};

// Where a device holds a part of a state, or all of it.
struct StatePlacement {
  uint32_t device = 0;  // into Plan::devices
  uint32_t reg = 0;     // into its registers
  TilePlan tile;        // the part
  friend bool operator==(const StatePlacement&, const StatePlacement&) = default;
};

// A value that outlives the step.
struct StatePlan {
  std::string name;                        // of the parameter or state
  TensorType type;                         // global
  std::string init;                        // what it starts from: "zeros", "ones", "normal"
  double std = 0.02;                       // of "normal"
  uint32_t stream = 0;                     // of its random numbers (base/random.h)
  bool is_parameter = false;               // it is trained; else what an optimiser or a cache keeps
  std::vector<StatePlacement> placements;  // every device that holds a tile, replicas too
  friend bool operator==(const StatePlan&, const StatePlan&) = default;
};

// A value that a program was built from, such as {"train.batch", "16"}. Fingerprints decide whether
// two programs differ; settings say how, in messages.
struct ProgramSetting {
  std::string name;   // the key of a job
  std::string value;  // as text
  friend bool operator==(const ProgramSetting&, const ProgramSetting&) = default;
};

// The whole plan, of all devices. See the top of this file for how it runs.
struct Plan {
  std::string name;                             // of the program
  std::string strategy;                         // "dp=2,tp=2,pp=1" as planned
  std::string policy = "1f1b";                  // that made the stages' orders, or decides
  uint64_t graph_fingerprint = 0;               // of the program, see planner/compile.h
  std::vector<ProgramSetting> settings;         // if known
  uint32_t num_microbatches = 1;                // M
  uint32_t threads_per_device = 1;              // that kernels' scratch memory was planned for
  uint32_t num_channels = 0;                    // of transfers and collectives
  std::vector<DevicePlan> devices;              // logical devices, by index
  std::vector<StagePlan> stages;                // of the pipeline, first to last
  std::vector<KernelPlan> kernels;              // shared by actors
  std::vector<CollectiveSpec> collectives;      // in their global order
  std::vector<bool> collective_per_microbatch;  // sequence rate of each
  std::vector<TransferPlan> transfers;          // sends and receives name them
  std::vector<FeedPlan> feeds;                  // what each step is given
  std::vector<FetchPlan> fetches;               // what each step gives back
  std::vector<StatePlan> states;                // what outlives a step
  double predicted_step_s = 0;                  // time of a step
  std::vector<uint64_t> predicted_peak_bytes;   // a device each

  friend bool operator==(const Plan&, const Plan&) = default;
};

// 64-bit id of an actor: its device is the upper half.
inline uint64_t ActorId(uint32_t device, uint32_t actor) {
  return (uint64_t{device} << 32) | actor;
}
// The device of such an id.
inline uint32_t DeviceOfActor(uint64_t id) { return static_cast<uint32_t>(id >> 32); }

// The order in which collectives of one group start: for each actor of the device, the collective
// of the same group before it in its phase; kNone if there is none, and for other actors. REQUIRES:
// phases and collectives name what exists.
std::vector<uint32_t> PreviousOfGroups(const Plan& plan, uint32_t device);

// How often a step a phase runs.
inline uint32_t FiringsPerStep(const Plan& plan, const PhasePlan& phase) {
  return phase.per_microbatch ? plan.num_microbatches : 1;
}

// Tokens of a channel that stand for one slot of the register, where `tokens_per_step` pass through
// the channel: a register of a value made once a step is read M times before it is free. At
// least 1.
uint64_t TokensPerSlot(const Plan& plan, const RegisterPlan& reg, uint64_t tokens_per_step);

// Bytes of the device's memory where channel registers lie, which may share them.
uint64_t ChannelBytes(const DevicePlan& device);

// How large a plan is.
struct PlanCounts {
  uint64_t actors = 0;       // of all devices
  uint64_t channels = 0;     // within devices, plus transfers
  uint64_t collectives = 0;  // each counted once, not for each device
};
// Counts them.
PlanCounts Count(const Plan& plan);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_PLAN_H_
