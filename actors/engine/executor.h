// The engine of one device: hosts the device's actors and fires them as plan.h says a plan runs.
// A plain class that moves only when polled, so that tests can drive it step by step and a CAF
// actor can host it on a thread.
//
// Hot path: of the actors of a phase that are ready, communication starts at once, and of the
// others the first in the planned order fires. Firing one reads one packed record, runs its kernel
// on the stream of its lane, and decrements the counters of its consumers. No look-up, no
// allocation, no lock.
//
// Asynchronous devices. Kernels and copies are launched ahead of what runs: as far as the device's
// memory goes, streams order everything, so a token is added when its producer has been launched,
// and a phase starts while those before it still run. A phase with channels to another lane first
// makes its stream wait for what that lane has launched. The host waits for the device only where
// something leaves it: before a communication, whose bytes go through host memory
// (host_staging.h), and for the completion of phase instances, which a mark in the stream tells
// (lane_stream.h). kLaunchAhead bounds how far a lane runs ahead. A device may also run its
// collectives itself, and what it sends and receives (transport/stream_collective.h): then streams
// wait for other devices, so acts are launched in the planned order, phases follow each other by
// instances (PhaseSource), and a phase that comes to such an act waits with its launch until it is
// its turn (planner/plan/launch_order.h).
//
// Phases of an asynchronous device whose acts are kernels and copies alone are captured into graphs
// and launched by one call (phase_graph.h).
//
// Errors. A kernel that fails poisons its step on this device: no kernel, feed or fetch of the step
// runs from then on, its state updates included, but tokens still flow; sends and collectives carry
// kErrorFlag, and a device that receives it poisons its step too. So every step drains. Steps
// already submitted behind a poisoned one are poisoned with it, as the state they read may lack its
// update. On an asynchronous device a failure is known later; the stream itself then skips what
// follows, and so do streams that wait for it, until the failed steps have drained.
//
// Thread rule: the owner's thread, except where a member says more.
// Invariants: instances of a phase run in order; a step completes when all its instances have, and
// steps complete in order.

#ifndef PENSTOCK_ACTORS_ENGINE_EXECUTOR_H_
#define PENSTOCK_ACTORS_ENGINE_EXECUTOR_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "actors/engine/device_communication.h"
#include "actors/engine/device_snapshot.h"
#include "actors/engine/host_staging.h"
#include "actors/engine/idle_time.h"
#include "actors/engine/lane_stream.h"
#include "actors/engine/link.h"
#include "actors/engine/phase_graph.h"
#include "actors/engine/ready_set.h"
#include "actors/engine/stage.h"
#include "actors/engine/stage_exchange.h"
#include "actors/engine/trace_ring.h"
#include "base/device.h"
#include "base/tensor.h"
#include "planner/plan/plan.h"

