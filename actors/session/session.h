// Runs a plan: all of its devices in this process, or wherever an engine of another kind has them
// (SessionOptions::start_engine).
//
//   ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::Start(plan, options));
//   ASSIGN_OR_RETURN(StepResult result, session->Run({{"tokens", tokens}}));
//   const Tensor* loss = result.Find("loss");
//
// Two or more steps can be under way: Submit hands one in, Wait takes its result.
//
// Errors. The first failure of a step is what its Wait returns: "actor h3.attn on device 2, step 7,
// micro-batch 1: ..."; OriginOf (error_origin.h) has the device, the step and in a cluster the
// rank. The step drains and the session goes on, but its states may have been updated on some
// devices and not on others: set them again (SetState) before trusting further steps. Steps that
// were under way behind it fail with it. A step that does not complete in time returns
// kDeadlineExceeded with what every device waits for; it and a policy's illegal choice end the
// session: further calls return the same status.
//
// Thread rule: thread-safe; Fetch, SetState, KeepStates and TakeStates want no step under way,
// TakeTrace none or Stop. Invariants: every wait is bounded by the timeout, save that Stop waits
// for a kernel that runs. Sessions share nothing: many can run one after another or at the same
// time.

#ifndef PENSTOCK_ACTORS_SESSION_SESSION_H_
#define PENSTOCK_ACTORS_SESSION_SESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "actors/session/engine.h"
#include "actors/session/kept_states.h"
#include "actors/session/local_engine.h"
#include "base/device.h"
#include "base/tensor.h"
#include "kernels/checked/checked_kernels.h"
#include "kernels/device_kernels.h"
#include "kernels/kernel.h"
#include "planner/plan/plan.h"
#include "planner/policy/policy.h"
#include "transport/stream_collective.h"

namespace caf {
class actor_system;
}  // namespace caf

namespace penstock::actors {

class Session;
struct SessionOptions;

// Loads `plan` and connects its devices to `observer`, both of which outlive the engine.
using EngineFactory = std::function<absl::StatusOr<std::unique_ptr<Engine>>(
    const planner::Plan& plan, EngineObserver* observer, const SessionOptions& options)>;

// How a session runs its plan.
struct SessionOptions {
  int threads_per_device = 1;                  // of kernels
  uint64_t seed = 0;                           // of random operators and initial values
  absl::Duration timeout = absl::Minutes(10);  // of a step, and of loading
  // REQUIRES: outlives the session.
  const kernels::KernelRegistry* kernels = nullptr;
  // Instead of `kernels`, for devices of these kinds.
  kernels::KernelsByKind kernels_by_kind = {};
  const planner::PolicyRegistry* policies = nullptr;  // null: BuiltinPolicies()
  DeviceFactory create_device = nullptr;              // null: CreateCpuDevice
  // Null: the host runs all collectives and messages. Otherwise the devices do, where the plan has
  // an order in which they can (stream_launches.h): all of them are asynchronous.
  transport::CommunicatorFactory create_communicator = nullptr;
  uint64_t max_memory_bytes = 0;  // of all arenas; 0: the machine's memory
  bool trace = false;             // whether events are recorded, for TakeTrace
  // Traces record the first step and every so many steps after it. REQUIRES: at least 1.
  int64_t trace_every = 1;
  // Whether GPUs launch steady phases as CUDA graphs. Results are the same.
  bool captures_graphs = true;
  // Fail a step whose kernels make a NaN or an infinity out of finite operands; the error names the
  // first such actor. For finding where a NaN arises: steps take a little longer.
  kernels::ResultCheck check_results = kernels::ResultCheck::kNone;
  // What the first step counts as, for random operators, in messages and in traces: a session that
  // goes on where another has ended, from its states, draws what that would have drawn.
  int64_t first_step = 0;
  // For tests: actors of a phase fire in any order that the plan allows; 0: the planned order of
  // those that are ready.
  uint64_t firing_seed = 0;
  size_t trace_capacity = size_t{1} << 18;  // events a device, the last ones
  // What the states of the plan start from, instead of their initial values: each has to be there.
  // Those that lie in the same tiles in the same processes do not leave them.
  std::shared_ptr<const KeptStates> states;
  // Whether memory is set aside for a copy of all states, such as KeepStates makes for checkpoints:
  // without it the session does not start.
  bool reserves_state_copy = false;
  uint32_t num_processes = 0;            // of a cluster, the first ones; 0: all
  EngineFactory start_engine = nullptr;  // null: all devices in this process
  // A session whose memory this one uses, where it can (Session::shares_memory): both then have one
  // copy of the states, which stay as they are there: `states` is not used. Where it cannot, its
  // memory counts beside that one's. REQUIRES: steps of the two never run at the same time.
  const Session* memory_of = nullptr;  // used by Start only
};

// What KeepStates keeps: the parameters of a model, what else outlives a step, such as the moments
// of an optimiser or the keys and values of earlier tokens, or both.
enum class StateSelection { kParameters, kOthers, kAll };

// Feeds by name.
using Feeds = absl::flat_hash_map<std::string, Tensor>;

// What a step has computed, and how long that took.
struct StepResult {
  int64_t step = 0;                                     // as Submit has numbered it
  int64_t wall_ns = 0;                                  // from Submit to completion
  int64_t end_ns = 0;                                   // when it was complete, on SteadyClock
  std::vector<std::pair<std::string, Tensor>> fetches;  // in the plan's order
  std::vector<DeviceStepReport> devices;                // busy and waiting time of each

