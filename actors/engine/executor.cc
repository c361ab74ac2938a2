#include "actors/engine/executor.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "base/exception_text.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {

using planner::ActorKind;
using planner::kNone;
using planner::Lane;

namespace {

// Processor time of this thread.
int64_t ThreadCpuNs() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceExecutor>> DeviceExecutor::Create(
    const ExecutorParts& parts, const ExecutorOptions& options) {
  Device& device = *parts.target.device;
  LaneStreams streams;
  LinkTarget target = parts.target;
  for (size_t lane = 0; lane < kNumLanes; ++lane) {
    streams[lane] = std::make_unique<LaneStream>(device);
    target.streams[lane] = &streams[lane]->stream();
  }
  ASSIGN_OR_RETURN(LinkedDevice linked, Link(*parts.plan, parts.device_index, target));
  std::unique_ptr<HostStaging> staging;
  if (!device.is_synchronous()) {
    std::vector<uint32_t> stream_of_comm;
    for (const Comm& comm : linked.comms) {
      const Phase& phase = linked.phases[comm.phase];
      stream_of_comm.push_back(phase.floating_stream == kNone
                                   ? static_cast<uint32_t>(phase.lane)
                                   : static_cast<uint32_t>(kNumLanes) + phase.floating_stream);
    }
    ASSIGN_OR_RETURN(staging,
                     HostStaging::Create(device, linked.comms, stream_of_comm, linked.copies));
  }
  std::unique_ptr<DeviceExecutor> executor(new DeviceExecutor(
      parts, options, std::move(linked), std::move(streams), std::move(staging)));
  if (!executor->is_synchronous_) {
    executor->ReserveMarks(device);
    executor->PlanGraphs();
  }
  return executor;
}

DeviceExecutor::DeviceExecutor(const ExecutorParts& parts, const ExecutorOptions& options,
                               LinkedDevice linked, LaneStreams streams,
                               std::unique_ptr<HostStaging> staging)
    : plan_(*parts.plan),
      device_plan_(parts.plan->devices[parts.device_index]),
      device_index_(parts.device_index),
      num_microbatches_(parts.plan->num_microbatches),
      options_(options),
      communication_(*parts.communication),
      stage_(parts.stage),
      observer_(parts.observer),
      clock_(parts.clock),
      actors_(std::move(linked.actors)),
      needs_(std::move(linked.needs)),
      pending_(needs_.size()),
      ready_(static_cast<uint32_t>(needs_.size())),
      ready_at_start_(static_cast<uint32_t>(needs_.size())),
      starts_(std::move(linked.starts)),
      messages_(std::move(linked.messages)),
      increments_(std::move(linked.increments)),
      counters_(std::move(linked.counters)),
      phases_(std::move(linked.phases)),
      progress_(phases_.size()),
      args_(std::move(linked.args)),
      groups_(std::move(linked.groups)),
      patches_(std::move(linked.patches)),
      copies_(std::move(linked.copies)),
      memory_copies_(std::move(linked.memory_copies)),
      joins_(std::move(linked.joins)),
      sources_(std::move(linked.sources)),
      fetches_(std::move(linked.fetches)),
      counter_infos_(std::move(linked.counter_infos)),
      kernels_(std::move(linked.kernels)),
      is_synchronous_(parts.target.device->is_synchronous()),
      is_tracing_(options.trace_capacity > 0),
      staging_(std::move(staging)),
      streams_(std::move(streams)),
      floating_streams_(std::move(linked.floating_streams)),
      stream_comms_(std::move(linked.stream_comms)),
      copy_streams_(std::move(linked.copy_streams)),
      launches_(std::move(linked.launches)),
      trace_(options.trace_capacity),
      communication_counts_(linked.comms.size() + stream_comms_.size()),
      loaded_ns_(parts.clock->NowNs()),
      random_(options.firing_seed) {
  for (const auto& lane : streams_) all_streams_.push_back(lane.get());
  for (const auto& stream : floating_streams_) all_streams_.push_back(stream.get());
  for (uint32_t p = 0; p < phases_.size(); ++p) {
    const Phase& phase = phases_[p];
    progress_[p].stream = &StreamOf(phase).stream();
    if (phase.lane == Lane::kPerStep) per_step_phases_.push_back(p);
    if (phase.lane == Lane::kCompute) {
      if (phase.type >= phase_of_type_.size()) phase_of_type_.resize(phase.type + 1, kNone);
      phase_of_type_[phase.type] = p;
    }
    instances_per_step_ += phase.per_microbatch ? num_microbatches_ : 1;
  }
  for (uint32_t i = 0; i < actors_.size(); ++i) {
    if (needs_[i] == 0 && actors_[i].runs_on_stream) ready_at_start_.Add(i);
  }
  ready_comms_.reserve(linked.comms.size());
  active_comms_.reserve(linked.comms.size());
  if (!StagePeersOf(plan_, device_index_).empty()) {
    exchange_ = std::make_unique<StageExchange>(plan_, device_index_, stage_, parts.stage_peers);
    exchange_->AddTo(&linked.comms);
  }
  communication_.Load(std::move(linked.comms), options.generation, is_tracing_ ? clock_ : nullptr);
  open_floating_.resize(phases_.size());
  stalled_floating_.reserve(phases_.size());
}

DeviceExecutor::~DeviceExecutor() {
  if (staging_ != nullptr) staging_->Close();
  for (const StreamComm& comm : stream_comms_) comm.stream->Close();
  for (const CopyStream& copies : copy_streams_) copies.stream->Close();
  for (LaneStream* stream : all_streams_) stream->Close();
}

// --- Steps ---------------------------------------------------------------------------------------

void DeviceExecutor::SubmitStep(int64_t step, std::shared_ptr<StepBuffers> buffers) {
  const int64_t now = clock_->NowNs();
  StepRecord& record = RecordOf(step);
  const bool follows_poisoned = completed_ < step && RecordOf(step - 1).is_poisoned;
  record.step = step;
  record.remaining = instances_per_step_;
  record.is_poisoned = follows_poisoned;
  record.has_error = false;
  record.begin_ns = now;
  record.buffers = std::move(buffers);
  if (completed_ == step) idle_.BeginStep(now);
  submitted_ = step + 1;
  CountSteps();
  if (has_stream_error_ && completed_ == step) ResetStreams();
  for (uint32_t p = 0; p < phases_.size(); ++p) QueueIfOpen(p);
  if (stage_ != nullptr && stage_->counts_ready) ReportAvailable();
  if (instances_per_step_ == 0) {
    completed_ = submitted_;
    CountSteps();
    record.buffers.reset();
    observer_->OnStepDone({device_index_, step, follows_poisoned, 0, 0});
  }
}

void DeviceExecutor::Poison(int64_t step) {
  for (int64_t s = step; s < submitted_; ++s) RecordOf(s).is_poisoned = true;
}

void DeviceExecutor::Fail(const LaneStream::Mark& where, const absl::Status& status) {
  StepRecord& record = RecordOf(where.step);
  if (!record.has_error) {
    record.has_error = true;
    observer_->OnError(device_index_, where.step, WithMark(where, status));
  }
  Poison(where.step);
}

// --- One round -----------------------------------------------------------------------------------

bool DeviceExecutor::Poll() {
  const int64_t begin_ns = counts_cpu_time_ ? clock_->NowNs() : 0;
  const int64_t begin_cpu_ns = counts_cpu_time_ ? ThreadCpuNs() : 0;
  const bool has_moved = PollOnce();
  if (counts_cpu_time_ && has_moved) {
    const int64_t cpu_ns = ThreadCpuNs() - begin_cpu_ns;
    idle_.AddWithoutCore(std::max<int64_t>(clock_->NowNs() - begin_ns - cpu_ns, 0));
  }
  if (has_moved) {
    EndIdle();
  } else if (!idle_.is_idle()) {
    BeginIdle();
  }
  return has_moved;
}

void DeviceExecutor::BeginIdle() {
  IdleTime::Kind kind = active_comms_.empty() ? IdleTime::kNothing : IdleTime::kTransfer;
  for (const uint32_t comm : active_comms_) {
    if (communication_.comms()[comm].collective != nullptr) kind = IdleTime::kCollective;
  }
  if (num_stream_comms_running_ > 0 && kind == IdleTime::kNothing) kind = IdleTime::kTransfer;
  if (num_stream_collectives_running_ > 0) kind = IdleTime::kCollective;
  idle_.Begin(kind, clock_->NowNs());
}

bool DeviceExecutor::PollOnce() {
  bool has_moved = false;
  if (!is_synchronous_) has_moved |= PollStreams();
  has_moved |= TakeCompletions();
  if (exchange_ != nullptr) has_moved |= PollExchange();
  has_moved |= PollLanes();
  if (!has_moved && (communication_.is_owner() || communication_.num_active() > 0) &&
      DriveCommunication()) {
    PollLanes();
    has_moved = true;
  }
  if (has_moved && stage_ != nullptr && stage_->counts_ready) ReportAvailable();
  return has_moved;
}

// Fires what is ready.
bool DeviceExecutor::PollLanes() {
  bool has_moved = PollFloating();
  has_moved |= PollPerStepLane();
  has_moved |= PollComputeLane();
  return has_moved;
}

bool DeviceExecutor::PollFloating() {
  bool has_moved = false;
  for (size_t i = 0; i < stalled_floating_.size();) {
    const uint32_t phase = stalled_floating_[i];
    has_moved |= Advance(phase);
    if (progress_[phase].is_running && progress_[phase].remaining > 0) {
      ++i;
      continue;
    }
    stalled_floating_[i] = stalled_floating_.back();
    stalled_floating_.pop_back();
  }
  uint32_t num_full = 0;  // those that found no room in their stream, at the end of the line
  while (open_count_ > num_full) {
    const uint32_t phase = open_floating_[open_head_];
    open_head_ = (open_head_ + 1) % open_floating_.size();
    --open_count_;
    progress_[phase].is_queued = false;
    if (!CanStart(phase)) continue;
    if (!HasRoom(phase)) {
      QueueIfOpen(phase);
      ++num_full;
      continue;
    }
    Start(phase);
    Advance(phase);
    if (progress_[phase].is_running && progress_[phase].remaining > 0) {
      stalled_floating_.push_back(phase);
    }
    has_moved = true;
  }
  return has_moved;
}

bool DeviceExecutor::PollPerStepLane() {
  if (running_per_step_ != kNone) return Advance(running_per_step_);
  if (per_step_phases_.empty()) return false;
  const uint32_t phase = per_step_phases_[next_per_step_];
  if (!CanStart(phase) || !HasRoom(phase)) return false;
  running_per_step_ = phase;
  Start(phase);
  Advance(phase);
  return true;
}

bool DeviceExecutor::PollComputeLane() {
  if (running_compute_ != kNone) return Advance(running_compute_);
  if (stage_ == nullptr) return false;
  const PhaseDecision* decision = stage_->decisions.Front();
  if (decision == nullptr || decision->step >= submitted_) return false;
  const uint32_t type = decision->type;
  const uint32_t phase = type < phase_of_type_.size() ? phase_of_type_[type] : kNone;
  if (phase == kNone) {  // the stage has such phases, this device does not
    stage_->decisions.Pop();
    CountComputed(type, 0);
    return true;
  }
  if (!CanStart(phase) || !HasRoom(phase)) return false;
  stage_->decisions.Pop();
  running_compute_ = phase;
  Start(phase);
  progress_[phase].begin_ns = clock_->NowNs();
  Advance(phase);
  return true;
}

void DeviceExecutor::ReportAvailable() {
  bool has_changed = false;
  for (uint32_t type = 0; type < stage_->counts.size(); ++type) {
    const int64_t limit = submitted_ * num_microbatches_;
    int64_t available = limit;
    if (type < phase_of_type_.size() && phase_of_type_[type] != kNone) {
      const Phase& phase = phases_[phase_of_type_[type]];
      const Progress& progress = progress_[phase_of_type_[type]];
      const int64_t started = progress.next_instance + (progress.is_running ? 1 : 0);
      available -= started;
      for (uint32_t i = 0; i < phase.num_counters; ++i) {
        const TokenCounter& counter = counters_[phase.first_counter + i];
        available = std::min<int64_t>(available, counter.count() / counter.need);
      }
      available += started;
    }
    std::atomic<int64_t>& reported = stage_->counts[type].available;
    if (reported.load(std::memory_order_relaxed) == available) continue;
    reported.store(available, std::memory_order_release);
    has_changed = true;
  }
  if (has_changed && stage_->is_waiting.exchange(false, std::memory_order_acq_rel) &&
      stage_->wake_controller) {
    stage_->wake_controller();
  }
}

// --- Phase instances -----------------------------------------------------------------------------

bool DeviceExecutor::CanStart(uint32_t phase) const {
  const Progress& progress = progress_[phase];
  if (progress.is_running || phases_[phase].missing > 0) return false;
  const int64_t rate = phases_[phase].per_microbatch ? num_microbatches_ : 1;
  return progress.next_instance < submitted_ * rate;
}

void DeviceExecutor::QueueIfOpen(uint32_t phase) {
  Progress& progress = progress_[phase];
  if (phases_[phase].lane != Lane::kFloating || progress.is_queued || !CanStart(phase)) return;
  progress.is_queued = true;
  open_floating_[(open_head_ + open_count_) % open_floating_.size()] = phase;
  ++open_count_;
}

void DeviceExecutor::Start(uint32_t index) {
  EndIdle();
  Phase& phase = phases_[index];
  Progress& progress = progress_[index];
  const int64_t instance = progress.next_instance;
  progress.step = phase.per_microbatch ? instance / num_microbatches_ : instance;
  progress.microbatch = phase.per_microbatch ? instance % num_microbatches_ : 0;
  progress.remaining = phase.end_actor - phase.first_actor;
  progress.first_ready = progress.next_in_order = phase.first_actor;
  progress.outstanding = 0;
  progress.is_running = true;
  progress.is_timed =
      is_synchronous_ && (is_tracing_ || instance < kTimedInstances || instance % kTimedOneIn == 0);
  if (is_tracing_) progress.begin_ns = clock_->NowNs();
  if (!is_synchronous_) {
    progress.first_launch = static_cast<uint64_t>(instance) * actors_.size();
    LaneStream& lane = StreamOf(phase);
    lane.Promise(NumPhaseMarks());
    for (size_t other = 0; other < kNumLanes; ++other) {
      if ((phase.joined_lanes >> other & 1) == 0) continue;
      lane.Follow(*streams_[other]);
      FollowCopies(static_cast<Lane>(other), &lane);
    }
    FollowSources(index);
    if (is_tracing_) {
      LaneStream::Mark begin = MarkOf(kNone, index, progress.begin_ns);
      begin.is_begin = true;
      lane.Record(begin);
    }
  }
  for (uint32_t i = 0; i < phase.num_counters; ++i) {
    TokenCounter& counter = counters_[phase.first_counter + i];
    counter.Take();
    if (counter.is_short()) ++phase.missing;
  }
  for (uint32_t i = 0; i < phase.num_groups; ++i) {
    const SlotGroup& group = groups_[phase.first_group + i];
    const uint64_t slot =
        InstanceOf(progress.step, progress.microbatch, group.per_microbatch) % group.slots;
    const Patch* patch = patches_.data() + group.first_patch;
    for (uint32_t k = 0; k < group.num_patches; ++k) {
      args_[patch[k].arg] = patch[k].slot0 + slot * group.slot_bytes;
    }
  }
  if (!is_synchronous_) {
    if (LaunchGraph(index)) return;
    StreamOf(phase).Promise(NumActMarks(index));
  }
  std::copy(needs_.begin() + phase.first_actor, needs_.begin() + phase.end_actor,
            pending_.begin() + phase.first_actor);
  ready_.AddFrom(ready_at_start_, phase.first_actor, phase.end_actor);
  ready_comms_.insert(ready_comms_.end(), starts_.begin() + phase.first_start,
                      starts_.begin() + phase.first_start + phase.num_starts);
  if (!ready_comms_.empty()) StartReadyComms();
}

bool DeviceExecutor::Advance(uint32_t index) {
  const Phase& phase = phases_[index];
  Progress& progress = progress_[index];
  const bool serves = phase.lane != Lane::kFloating;
  uint32_t num_fired = 0;
  while (num_fired < options_.acts_per_poll) {
    const uint32_t actor = TakeReady(index);
    if (actor == kNone) break;
    ++num_fired;
    --progress.remaining;
    if (is_synchronous_ && communication_.is_owner()) ShareEndpoint(actor);
    Fire(actor, index);
    if (!ready_comms_.empty()) StartReadyComms();
    if (serves && progress.remaining > 0 && HasOthersToServe()) ServeOthers();
  }
  running_actor_.store(kNone, std::memory_order_relaxed);
  FinishIfDone(index);
  return num_fired > 0;
}

// The actor of the phase that fires next; kNone: none is ready. Where the device runs communication
// itself, all fire in the planned order, so that what waits for it is the same on all devices.
uint32_t DeviceExecutor::TakeReady(uint32_t index) {
  Progress& progress = progress_[index];
  const uint32_t end = phases_[index].end_actor;
  if (!stream_comms_.empty()) {
    uint32_t& next = progress.next_in_order;
    while (next < end && !actors_[next].runs_on_stream) ++next;
    if (next < end && IsStreamComm(actors_[next]) && !MayLaunch(index)) return kNone;
    return next < end && ready_.TakeFirst(next, next + 1) != kNone ? next++ : kNone;
  }
  const uint32_t begin = progress.first_ready;
  if (options_.firing_seed != 0) {
    // The next from anywhere on, if there is one.
    const uint32_t from = begin + static_cast<uint32_t>(random_() % (end - begin + 1));
    const uint32_t actor = ready_.TakeFirst(from, end);
    if (actor != kNone) return actor;
  }
  const uint32_t actor = ready_.TakeFirst(begin, end);
  progress.first_ready = actor == kNone ? end : actor + 1;
  return actor;
}

void DeviceExecutor::FinishIfDone(uint32_t phase) {
  const Progress& progress = progress_[phase];
  if (progress.is_running && progress.outstanding == 0 && progress.remaining == 0) {
    FinishLaunch(phase);
  }
}

// All of the instance has been given to its stream, and its communication is over. On a synchronous
// device it is complete.
void DeviceExecutor::FinishLaunch(uint32_t index) {
  const Phase& phase = phases_[index];
  Progress& progress = progress_[index];
  if (phase.num_stream_comms > 0) JoinStreamComms(phase);
  if (phase.num_copies > 0) FollowCopies(phase.lane, &StreamOf(phase));
  progress.is_running = false;
  ++progress.next_instance;
  switch (phase.lane) {
    case Lane::kCompute:
      running_compute_ = kNone;
      break;
    case Lane::kPerStep:
      running_per_step_ = kNone;
      if (!phase.per_microbatch || progress.next_instance % num_microbatches_ == 0) {
        next_per_step_ = (next_per_step_ + 1) % per_step_phases_.size();
      }
      break;
    case Lane::kFloating:
      QueueIfOpen(index);
      break;
  }
  if (!is_synchronous_) {
    ++progress.num_launched;
    const uint64_t mark = StreamOf(phase).Record(MarkOf(kNone, index, progress.begin_ns));
    if (!instance_ends_.empty()) {
      const int64_t instance = progress.next_instance - 1;
      std::vector<InstanceEnd>& ends = instance_ends_[index];
      ends[instance % static_cast<int64_t>(ends.size())] = {instance, mark};
    }
    return;
  }
  if (is_tracing_) Trace(MarkOf(kNone, index, progress.begin_ns), clock_->NowNs());
  if (phase.lane == Lane::kCompute) CountComputed(phase.type, clock_->NowNs() - progress.begin_ns);
  StepRecord& record = RecordOf(progress.step);
  if (--record.remaining == 0) CompleteStep(record);
}

// An instance of the compute lane is complete.
void DeviceExecutor::CountComputed(uint32_t type, int64_t duration_ns) {
  stage_->counts[type].duration_ns.fetch_add(duration_ns, std::memory_order_relaxed);
  stage_->counts[type].completed.fetch_add(1, std::memory_order_release);
  if (stage_->decisions.size() <= stage_->wake_size.load(std::memory_order_relaxed) &&
      stage_->is_waiting.exchange(false, std::memory_order_acq_rel) && stage_->wake_controller) {
    stage_->wake_controller();
  }
}

void DeviceExecutor::CompleteStep(StepRecord& record) {
  const int64_t now = clock_->NowNs();
  DeviceStepReport report;
  report.device = device_index_;
  report.step = record.step;
  report.is_poisoned = record.is_poisoned;
  report.wall_ns = now - std::max(record.begin_ns, last_done_ns_);
  report.wait_ns = std::min(idle_.TakeWait(), report.wall_ns);
  last_done_ns_ = now;
  record.buffers.reset();
  completed_ = record.step + 1;
  CountSteps();
  observer_->OnStepDone(report);
}

// --- Actors --------------------------------------------------------------------------------------

inline absl::Status DeviceExecutor::Execute(uint32_t index, uint32_t phase) {
  const Actor& actor = actors_[index];
  const Progress& progress = progress_[phase];
  if (actor.kind == ActorKind::kKernel) {
    void* const* args = args_.data() + actor.first_arg;
    kernels::KernelArgs kernel_args;
    kernel_args.inputs = {args, actor.num_inputs};
    kernel_args.outputs = {args + actor.num_inputs, actor.num_outputs};
    kernel_args.workspace = actor.workspace;
    kernel_args.seed = options_.seed;
    kernel_args.step = progress.step + options_.first_step;
    kernel_args.microbatch = progress.microbatch;
    kernel_args.stream = progress.stream;
    kernel_args.launch = progress.first_launch + index;
    return actor.kernel->Run(kernel_args);
  }
  if (actor.kind == ActorKind::kCopy) {
    const MemoryCopy& copy = memory_copies_[actor.part];
    void* const* args = args_.data() + actor.first_arg;
    progress.stream->Copy(args[1], args[0], copy.num_bytes, copy.kind);
  } else if (actor.kind == ActorKind::kFeed) {
    CopyFeed(actor, phases_[phase], progress);
  } else {
    CopyFetch(actor, phases_[phase], progress);
  }
  return absl::OkStatus();
}

absl::Status DeviceExecutor::TryExecute(uint32_t index, uint32_t phase) {
  running_actor_.store(index, std::memory_order_relaxed);
  try {
    return Execute(index, phase);
  } catch (...) {
    return absl::InternalError(StrCat("its kernel threw: ", ExceptionText()));
  }
}

void DeviceExecutor::Fire(uint32_t index, uint32_t phase) {
  const Actor& actor = actors_[index];
  if (IsStreamComm(actor)) {
    LaunchStreamComm(index, phase);
    return;
  }
  if (actor.kind == ActorKind::kCopy && memory_copies_[actor.part].stream != kNone) {
    LaunchCopy(index, phase);
    return;
  }
  if (actor.num_joins > 0) Join(actor, &StreamOf(phases_[phase]));
  const bool is_timed = progress_[phase].is_timed;
  const int64_t begin_ns = is_tracing_ || is_timed ? clock_->NowNs() : 0;
  const bool is_poisoned = RecordOf(progress_[phase].step).is_poisoned;
  if (!is_poisoned) {
    const absl::Status status = TryExecute(index, phase);
    if (!status.ok()) Fail(MarkOf(index, phase, 0), status);
  }
  if (is_timed && !is_poisoned) {
    const int64_t end_ns = clock_->NowNs();
    actors_[index].act_ns =
        static_cast<uint32_t>(std::min<int64_t>(end_ns - begin_ns, 1'000'000'000));
    if (is_tracing_) Trace(MarkOf(index, phase, begin_ns), end_ns);
  } else if (is_tracing_ && !is_synchronous_) {
    StreamOf(phases_[phase]).Record(MarkOf(index, phase, begin_ns));
  }
  Send(messages_.data() + actor.first_message, actor.num_early, &progress_[phase]);
  if (actor.num_increments > 0) AddTokens(actor);
}

void DeviceExecutor::AddTokens(const Actor& actor) {
  const Increment* increment = increments_.data() + actor.first_increment;
  for (uint32_t i = 0; i < actor.num_increments; ++i) {
    TokenCounter& counter = counters_[increment[i].counter];
    const bool was_short = counter.is_short();
    counter.Add(increment[i].amount);
    if (was_short && !counter.is_short() && --phases_[counter.phase].missing == 0) {
      QueueIfOpen(counter.phase);
    }
  }
}

}  // namespace penstock::actors