namespace penstock::actors {

// Steps that may be submitted and not completed; more have to wait.
inline constexpr int64_t kMaxStepsInFlight = 8;

// What a step reads from and writes to, in the plan's order of feeds and fetches. Shared by all
// devices, each writing its own tiles of the fetches.
struct StepBuffers {
  std::vector<Tensor> feeds;    // by feed, whole tensors
  std::vector<Tensor> fetches;  // by fetch, likewise
};

// One device's part of a step that has completed.
struct DeviceStepReport {
  uint32_t device = 0;       // its index in the plan
  int64_t step = 0;          // counted from 0 in the session
  bool is_poisoned = false;  // it has failed: the fetches and states of the step mean nothing
  int64_t wall_ns = 0;       // from the completion of the step before, or from submission if later
  int64_t wait_ns = 0;       // of wall_ns, with nothing to fire or without a core to run on
};

// Told on the executor's thread.
class ExecutorObserver {
 public:
  virtual ~ExecutorObserver() = default;
  // The device has completed its part of a step. Steps come in order.
  virtual void OnStepDone(const DeviceStepReport& report) = 0;
  // The first error of a step on a device.
  virtual void OnError(uint32_t device, int64_t step, const absl::Status& status) = 0;
  // The device cannot go on; called once or more, the first status is the cause.
  virtual void OnFailure(const absl::Status& status) = 0;
};

// What a session chooses for all its executors.
struct ExecutorOptions {
  uint64_t seed = 0;             // of random draws: KernelArgs::seed
  uint32_t generation = 0;       // of the transport's tags
  uint32_t acts_per_poll = 256;  // of one phase, before others get a turn
  size_t trace_capacity = 0;     // events, the last ones; 0: no trace
  int64_t trace_every = 1;       // steps: 0, trace_every, 2 * trace_every, ... are recorded
  int64_t first_step = 0;        // what step 0 counts as: see SessionOptions
  bool captures_graphs = true;   // of steady phases: see SessionOptions
  // For tests: picks any actor that is ready; 0: the first. Ignored where the device runs
  // communication itself, and in graphs.
  uint64_t firing_seed = 0;
};

// What an executor works with; all of it outlives the executor.
struct ExecutorParts {
  const planner::Plan* plan = nullptr;           // CheckPlan(*plan) is OK
  uint32_t device_index = 0;                     // of the device, in the plan
  LinkTarget target;                             // of Link, without `streams`
  DeviceCommunication* communication = nullptr;  // of this device, not loaded yet
  StageLink* stage = nullptr;                    // the executor's side of it is used here
  std::vector<StagePeer> stage_peers = {};       // see StageExchange
  ExecutorObserver* observer = nullptr;          // told of steps and errors
  const Clock* clock = nullptr;                  // of idle times, durations and traces
};

// Runs one device's part of a plan: fires actors as tokens and credits allow.
class DeviceExecutor {
 public:
  // Links the device's part of the plan. Errors: those of Link; kResourceExhausted if there is no
  // memory for staging. REQUIRES: all parts are set.
  static absl::StatusOr<std::unique_ptr<DeviceExecutor>> Create(const ExecutorParts& parts,
                                                                const ExecutorOptions& options);
  ~DeviceExecutor();
  DeviceExecutor(const DeviceExecutor&) = delete;
  DeviceExecutor& operator=(const DeviceExecutor&) = delete;

  // Steps are submitted in order from 0. REQUIRES: fewer than kMaxStepsInFlight are under way.
  void SubmitStep(int64_t step, std::shared_ptr<StepBuffers> buffers);

  // Where executors outnumber the cores: time without a core counts as waiting.
  void set_counts_cpu_time(bool counts) { counts_cpu_time_ = counts; }

  // The host memory that communication of an asynchronous device reads and writes; null of others.
  std::shared_ptr<const Memory> staging_memory() const {
    return staging_ == nullptr ? nullptr : staging_->memory();
  }

  // One round: what streams and communication have completed is taken, and what is ready fires;
  // with nothing to fire, communication advances here. Returns whether anything happened.
  bool Poll();

  // The owner is about to sleep unless one more Poll finds something, until it is woken or the
  // descriptor that this returns is readable; -1: there is none.
  int PrepareSleep() { return communication_.PrepareSleep(); }
  // The owner is awake again.
  void EndSleep() { communication_.EndSleep(); }

  // True while work on asynchronous streams is under way: it completes without calling anybody.
  bool has_pending_events() const {
    if (is_synchronous_) return false;
    uint32_t count = staging_->num_pending() + num_stream_comms_running_;
    for (const LaneStream* stream : all_streams_) count += stream->num_pending();
    return count > 0;
  }

  // Ends all communication; the executor is not polled afterwards.
  void Cancel();

  // Appends the starts and completions of each communicating actor, in their order: odd while it
  // is under way. Any thread; rounds of Poll that the caller knows to have ended are counted.
  void AppendCommunications(std::vector<uint64_t>* counts) const;

  // What is stuck and what it misses; empty when no step is under way.
  std::vector<DeviceWait> Waits() const;
  // The same, a line each.
  std::vector<std::string> Describe() const;

  // What the device does, without what it waits for. Any thread.
  DeviceSnapshot Snapshot() const;

  // Of an asynchronous device: how many phases are launched as graphs, and why others are not;
  // empty of others. Any thread.
  std::string DescribeGraphs() const ABSL_LOCKS_EXCLUDED(graph_mutex_);

  // "is in actor 'h3.attn'", or that it is in none. Any thread.
  std::string DescribeRunningActor() const;

  // The last events recorded so far, at most trace_capacity, by their ends; begins anew.
  std::vector<TraceEvent> TakeTrace() { return trace_.Take(); }

 private:
  // Phase instances of a lane that may be launched and not complete, where phases of a lane run one
  // at a time: enough for the device never to wait for the host.
  static constexpr uint32_t kLaunchAhead = 4;

