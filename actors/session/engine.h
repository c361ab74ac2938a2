// What runs the devices of a plan for a Session: those of this process (local_engine.h), or nodes
// in other processes (cluster.h).
//
// Thread rule: Submit and inspector are thread-safe with the others; ReadState, WriteState,
// KeepStates, TakeStates and TakeTrace want no step under way; Describe, Stop and those are called
// by one thread at a time. Observers are called from threads of the engine. Nothing is called after
// Stop but TakeTrace, actor_system and the destructor. Invariants: every submitted step is reported
// by each of its devices once, in order, unless OnFailure was called or the engine was stopped;
// every wait is bounded.

#ifndef PENSTOCK_ACTORS_SESSION_ENGINE_H_
#define PENSTOCK_ACTORS_SESSION_ENGINE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "actors/engine/executor.h"
#include "actors/engine/inspector.h"
#include "actors/engine/wait_description.h"
#include "actors/session/kept_states.h"
#include "base/tensor.h"
#include "planner/plan/plan.h"

namespace caf {
class actor_system;
}  // namespace caf

namespace penstock::actors {

// Told what happens to the steps of an engine.
class EngineObserver : public ExecutorObserver {
 public:
  // An engine with a part of a plan's devices: they stand still, and the policy of a stage declines
  // what could run. Called again while that lasts; whether the plan has stalled, others know.
  virtual void OnDeclined() {}
};

// A plan that is loaded on its devices. See the top of this file.
class Engine {
 public:
  virtual ~Engine() = default;

  // The fetches of `buffers` are complete when the last device has reported the step.
  virtual void Submit(int64_t step, const std::shared_ptr<StepBuffers>& buffers) = 0;

  // What every device and stage waits for, an entry each; those that do not answer in time are
  // named.
  virtual std::vector<WaitDescription> Describe(absl::Duration timeout) = 0;

  // Looks at the devices without disturbing them; it may outlive the engine.
  virtual std::shared_ptr<Inspector> inspector() const = 0;

  // Gathers a state from its placements. `value` has the state's type.
  virtual absl::Status ReadState(const planner::StatePlan& state, Tensor* value) = 0;
  // Sets a state in all of its placements. `value` has the state's type.
  virtual absl::Status WriteState(const planner::StatePlan& state, const Tensor& value) = 0;

  // A copy of the states (indices of the plan) in the processes of their devices.
  virtual absl::StatusOr<std::shared_ptr<const KeptStates>> KeepStates(
      const std::vector<uint32_t>& states) = 0;
  // Fills the states from copies that the processes of their devices have kept. Returns those
  // (indices of the plan) with a tile that was not kept where it is needed: nothing can be said of
  // their values.
  virtual absl::StatusOr<std::vector<uint32_t>> TakeStates(const KeptStates& kept) = 0;

  // What the executors have recorded since the last call.
  virtual absl::StatusOr<std::vector<TraceEvent>> TakeTrace() = 0;

  // Ends all communication and joins all threads. A kernel that runs is waited for.
  virtual void Stop() = 0;

  // Where actors around the engine live, such as those that feed its steps (run_steps.h). Also
  // after Stop.
  virtual caf::actor_system& actor_system() = 0;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_SESSION_ENGINE_H_