  const Tensor* Find(std::string_view name) const;  // null when there is none
};

// A plan that is loaded on its devices, and runs steps.
class Session {
 public:
  // Loads the plan, which may take long, and sets its states to what the options say. An error of
  // the plan or the options, or of a device that cannot be started.
  static absl::StatusOr<std::unique_ptr<Session>> Start(planner::Plan plan,
                                                        const SessionOptions& options);
  ~Session();  // stops
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // As it was loaded.
  const planner::Plan& plan() const;

  // Whether it uses the memory of SessionOptions::memory_of: the devices of both are CPUs of this
  // process, the plans have the same states in the same places, this one's needs no more memory,
  // and neither keeps anything on the host nor shares with a third. The memory goes with the last
  // of the two.
  bool shares_memory() const;

  // Hands in a step and waits for it.
  absl::StatusOr<StepResult> Run(const Feeds& feeds);

  // Returns the step's number. The feeds' memory must not change until the step is done.
  // kResourceExhausted where kMaxStepsInFlight steps have not been waited for.
  absl::StatusOr<int64_t> Submit(const Feeds& feeds);

  // The result of a submitted step, once.
  absl::StatusOr<StepResult> Wait(int64_t step);

  // The value of a state, gathered from its placements. kNotFound: there is no such state.
  absl::StatusOr<Tensor> Fetch(std::string_view state) const;
  // Sets it in all of them. kInvalidArgument: the value is of another type.
  absl::Status SetState(std::string_view state, const Tensor& value);

  // A copy of states in the processes of their devices, which outlives the session. No step under
  // way. See kept_states.h for the memory that it takes.
  absl::StatusOr<std::shared_ptr<const KeptStates>> KeepStates(StateSelection selection) const;

  // Sets all states of the plan to what was kept, as SessionOptions::states does at the start: for
  // a session that stays open while others go on. No step under way. After an error nothing can be
  // said of the states.
  absl::Status TakeStates(const KeptStates& kept);
  // The same of those states of the plan that were kept; the others stay as they are.
  absl::Status TakeKeptStates(const KeptStates& kept);

  // Events recorded since the start or the last call, of all devices, of each device the last
  // options.trace_capacity, in times of this process's SteadyClock; empty without options.trace.
  // After Stop, those of devices in this process.
  std::vector<TraceEvent> TakeTrace();

  // Looks at the devices, at any time; it may outlive the session.
  std::shared_ptr<Inspector> inspector() const;

  // Joins all threads. Steps under way are abandoned.
  void Stop();

  // The engine's, for actors that use the session.
  caf::actor_system& actor_system() const;

 private:
  class Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_SESSION_SESSION_H_