  // How often the executor asks whether communication on streams has failed while it waits for it,
  // and after how many polls it looks at the clock.
  static constexpr int64_t kCheckNs = 2'000'000;
  static constexpr uint32_t kPollsPerCheck = 64;

  // Instances of a phase whose acts are measured (Actor::act_ns): the first two, as the first one
  // finds cold caches, and then one in so many, as a look at the clock takes as long as a short
  // act.
  static constexpr int64_t kTimedInstances = 2;
  static constexpr int64_t kTimedOneIn = 32;

  // What changes of a phase while it runs; beside its Phase.
  struct Progress {
    int64_t next_instance = 0;
    int64_t step = 0;
    int64_t microbatch = 0;
    int64_t begin_ns = 0;
    uint64_t first_launch = 0;   // KernelArgs::launch of the device's actor 0
    Stream* stream = nullptr;    // of its lane
    uint32_t remaining = 0;      // actors that have not fired
    uint32_t first_ready = 0;    // no actor before it is ready
    uint32_t outstanding = 0;    // started communication still to come
    uint32_t num_launched = 0;   // instances that have been launched and are not complete
    uint32_t next_in_order = 0;  // where the device runs communication itself: see TakeReady
    bool is_running = false;
    bool is_timed = false;   // its acts are measured
    bool is_queued = false;  // in open_floating_
  };

  struct StepRecord {
    int64_t step = -1;
    uint64_t remaining = 0;  // phase instances
    bool is_poisoned = false;
    bool has_error = false;
    int64_t begin_ns = 0;
    std::shared_ptr<StepBuffers> buffers;
  };

  using LaneStreams = std::array<std::unique_ptr<LaneStream>, kNumLanes>;  // by Lane

  DeviceExecutor(const ExecutorParts& parts, const ExecutorOptions& options, LinkedDevice linked,
                 LaneStreams streams, std::unique_ptr<HostStaging> staging);

  bool PollOnce();
  void EndIdle() {
    if (idle_.is_idle()) idle_.End(clock_->NowNs());
  }
  bool PollStreams();
  bool PollStreamComms();
  void CheckStreamComms();
  void EndAfter(const LaneStream::Mark& run, const absl::Status& status);
  bool TakeReadyComms();
  bool TakeCompletions();
  bool DriveCommunication();
  bool PollExchange();
  bool HasOthersToServe() const;
  void ServeOthers();
  bool PollLanes();
  bool PollFloating();
  bool PollPerStepLane();
  bool PollComputeLane();
  void ReportAvailable();

  void ReserveMarks(Device& device);
  uint32_t NumMarks(uint32_t phase) const;
  uint32_t NumPhaseMarks() const { return is_tracing_ ? 2 : 1; }  // where it began, and its end
  uint32_t NumActMarks(uint32_t phase) const;
  bool HasRoom(uint32_t phase) const { return is_synchronous_ || HasStreamRoom(phase); }
  bool HasStreamRoom(uint32_t phase) const;
  bool CanStart(uint32_t phase) const;
  void Start(uint32_t phase);
  bool Advance(uint32_t phase);
  uint32_t TakeReady(uint32_t phase);
  void FinishIfDone(uint32_t phase);
  void FinishLaunch(uint32_t phase);
  void Complete(const LaneStream::Mark& instance, int64_t now);
  void CountComputed(uint32_t type, int64_t duration_ns);
  void CompleteStep(StepRecord& record);
  void QueueIfOpen(uint32_t phase);

  void PlanGraphs();
  bool LaunchGraph(uint32_t phase);
  absl::Status Capture(uint32_t phase, PhaseGraph::Variant* variant);

