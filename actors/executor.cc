#include "actors/executor.h"

#include <time.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "actors/step_name.h"
#include "base/strings.h"

namespace penstock::actors {

using planner::ActorKind;
using planner::kNone;
using planner::Lane;

namespace {

constexpr size_t kMaxDescribedLines = 100;
// What acts may take, as predicted, before a device executor leaves the endpoint to the
// communication executor: a little less than what waking that costs.
constexpr int64_t kUnsharedNs = 20'000;

// Processor time of this thread.
int64_t ThreadCpuNs() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

bool RunsOnStream(ActorKind kind) { return kind <= ActorKind::kFetch; }

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceExecutor>> DeviceExecutor::Create(
    const ExecutorParts& parts, const ExecutorOptions& options) {
  absl::StatusOr<LinkedDevice> linked = Link(*parts.plan, parts.device_index, parts.target);
  if (!linked.ok()) return linked.status();
  return std::unique_ptr<DeviceExecutor>(new DeviceExecutor(parts, options, *std::move(linked)));
}

DeviceExecutor::DeviceExecutor(const ExecutorParts& parts, const ExecutorOptions& options,
                               LinkedDevice linked)
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
      puts_(std::move(linked.puts)),
      places_(std::move(linked.places)),
      phases_(std::move(linked.phases)),
      progress_(phases_.size()),
      args_(std::move(linked.args)),
      groups_(std::move(linked.groups)),
      patches_(std::move(linked.patches)),
      copies_(std::move(linked.copies)),
      place_infos_(std::move(linked.place_infos)),
      kernels_(std::move(linked.kernels)),
      is_tracing_(options.trace_capacity > 0),
      communication_counts_(static_cast<size_t>(
          std::count_if(actors_.begin(), actors_.end(),
                        [](const Actor& actor) { return !RunsOnStream(actor.kind); }))),
      random_(options.firing_seed) {
  for (LaneStream& lane : streams_) {
    lane.stream = parts.target.device->CreateStream();
    is_synchronous_ = is_synchronous_ && lane.stream->is_synchronous();
  }
  phase_of_kind_.fill(kNone);
  for (uint32_t p = 0; p < phases_.size(); ++p) {
    const Phase& phase = phases_[p];
    if (phase.lane == Lane::kOnce) once_phases_.push_back(p);
    if (phase.lane == Lane::kCompute) phase_of_kind_[static_cast<int>(phase.kind)] = p;
    instances_per_step_ += phase.per_microbatch ? num_microbatches_ : 1;
  }
  for (uint32_t i = 0; i < actors_.size(); ++i) {
    if (needs_[i] == 0 && RunsOnStream(actors_[i].kind)) ready_at_start_.Add(i);
  }
  ready_comms_.reserve(linked.comms.size());
  active_comms_.reserve(linked.comms.size());
  communication_.Load(std::move(linked.comms), options.generation, is_tracing_ ? clock_ : nullptr);
  open_floating_.resize(phases_.size());
  stalled_floating_.reserve(phases_.size());
  trace_.reserve(options.trace_capacity);
  if (is_synchronous_) return;

  events_.resize(actors_.size());
  launches_.resize(actors_.size());
  failures_ = std::make_unique<AsyncFailure[]>(phases_.size());
  std::array<size_t, 3> num_events = {};
  phase_events_.resize(phases_.size());
  for (uint32_t p = 0; p < phases_.size(); ++p) {
    phase_events_[p] = parts.target.device->CreateEvent();
    ++num_events[static_cast<int>(phases_[p].lane)];
    for (uint32_t i = phases_[p].first_actor; i < phases_[p].end_actor; ++i) {
      launches_[i] = {this, i, p};
      if (!RunsOnStream(actors_[i].kind)) continue;
      if (is_tracing_) actors_[i].needs_event = true;
      if (!actors_[i].needs_event) continue;
      events_[i] = parts.target.device->CreateEvent();
      ++num_events[static_cast<int>(phases_[p].lane)];
    }
  }
  for (size_t lane = 0; lane < streams_.size(); ++lane) {
    streams_[lane].events.resize(std::max<size_t>(num_events[lane], 1));
  }
}

DeviceExecutor::~DeviceExecutor() = default;

// --- Steps ---------------------------------------------------------------------------------------

void DeviceExecutor::SubmitStep(int64_t step, std::shared_ptr<StepBuffers> buffers) {
  const int64_t now = clock_->NowNs();
  StepRecord& record = RecordOf(step);
  const bool follows_poisoned =
      completed_ < step && RecordOf(step - 1).is_poisoned.load(std::memory_order_relaxed);
  record.step = step;
  record.remaining = instances_per_step_;
  record.is_poisoned.store(follows_poisoned, std::memory_order_relaxed);
  record.has_error = false;
  record.begin_ns = now;
  record.buffers = std::move(buffers);
  if (completed_ == step) {
    wait_ns_ = 0;
    idle_since_ns_ = now;
  }
  submitted_ = step + 1;
  for (uint32_t p = 0; p < phases_.size(); ++p) QueueIfOpen(p);
  if (stage_ != nullptr && stage_->counts_ready) ReportAvailable();
  if (instances_per_step_ == 0) {
    completed_ = submitted_;
    record.buffers.reset();
    observer_->OnStepDone({device_index_, step, follows_poisoned, 0, 0});
  }
}

void DeviceExecutor::Poison(int64_t step) {
  for (int64_t s = step; s < submitted_; ++s) {
    RecordOf(s).is_poisoned.store(true, std::memory_order_relaxed);
  }
}

void DeviceExecutor::Fail(uint32_t actor, uint32_t phase, const absl::Status& status) {
  const int64_t step = progress_[phase].step;
  StepRecord& record = RecordOf(step);
  if (!record.has_error) {
    record.has_error = true;
    observer_->OnError(device_index_, step,
                       absl::Status(status.code(), StrCat("actor ", NameOf(actor), " on device ",
                                                          device_index_, ", ", InstanceName(phase),
                                                          ": ", ToStd(status.message()))));
  }
  Poison(step);
}

// --- One round -----------------------------------------------------------------------------------

bool DeviceExecutor::Poll() {
  if (is_idle_) {
    const int64_t now = clock_->NowNs();
    wait_ns_ += now - std::exchange(idle_since_ns_, now);
  }
  const int64_t begin_ns = counts_cpu_time_ ? clock_->NowNs() : 0;
  const int64_t begin_cpu_ns = counts_cpu_time_ ? ThreadCpuNs() : 0;
  const bool has_moved = PollOnce();
  if (counts_cpu_time_ && has_moved) {
    lost_ns_ += std::max<int64_t>(clock_->NowNs() - begin_ns - (ThreadCpuNs() - begin_cpu_ns), 0);
  }
  if (!has_moved && !is_idle_) idle_since_ns_ = clock_->NowNs();
  is_idle_ = !has_moved;
  return has_moved;
}

bool DeviceExecutor::PollOnce() {
  bool has_moved = false;
  if (!is_synchronous_) has_moved |= PollStreams();
  has_moved |= TakeCompletions();
  has_moved |= PollFloating();
  has_moved |= PollOnceLane();
  has_moved |= PollComputeLane();
  if (!has_moved && !active_comms_.empty()) has_moved = DriveCommunication();
  if (has_moved && stage_ != nullptr && stage_->counts_ready) ReportAvailable();
  return has_moved;
}

bool DeviceExecutor::PollStreams() {
  bool has_moved = false;
  for (LaneStream& lane : streams_) {
    has_moved |= lane.stream->Poll();
    while (lane.count > 0) {
      const PendingEvent pending = lane.events[lane.head];
      if (!pending.event->IsDone()) break;
      lane.head = (lane.head + 1) % lane.events.size();
      --lane.count;
      --num_pending_events_;
      AsyncFailure& failure = failures_[pending.phase];
      const uint32_t failed = failure.actor.load(std::memory_order_acquire);
      if (failed != kNone) {
        Fail(failed, pending.phase, failure.status);
        failure.actor.store(kNone, std::memory_order_relaxed);
      }
      Progress& progress = progress_[pending.phase];
      --progress.outstanding;
      if (pending.actor != kNone) {
        if (is_tracing_) Trace(pending.actor, pending.phase, pending.begin_ns, clock_->NowNs());
        const Actor& actor = actors_[pending.actor];
        Send(messages_.data() + actor.first_message + actor.num_early, actor.num_late, &progress);
        PutTokens(actor);
        StartReadyComms();
      }
      FinishIfDone(pending.phase);
      has_moved = true;
    }
  }
  return has_moved;
}

bool DeviceExecutor::TakeCompletions() {
  bool has_moved = false;
  uint32_t index = 0;
  while (communication_.NextCompletion(&index)) {
    *std::find(active_comms_.begin(), active_comms_.end(), index) = active_comms_.back();
    active_comms_.pop_back();
    FinishComm(communication_.comm(index));
    has_moved = true;
  }
  return has_moved;
}

// With nothing to fire, this thread moves communication along itself: completions come without a
// thread switch.
bool DeviceExecutor::DriveCommunication() {
  if (!communication_.TryOwn()) return false;
  unshared_ns_ = kUnsharedNs;
  const bool has_moved = communication_.Advance();
  return TakeCompletions() || has_moved;
}

// Before an act of `phase`. The endpoint is kept while acts are short, so that a chain of small
// messages wakes no other thread.
void DeviceExecutor::ShareEndpoint(uint32_t phase) {
  unshared_ns_ -= phases_[phase].act_ns;
  if (unshared_ns_ < 0) communication_.Disown();
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
  while (open_count_ > 0) {
    const uint32_t phase = open_floating_[open_head_];
    open_head_ = (open_head_ + 1) % open_floating_.size();
    --open_count_;
    progress_[phase].is_queued = false;
    if (!CanStart(phase)) continue;
    Start(phase);
    Advance(phase);
    if (progress_[phase].is_running && progress_[phase].remaining > 0) {
      stalled_floating_.push_back(phase);
    }
    has_moved = true;
  }
  return has_moved;
}

bool DeviceExecutor::PollOnceLane() {
  if (running_once_ != kNone) return Advance(running_once_);
  if (once_phases_.empty()) return false;
  const uint32_t phase = once_phases_[once_turn_];
  if (!CanStart(phase)) return false;
  running_once_ = phase;
  Start(phase);
  Advance(phase);
  return true;
}

bool DeviceExecutor::PollComputeLane() {
  if (running_compute_ != kNone) return Advance(running_compute_);
  if (stage_ == nullptr) return false;
  const PhaseDecision* decision = stage_->decisions.Front();
  if (decision == nullptr || decision->step >= submitted_) return false;
  const int kind = static_cast<int>(decision->kind);
  const uint32_t phase = phase_of_kind_[kind];
  if (phase == kNone) {  // the stage has such phases, this device does not
    stage_->decisions.Pop();
    stage_->counts.completed[kind].fetch_add(1, std::memory_order_release);
    return true;
  }
  if (!CanStart(phase)) return false;
  stage_->decisions.Pop();
  running_compute_ = phase;
  Start(phase);
  progress_[phase].begin_ns = clock_->NowNs();
  Advance(phase);
  return true;
}

void DeviceExecutor::ReportAvailable() {
  bool has_changed = false;
  for (int kind = 0; kind < planner::kNumPolicyKinds; ++kind) {
    const int64_t limit = submitted_ * num_microbatches_;
    int64_t available = limit;
    if (phase_of_kind_[kind] != kNone) {
      const Phase& phase = phases_[phase_of_kind_[kind]];
      const Progress& progress = progress_[phase_of_kind_[kind]];
      const int64_t started = progress.next_instance + (progress.is_running ? 1 : 0);
      available -= started;
      for (uint32_t i = 0; i < phase.num_places; ++i) {
        const Place& place = places_[phase.first_place + i];
        available = std::min<int64_t>(available, place.count / place.need);
      }
      available += started;
    }
    if (stage_->counts.available[kind].load(std::memory_order_relaxed) == available) continue;
    stage_->counts.available[kind].store(available, std::memory_order_release);
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
  Phase& phase = phases_[index];
  Progress& progress = progress_[index];
  const int64_t instance = progress.next_instance;
  progress.step = phase.per_microbatch ? instance / num_microbatches_ : instance;
  progress.microbatch = phase.per_microbatch ? instance % num_microbatches_ : 0;
  progress.remaining = phase.end_actor - phase.first_actor;
  progress.to_launch = phase.num_on_stream;
  progress.first_ready = phase.first_actor;
  progress.outstanding = 0;
  progress.is_running = true;
  if (is_tracing_) progress.begin_ns = clock_->NowNs();
  for (uint32_t i = 0; i < phase.num_places; ++i) {
    Place& place = places_[phase.first_place + i];
    place.count -= place.need;
    if (place.count < place.need) ++phase.missing;
  }
  for (uint32_t i = 0; i < phase.num_groups; ++i) {
    const SlotGroup& group = groups_[phase.first_group + i];
    const uint64_t slot = InstanceOf(progress, group.per_microbatch) % group.slots;
    const Patch* patch = patches_.data() + group.first_patch;
    for (uint32_t k = 0; k < group.num_patches; ++k) {
      args_[patch[k].arg] = patch[k].slot0 + slot * group.slot_bytes;
    }
  }
  std::copy(needs_.begin() + phase.first_actor, needs_.begin() + phase.end_actor,
            pending_.begin() + phase.first_actor);
  ready_.AddFrom(ready_at_start_, phase.first_actor, phase.end_actor);
  ready_comms_.insert(ready_comms_.end(), starts_.begin() + phase.first_start,
                      starts_.begin() + phase.first_start + phase.num_starts);
  StartReadyComms();
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
    if (is_synchronous_) {
      if (communication_.is_owner()) ShareEndpoint(index);
      RunNow(actor, index);
    } else {
      Launch(actor, index);
    }
    if (!ready_comms_.empty()) StartReadyComms();
    // What may move meanwhile does, between the acts of a long phase.
    if (serves && progress.remaining > 0 && (open_count_ > 0 || !active_comms_.empty())) {
      TakeCompletions();
      PollFloating();
    }
  }
  running_actor_.store(kNone, std::memory_order_relaxed);
  FinishIfDone(index);
  return num_fired > 0;
}

// The actor of the phase that fires next; kNone: none is ready.
uint32_t DeviceExecutor::TakeReady(uint32_t index) {
  Progress& progress = progress_[index];
  const uint32_t end = phases_[index].end_actor;
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
    FinishInstance(phase);
  }
}

void DeviceExecutor::FinishInstance(uint32_t index) {
  const Phase& phase = phases_[index];
  Progress& progress = progress_[index];
  progress.is_running = false;
  ++progress.next_instance;
  if (is_tracing_) Trace(kNone, index, progress.begin_ns, clock_->NowNs());
  switch (phase.lane) {
    case Lane::kCompute: {
      running_compute_ = kNone;
      const int kind = static_cast<int>(phase.kind);
      stage_->counts.duration_ns[kind].fetch_add(clock_->NowNs() - progress.begin_ns,
                                                 std::memory_order_relaxed);
      stage_->counts.completed[kind].fetch_add(1, std::memory_order_release);
      if (stage_->decisions.size() <= stage_->wake_size.load(std::memory_order_relaxed) &&
          stage_->is_waiting.exchange(false, std::memory_order_acq_rel) &&
          stage_->wake_controller) {
        stage_->wake_controller();
      }
      break;
    }
    case Lane::kOnce:
      running_once_ = kNone;
      if (!phase.per_microbatch || progress.next_instance % num_microbatches_ == 0) {
        once_turn_ = (once_turn_ + 1) % once_phases_.size();
      }
      break;
    case Lane::kFloating:
      QueueIfOpen(index);
      break;
  }
  StepRecord& record = RecordOf(progress.step);
  if (--record.remaining > 0) return;
  const int64_t now = clock_->NowNs();
  DeviceStepReport report;
  report.device = device_index_;
  report.step = record.step;
  report.is_poisoned = record.is_poisoned.load(std::memory_order_relaxed);
  report.wall_ns = now - std::max(record.begin_ns, last_done_ns_);
  report.wait_ns =
      std::min(std::exchange(wait_ns_, 0) + std::exchange(lost_ns_, 0), report.wall_ns);
  last_done_ns_ = now;
  record.buffers.reset();
  completed_ = record.step + 1;
  observer_->OnStepDone(report);
}

// --- Actors --------------------------------------------------------------------------------------

absl::Status DeviceExecutor::Execute(const Actor& actor, const Progress& progress) const {
  void* const* args = args_.data() + actor.first_arg;
  if (actor.kind == ActorKind::kKernel) {
    kernels::KernelArgs kernel_args;
    kernel_args.inputs = {args, actor.num_inputs};
    kernel_args.outputs = {args + actor.num_inputs, actor.num_outputs};
    kernel_args.workspace = actor.workspace;
    kernel_args.seed = options_.seed;
    kernel_args.step = progress.step + options_.first_step;
    kernel_args.microbatch = progress.microbatch;
    return actor.kernel->Run(kernel_args);
  }
  const HostCopy& copy = copies_[actor.part];
  StepBuffers& buffers = *RecordOf(progress.step).buffers;
  if (actor.kind == ActorKind::kFeed) {
    const Tensor& feed = buffers.feeds[copy.target];
    copy.tile.FromGlobal(feed.data(), args[0], progress.microbatch);
  } else {
    copy.tile.ToGlobal(args[0], buffers.fetches[copy.target].data(), progress.microbatch);
  }
  return absl::OkStatus();
}

void DeviceExecutor::RunSyncWork(void* context) {
  auto* self = static_cast<DeviceExecutor*>(context);
  self->sync_status_ = self->Execute(*self->sync_actor_, *self->sync_progress_);
}

void DeviceExecutor::RunNow(uint32_t index, uint32_t phase) {
  const Actor& actor = actors_[index];
  const Progress& progress = progress_[phase];
  if (!RecordOf(progress.step).is_poisoned.load(std::memory_order_relaxed)) {
    const int64_t begin_ns = is_tracing_ ? clock_->NowNs() : 0;
    sync_actor_ = &actor;
    sync_progress_ = &progress;
    running_actor_.store(index, std::memory_order_relaxed);
    try {
      StreamOf(phases_[phase]).stream->Launch({&RunSyncWork, this});
    } catch (const std::exception& error) {
      sync_status_ = absl::InternalError(StrCat("its kernel threw: ", error.what()));
    }
    if (!sync_status_.ok()) Fail(index, phase, sync_status_);
    if (is_tracing_) Trace(index, phase, begin_ns, clock_->NowNs());
  }
  Send(messages_.data() + actor.first_message, uint32_t{actor.num_early} + actor.num_late,
       &progress_[phase]);
  if (actor.num_puts > 0) PutTokens(actor);
}

void DeviceExecutor::RunAsyncWork(void* context) {
  const LaunchContext& launch = *static_cast<const LaunchContext*>(context);
  DeviceExecutor& self = *launch.executor;
  const Progress& progress = self.progress_[launch.phase];
  AsyncFailure& failure = self.failures_[launch.phase];
  if (self.RecordOf(progress.step).is_poisoned.load(std::memory_order_relaxed) ||
      failure.actor.load(std::memory_order_relaxed) != kNone) {
    return;
  }
  absl::Status status;
  try {
    status = self.Execute(self.actors_[launch.actor], progress);
  } catch (const std::exception& error) {
    status = absl::InternalError(StrCat("its kernel threw: ", error.what()));
  }
  if (status.ok()) return;
  failure.status = std::move(status);
  failure.actor.store(launch.actor, std::memory_order_release);
}

void DeviceExecutor::Launch(uint32_t index, uint32_t phase) {
  const Actor& actor = actors_[index];
  LaneStream& lane = StreamOf(phases_[phase]);
  const int64_t begin_ns = is_tracing_ ? clock_->NowNs() : 0;
  lane.stream->Launch({&RunAsyncWork, &launches_[index]});
  Send(messages_.data() + actor.first_message, actor.num_early, &progress_[phase]);
  if (actor.needs_event) Record(events_[index].get(), index, phase, begin_ns);
  if (--progress_[phase].to_launch == 0 && !actor.needs_event) {
    Record(phase_events_[phase].get(), kNone, phase, begin_ns);
  }
}

// Has the phase wait until all that was launched on its stream has run.
void DeviceExecutor::Record(Event* event, uint32_t actor, uint32_t phase, int64_t begin_ns) {
  LaneStream& lane = StreamOf(phases_[phase]);
  lane.stream->Record(event);
  lane.events[(lane.head + lane.count++) % lane.events.size()] = {event, actor, phase, begin_ns};
  ++num_pending_events_;
  ++progress_[phase].outstanding;
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

void DeviceExecutor::StartReadyComms() {
  // One that starts may make the next of its group ready.
  for (size_t i = 0; i < ready_comms_.size(); ++i) {
    const uint32_t actor = ready_comms_[i];
    StartComm(actor, communication_.comm(actors_[actor].part).phase);
  }
  ready_comms_.clear();
}

void DeviceExecutor::StartComm(uint32_t index, uint32_t phase) {
  const Actor& actor = actors_[index];
  Progress& progress = progress_[phase];
  const uint32_t flags = RecordOf(progress.step).is_poisoned.load(std::memory_order_relaxed)
                             ? transport::kErrorFlag
                             : transport::kNoFlags;
  void* const* args = args_.data() + actor.first_arg;
  CommStart start;
  start.comm = actor.part;
  start.flags = flags;
  start.sequence = InstanceOf(progress, phases_[phase].per_microbatch);
  start.input = args[0];
  start.output = actor.kind == ActorKind::kCollective ? args[1] : args[0];
  --progress.remaining;
  ++progress.outstanding;
  CountCommunication(actor);
  Send(messages_.data() + actor.first_message, actor.num_early, &progress);
  active_comms_.push_back(actor.part);
  if (!communication_.is_owner()) unshared_ns_ = kUnsharedNs;
  communication_.Start(start);
}

void DeviceExecutor::FinishComm(Comm& comm) {
  const bool is_collective = comm.collective != nullptr;
  const Actor& actor = actors_[comm.actor];
  Progress& progress = progress_[comm.phase];
  const uint32_t flags = is_collective                    ? comm.collective->flags()
                         : actor.kind == ActorKind::kRecv ? comm.request.flags
                                                          : transport::kNoFlags;
  if (is_collective && !comm.collective->status().ok()) {
    Fail(comm.actor, comm.phase, comm.collective->status());
  } else if (!is_collective && comm.request.state == transport::Request::State::kFailed) {
    Fail(comm.actor, comm.phase, comm.request.status);
  } else if ((flags & transport::kErrorFlag) != 0) {
    Poison(progress.step);
  }
  if (is_tracing_) Trace(comm.actor, comm.phase, comm.begin_ns, comm.end_ns);
  CountCommunication(actor);
  Send(messages_.data() + actor.first_message + actor.num_early, actor.num_late, &progress);
  PutTokens(actor);
  --progress.outstanding;
  StartReadyComms();
  FinishIfDone(comm.phase);
}

void DeviceExecutor::PutTokens(const Actor& actor) {
  const Put* put = puts_.data() + actor.first_put;
  for (uint32_t i = 0; i < actor.num_puts; ++i) {
    Place& place = places_[put[i].place];
    const bool was_short = place.count < place.need;
    place.count += put[i].amount;
    if (was_short && place.count >= place.need && --phases_[place.phase].missing == 0) {
      QueueIfOpen(place.phase);
    }
  }
}

void DeviceExecutor::CountCommunication(const Actor& actor) {
  std::atomic<uint64_t>& count = communication_counts_[actor.part];
  count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void DeviceExecutor::Cancel() {
  communication_.Cancel();
  active_comms_.clear();
}

// --- Reports -------------------------------------------------------------------------------------

void DeviceExecutor::Trace(uint32_t actor, uint32_t phase, int64_t begin_ns, int64_t end_ns) {
  const Progress& progress = progress_[phase];
  const TraceEvent event = {
      device_index_, actor,    phase, static_cast<uint32_t>(progress.microbatch),
      progress.step, begin_ns, end_ns};
  if (trace_.size() < options_.trace_capacity) {
    trace_.push_back(event);
    return;
  }
  trace_[oldest_event_] = event;
  oldest_event_ = (oldest_event_ + 1) % trace_.size();
}

std::vector<TraceEvent> DeviceExecutor::TakeTrace() {
  std::vector<TraceEvent> taken(trace_.begin() + static_cast<std::ptrdiff_t>(oldest_event_),
                                trace_.end());
  taken.insert(taken.end(), trace_.begin(),
               trace_.begin() + static_cast<std::ptrdiff_t>(oldest_event_));
  trace_.clear();
  oldest_event_ = 0;
  // Ends of communication are noticed late.
  std::stable_sort(taken.begin(), taken.end(),
                   [](const TraceEvent& a, const TraceEvent& b) { return a.end_ns < b.end_ns; });
  return taken;
}

void DeviceExecutor::AppendCommunications(std::vector<uint64_t>* counts) const {
  for (const std::atomic<uint64_t>& count : communication_counts_) {
    counts->push_back(count.load(std::memory_order_relaxed));
  }
}

std::string DeviceExecutor::NameOf(uint32_t actor) const { return device_plan_.actors[actor].name; }

std::string DeviceExecutor::DescribeRunningActor() const {
  const uint32_t actor = running_actor_.load(std::memory_order_relaxed);
  return actor == kNone ? "is in no actor" : StrCat("is in actor '", NameOf(actor), "'");
}

std::string DeviceExecutor::InstanceName(uint32_t phase) const {
  const Progress& progress = progress_[phase];
  const bool per_microbatch = phases_[phase].per_microbatch;
  int64_t step = progress.step;
  int64_t microbatch = progress.microbatch;
  if (!progress.is_running) {
    step = per_microbatch ? progress.next_instance / num_microbatches_ : progress.next_instance;
    microbatch = per_microbatch ? progress.next_instance % num_microbatches_ : 0;
  }
  std::string text = StepName(step + options_.first_step);
  if (per_microbatch) StrAppend(&text, ", micro-batch ", microbatch);
  return text;
}

std::string DeviceExecutor::DescribePlaces(uint32_t index) const {
  const Phase& phase = phases_[index];
  std::string text;
  for (uint32_t i = 0; i < phase.num_places; ++i) {
    const Place& place = places_[phase.first_place + i];
    if (place.count >= place.need) continue;
    const PlaceInfo& info = place_infos_[phase.first_place + i];
    const planner::ChannelPlan& channel = device_plan_.channels[info.channel];
    StrAppend(&text, text.empty() ? "" : "; ", info.is_credit ? "credits" : "tokens", " from '",
              NameOf(info.is_credit ? channel.consumer : channel.producer), "' ", place.count,
              " of ", place.need);
  }
  return text;
}

std::string DeviceExecutor::DescribeComm(const Comm& comm) const {
  const Actor& actor = actors_[comm.actor];
  std::string text =
      StrCat(planner::Name(actor.kind), " '", NameOf(comm.actor), "', ", InstanceName(comm.phase));
  if (comm.collective == nullptr) {
    StrAppend(&text, actor.kind == ActorKind::kSend ? ", to" : ", from", " device ", comm.peer);
  } else {
    const CollectiveSpec& spec = plan_.collectives[device_plan_.actors[comm.actor].target];
    StrAppend(&text, ", of devices ", StrJoin(spec.devices, ", "));
  }
  return text;
}

std::vector<std::string> DeviceExecutor::Describe() const {
  std::vector<std::string> lines;
  if (completed_ == submitted_) return lines;
  auto is_waited_for = [&](uint32_t phase) {  // started late or not at all in a submitted step
    const int64_t rate = phases_[phase].per_microbatch ? num_microbatches_ : 1;
    return progress_[phase].next_instance < submitted_ * rate;
  };
  const PhaseDecision* decision = stage_ == nullptr ? nullptr : stage_->decisions.Front();
  for (uint32_t p = 0; p < phases_.size() && lines.size() < kMaxDescribedLines; ++p) {
    const Phase& phase = phases_[p];
    const Progress& progress = progress_[p];
    if (!is_waited_for(p)) continue;
    const std::string name = StrCat("device ", device_index_, ": phase '",
                                    device_plan_.phases[p].name, "', ", InstanceName(p));
    if (progress.is_running) {
      if (progress.remaining == 0) continue;  // what it waits for follows below
      uint32_t blocked = phase.first_actor;
      while (blocked + 1 < phase.end_actor && pending_[blocked] == 0) ++blocked;
      std::string line = StrCat(name, ", is at actor '", NameOf(blocked), "', which misses ",
                                pending_[blocked], " tokens");
      for (const planner::ChannelPlan& channel : device_plan_.channels) {
        if (channel.consumer != blocked || channel.producer < phase.first_actor ||
            channel.producer >= phase.end_actor || RunsOnStream(actors_[channel.producer].kind)) {
          continue;
        }
        const uint32_t part = actors_[channel.producer].part;
        if (std::find(active_comms_.begin(), active_comms_.end(), part) != active_comms_.end()) {
          StrAppend(&line, "; from '", NameOf(channel.producer), "'");
        }
      }
      lines.push_back(std::move(line));
      continue;
    }
    if (phase.missing > 0) {
      lines.push_back(StrCat(name, ", misses ", DescribePlaces(p)));
      continue;
    }
    switch (phase.lane) {
      case Lane::kCompute:
        if (decision == nullptr) {
          lines.push_back(StrCat(name, ", could run; its stage has not chosen"));
        } else if (phase_of_kind_[static_cast<int>(decision->kind)] != p) {
          lines.push_back(StrCat(name, ", could run; its stage chose ",
                                 planner::Name(decision->kind), decision->microbatch, " of ",
                                 StepName(decision->step), " first"));
        }
        break;
      case Lane::kOnce:
        if (once_phases_[once_turn_] != p) {
          lines.push_back(StrCat(name, ", comes after phase '",
                                 device_plan_.phases[once_phases_[once_turn_]].name, "'"));
        }
        break;
      case Lane::kFloating:
        break;
    }
  }
  for (const uint32_t part : active_comms_) {
    if (lines.size() >= kMaxDescribedLines) break;
    lines.push_back(
        StrCat("device ", device_index_, ": pending ", DescribeComm(communication_.comms()[part])));
  }
  for (const LaneStream& lane : streams_) {
    if (lane.count == 0) continue;
    const PendingEvent& pending = lane.events[lane.head];
    lines.push_back(StrCat("device ", device_index_, ": the stream has not completed ",
                           pending.actor == kNone
                               ? StrCat("phase '", device_plan_.phases[pending.phase].name)
                               : StrCat("actor '", NameOf(pending.actor)),
                           "', ", InstanceName(pending.phase)));
  }
  return lines;
}

}  // namespace penstock::actors
