// The draft of one device's program: actors in phases and the places in memory that they share.
// Turned into channels, registers and arena offsets by Finish().
//
// A *buffer* is one place in memory with its writers and readers; values that share bytes (a
// reshape, a sum reduced in place, a parameter and its next version) share a buffer. A buffer may
// be a part of another: gradients that are reduced together lie side by side in one bucket, and the
// part of a parameter that a device updates lies in the parameter.
//
// Thread rule: one thread.

#ifndef PENSTOCK_PLANNER_LOWER_DEVICE_PROGRAM_H_
#define PENSTOCK_PLANNER_LOWER_DEVICE_PROGRAM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "planner/lower/schedule_times.h"
#include "planner/plan/folded_plan.h"
#include "planner/plan/plan.h"

namespace penstock::planner {

// What a buffer holds when a step begins, and how often it is made.
struct Buffer {
  uint64_t bytes = 0;
  bool per_microbatch = true;
  int state = -1;         // index of the plan's state that lives here
  bool on_host = false;   // in the memory of the device's host
  bool received = false;  // written by another device
  // Of a received one: the phase that makes it there, if that is of a compute lane.
  std::optional<StagePhase> source = {};
  int whole = -1;  // the buffer of which this is a part, from byte `offset` on
  uint64_t offset = 0;
  uint32_t view = kNone;  // FoldedPlan::views, where `offset` depends on the device
};

struct DraftActor {
  ActorPlan plan;           // inputs and outputs empty; Finish fills them in
  int id = -1;              // of those of its phase, in the order in which they were added
  int after = -1;           // of an actor before it in the phase: starts when that has completed
  std::vector<int> inputs;  // buffers; -1: unbound
  std::vector<int> outputs;
  uint64_t scratch_bytes = 0;
  double predicted_s = 0;

  // Runs beside the device's stream and completes later.
  bool is_async() const {
    return plan.kind == ActorKind::kCollective || plan.kind == ActorKind::kSend ||
           plan.kind == ActorKind::kRecv;
  }
};

struct DraftPhase {
  PhasePlan plan;
  std::vector<DraftActor> actors;
  std::vector<std::pair<int, int>> order = {};  // positions: the second starts after the first
};

class DeviceProgram {
 public:
  int AddBuffer(Buffer buffer);
  Buffer& buffer(int index) { return buffers_[index]; }

  // Gives `whole` room for one more part at its end.
  int AddPart(int whole, uint64_t bytes);

  // Bytes of `buffer`, or of the buffer that it is a part of, by another name: its part `view`,
  // which begins at `offset` on this device.
  int AddView(int buffer, uint32_t view, uint64_t offset, uint64_t bytes);

  // Phases stand in the order in which they are added.
  int AddPhase(PhasePlan plan);
  DraftPhase& phase(int index) { return phases_[index]; }
  // Puts the actor at the end of a phase.
  void AddActor(int phase, DraftActor actor);
  int num_phases() const { return static_cast<int>(phases_.size()); }

  // Reorders the actors of phases that compute, and lets at most so many bytes wait in a phase for
  // communication that nothing there reads: see phase_order.h.
  void OrderCommunication(int64_t waiting_bytes);

  // What decides how many instances of a channel may be in flight at once.
  struct Credits {
    int microbatches = 1;                  // M
    int stage = 0;                         // of this device
    const ScheduleTimes* times = nullptr;  // null: stages decide as the plan runs
    int activations = 1;                   // then: what may be between the phases of a stage
    std::vector<PhaseChoice> order = {};   // of the stage, if it is decided
  };

  // Lays out memory and derives the channels. `state_registers[i]` gets the register of the buffer
  // whose state is i, `views` the operands that are views.
  DevicePlan Finish(const Credits& credits, std::vector<uint32_t>* state_registers,
                    std::vector<ViewOperand>* views) const;

 private:
  std::vector<Buffer> buffers_;
  std::vector<DraftPhase> phases_;
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_LOWER_DEVICE_PROGRAM_H_