  // Runs the actor, or gives it to its stream; TryExecute turns what its kernel throws into a
  // status.
  absl::Status Execute(uint32_t actor, uint32_t phase);
  absl::Status TryExecute(uint32_t actor, uint32_t phase);
  std::byte* FillFeed(const Actor& actor, const Phase& phase, const Progress& progress);
  void CopyFeed(const Actor& actor, const Phase& phase, const Progress& progress);
  void CopyFetch(const Actor& actor, const Phase& phase, const Progress& progress);
  void DeliverFetches(const LaneStream::Mark& instance);
  void Fire(uint32_t actor, uint32_t phase);
  void Join(const Actor& actor, LaneStream* stream);
  // Whether it is the turn of the phase, which is at communication of the device's streams.
  bool MayLaunch(uint32_t phase) const { return launches_[launch_run_].phase == phase; }
  void LaunchStreamComm(uint32_t actor, uint32_t phase);
  void JoinStreamComms(const Phase& phase);
  void LaunchCopy(uint32_t actor, uint32_t phase);
  void FollowCopies(planner::Lane lane, LaneStream* stream);
  bool PollCopies();
  void FollowSources(uint32_t phase);
  void Send(const uint32_t* messages, uint32_t count, Progress* progress);
  void StartReadyComms();
  void StartComm(uint32_t actor, uint32_t phase, bool hands_over);
  void StartTransport(CommStart* start, bool hands_over);
  bool IsLongActNext();
  void FinishComm(Comm& comm);
  void ShareEndpoint(uint32_t actor);
  void AddTokens(const Actor& actor);
  void CountCommunication(uint32_t ordinal);
  void BeginIdle();
  void CountSteps() {
    num_submitted_.store(submitted_, std::memory_order_relaxed);
    num_completed_.store(completed_, std::memory_order_relaxed);
  }

  StepRecord& RecordOf(int64_t step) { return steps_[step % kMaxStepsInFlight]; }
  const StepRecord& RecordOf(int64_t step) const { return steps_[step % kMaxStepsInFlight]; }
  void ResetStreams();
  void Poison(int64_t step);
  void Fail(const LaneStream::Mark& where, const absl::Status& status);
  void FailStream(const StreamError& error, const LaneStream::Mark& where);
  LaneStream& StreamOf(const Phase& phase) const {
    return phase.floating_stream == planner::kNone ? *streams_[static_cast<size_t>(phase.lane)]
                                                   : *floating_streams_[phase.floating_stream];
  }
  LaneStream::Mark MarkOf(uint32_t actor, uint32_t phase, int64_t begin_ns) const {
    const Progress& progress = progress_[phase];
    return {actor, phase, progress.step, progress.microbatch, begin_ns, false};
  }
  int64_t InstanceOf(int64_t step, int64_t microbatch, bool per_microbatch) const {
    return per_microbatch ? step * num_microbatches_ + microbatch : step;
  }
  bool IsTraced(int64_t step) const {
    return is_tracing_ && (options_.trace_every <= 1 || step % options_.trace_every == 0);
  }
  void Trace(const LaneStream::Mark& what, int64_t end_ns);
  uint32_t PhaseOf(uint32_t actor) const;
  std::string DescribeMark(const LaneStream::Mark& mark) const;
  absl::Status WithMark(const LaneStream::Mark& mark, const absl::Status& status) const;
  std::string NameOf(uint32_t actor) const;
  std::string InstanceName(uint32_t phase) const;
  std::string InstanceName(uint32_t phase, int64_t step, int64_t microbatch) const;
  int64_t MicrobatchesDone(int64_t steps_done) const;
  ChannelUse ChannelsInUse() const;
  void AddMissing(uint32_t phase, std::string line, std::vector<DeviceWait>* waits) const;
  std::string DescribeComm(const Comm& comm) const;

  const planner::Plan& plan_;
  const planner::DevicePlan& device_plan_;
  const uint32_t device_index_;
  const int64_t num_microbatches_;
  const ExecutorOptions options_;
  DeviceCommunication& communication_;
  StageLink* const stage_;
  ExecutorObserver* const observer_;
  const Clock* const clock_;

  // Packed state of the hot path.
  std::vector<Actor> actors_;
  std::vector<uint32_t> needs_;
  std::vector<uint32_t> pending_;  // messages still to come, of actors of running phases
  ReadySet ready_;                 // of those, the ones that run on streams
  ReadySet ready_at_start_;
  std::vector<uint32_t> starts_;
  std::vector<uint32_t> ready_comms_;  // to be started, in order
  std::vector<uint32_t> messages_;
  std::vector<Increment> increments_;
  std::vector<TokenCounter> counters_;
  std::vector<Phase> phases_;
  std::vector<Progress> progress_;
  std::vector<void*> args_;
  std::vector<SlotGroup> groups_;
  std::vector<Patch> patches_;
  std::vector<HostCopy> copies_;
  std::vector<MemoryCopy> memory_copies_;
  std::vector<uint32_t> joins_;
  std::vector<PhaseSource> sources_;
  std::vector<uint32_t> fetches_;  // actors
  std::vector<TokenCounterInfo> counter_infos_;
  std::vector<std::unique_ptr<kernels::Kernel>> kernels_;
  std::unique_ptr<StageExchange> exchange_;  // null: the device has no peers in its stage
  absl::Status exchange_failure_;            // not reported yet

