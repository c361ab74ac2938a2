// The choices of a stage whose policy decides as it goes and whose devices are in several
// processes. One device decides for all: the controller is in its process, and has a StageLink for
// each device of the stage (stage.h). The links of devices of other processes are served by the
// deciding device's executor, which exchanges messages with theirs:
//
//   deciding device                                             device of another process
//     controller --> ring of its StageLink --> choices  ----->  ring of its own StageLink
//     controller <-- counts of its StageLink <-----  counts --  counts of its own StageLink
//
// A receive is always posted on either side. A device posts the next one for choices when its ring
// has room for all that a message can hold; a message is sent when the last one has arrived. So
// nothing piles up. Counts are sent whenever they have changed; those in between are left out.
//
// Thread rule: the executor's thread; of a StageLink it touches the side of the device.
// Invariants: nothing is allocated after construction; what a message says is checked.

#ifndef PENSTOCK_ACTORS_ENGINE_STAGE_EXCHANGE_H_
#define PENSTOCK_ACTORS_ENGINE_STAGE_EXCHANGE_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "actors/engine/device_communication.h"
#include "actors/engine/stage.h"
#include "planner/plan/plan.h"

namespace penstock::actors {

// Channels of the transport behind those of the plan: of choices and of counts.
inline constexpr uint32_t kNumStageChannels = 2;
// The channels that a transport for the plan needs; those of stages come last.
inline uint32_t NumTransportChannels(const planner::Plan& plan) {
  return plan.num_channels + kNumStageChannels;
}

// The device that decides for the others of its stage. REQUIRES: the stage has devices.
uint32_t DecidingDevice(const planner::StagePlan& stage);

// With whom the device exchanges messages if its stage has no order in the plan and is in several
// processes: the deciding device with all others, these with it alone. REQUIRES: the device's stage
// exists.
std::vector<uint32_t> StagePeersOf(const planner::Plan& plan, uint32_t device);

// A device of the stage in another process.
struct StagePeer {
  uint32_t device = 0;        // its index in the plan
  StageLink* link = nullptr;  // of the peer, at the deciding device; elsewhere null
};

// One device's end of the exchange, whether it decides or not.
class StageExchange {
 public:
  // `own` is the device's link. Both sides have to have their counts (StageLink::counts).
  StageExchange(const planner::Plan& plan, uint32_t device, StageLink* own,
                std::vector<StagePeer> peers);

  // Adds its operations to those of the device.
  void AddTo(std::vector<Comm>* comms);
  // Whether there is anybody to exchange messages with.
  bool has_peers() const { return !lines_.empty(); }
  // Whether an operation of the device, by its index after AddTo, is one of the exchange.
  bool Owns(uint32_t comm) const { return !lines_.empty() && comm >= first_comm_; }

  // Starts what can be; returns whether it did. After a failure it starts nothing more.
  bool Poll(DeviceCommunication* communication);
  // An operation has completed. Returns an error if the stage cannot go on.
  absl::Status Finish(uint32_t comm, DeviceCommunication* communication);

  // Starts and completions of its operations, two a peer of StagePeersOf, in that order: choices,
  // counts. Zeros of peers in the same process. Any thread.
  void AppendCounts(std::vector<uint64_t>* counts) const;

 private:
  static constexpr size_t kChoicesPerMessage = 16;
  static_assert(kChoicesPerMessage <= StageLink::kWindow);

  struct ChoicesMessage {
    uint64_t num_choices = 0;
    PhaseDecision choices[kChoicesPerMessage];
  };
  // Of each type of phase.
  struct CountsMessage {
    int64_t completed = 0;
    int64_t available = 0;
    int64_t duration_ns = 0;
    friend bool operator==(const CountsMessage&, const CountsMessage&) = default;
  };

  // One direction to or from a peer.
  struct Line {
    uint32_t peer = 0;
    bool has_choices = false;  // or counts
    bool is_send = false;
    StageLink* link = nullptr;  // whose choices or counts these are, on this side
    bool is_started = false;
    bool is_counted = false;  // its start, of a receive that ended without a message too
    uint64_t sequence = 0;    // of the next message, or the one under way
    void* message = nullptr;  // in the operation, as long as the device's communication
    size_t ordinal = 0;       // among counts_
  };

  bool CanStart(const Line& line);
  bool FillChoices(const Line& line);
  bool FillCounts(const Line& line);
  absl::Status TakeChoices(const Line& line);
  absl::Status TakeCounts(const Line& line);
  size_t MessageBytes(const Line& line) const;
  absl::Status Malformed(const Line& line, const char* what) const;
  void Count(const Line& line);

  const uint32_t device_;
  const uint32_t num_channels_;  // of the plan
  const uint32_t num_microbatches_;
  const size_t num_types_;
  std::vector<Line> lines_;
  uint32_t first_comm_ = 0;
  bool has_failed_ = false;
  std::vector<std::atomic<uint64_t>> counts_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_STAGE_EXCHANGE_H_