  const bool is_synchronous_;
  bool is_tracing_ = false;
  std::unique_ptr<HostStaging> staging_;                       // of an asynchronous device
  std::vector<PhaseGraph> graphs_;                             // likewise, a phase each
  LaneStreams streams_;                                        // their work uses what is above
  std::vector<std::unique_ptr<LaneStream>> floating_streams_;  // likewise
  std::vector<LaneStream*> all_streams_;                       // those that phases run on
  // With sources_: the mark at the end of each phase instance, a ring a phase.
  struct InstanceEnd {
    int64_t instance = -1;
    uint64_t mark = 0;
  };
  std::vector<std::vector<InstanceEnd>> instance_ends_;
  std::vector<StreamComm> stream_comms_;
  std::vector<CopyStream> copy_streams_;
  std::vector<planner::LaunchRun> launches_;           // see LinkedDevice
  uint32_t launch_run_ = 0;                            // whose turn it is, in launches_
  uint32_t num_launched_ = 0;                          // in that turn
  uint32_t num_stream_comms_running_ = 0;              // runs launched and not noticed to be over
  uint32_t num_stream_collectives_running_ = 0;        // those of collectives among them
  std::array<int64_t, kNumLanes> last_act_ns_ = {};    // when the lane's last traced act ended
  std::array<int64_t, kNumLanes> last_phase_ns_ = {};  // likewise of phase instances
  bool has_stream_error_ = false;                      // since the streams were reset
  uint32_t num_stream_polls_ = 0;                      // since the last look: see CheckStreamComms
  int64_t last_check_ns_ = 0;                          // likewise
  bool has_ended_ = false;                             // by an error of communication on a stream

  std::vector<uint32_t> active_comms_;   // started, not done
  int64_t unshared_ns_ = 0;              // that acts may take before the endpoint is left to others
  std::vector<uint32_t> open_floating_;  // ring of floating phases that may start
  uint32_t open_head_ = 0;
  uint32_t open_count_ = 0;
  std::vector<uint32_t> stalled_floating_;  // running, with actors that have not fired
  std::vector<uint32_t> per_step_phases_;
  uint32_t next_per_step_ = 0;  // index in per_step_phases_
  uint32_t running_per_step_ = planner::kNone;
  uint32_t running_compute_ = planner::kNone;
  std::vector<uint32_t> phase_of_type_;

  std::array<StepRecord, kMaxStepsInFlight> steps_;
  uint64_t instances_per_step_ = 0;
  int64_t submitted_ = 0;
  int64_t completed_ = 0;

  IdleTime idle_;
  bool counts_cpu_time_ = false;
  int64_t last_done_ns_ = 0;
  TraceRing trace_;

  // Starts and completions of each comm; written by the owner's thread.
  std::vector<std::atomic<uint64_t>> communication_counts_;

  mutable absl::Mutex graph_mutex_;
  GraphCounts graph_counts_ ABSL_GUARDED_BY(graph_mutex_);

  std::atomic<uint32_t> running_actor_{planner::kNone};  // the one being run or launched
  // For Snapshot, written by the owner's thread.
  std::atomic<int64_t> num_submitted_{0};  // submitted_
  std::atomic<int64_t> num_completed_{0};  // completed_
  const int64_t loaded_ns_;
  std::mt19937_64 random_;  // with options_.firing_seed
};

// Whether something beside the acts of a phase may go on between them.
inline bool DeviceExecutor::HasOthersToServe() const {
  if (open_count_ > 0) return true;
  if (!launches_.empty() && !stalled_floating_.empty()) return true;
  if (communication_.num_active() == 0) return false;
  return communication_.has_completion() || (exchange_ != nullptr && exchange_->has_peers());
}

// In-phase tokens to other actors.
inline void DeviceExecutor::Send(const uint32_t* messages, uint32_t count, Progress* progress) {
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t actor = messages[i] & ~kToCommunication;
    if (--pending_[actor] > 0) continue;
    if ((messages[i] & kToCommunication) != 0) {
      ready_comms_.push_back(actor);
    } else {
      ready_.Add(actor);
      progress->first_ready = std::min(progress->first_ready, actor);
    }
  }
}

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_EXECUTOR_H_
