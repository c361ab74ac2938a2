// What a device executor does with its sends, receives and collectives: it starts them, takes their
// completions, and shares the endpoint with the communication executor.

#include <algorithm>

#include "actors/engine/executor.h"

namespace penstock::actors {

using planner::ActorKind;

namespace {

// Compute time after which a device executor leaves the endpoint to the communication executor: a
// little less than what waking that costs.
constexpr int64_t kUnsharedNs = 20'000;

// Calls of Advance in one round with nothing else to do: a round in which all else is looked at
// takes several times as long.
constexpr int kAdvancesPerRound = 8;

}  // namespace

bool DeviceExecutor::TakeCompletions() {
  bool has_moved = false;
  uint32_t index = 0;
  while (communication_.NextCompletion(&index)) {
    has_moved = true;
    if (exchange_ != nullptr && exchange_->Owns(index)) {
      const absl::Status status = exchange_->Finish(index, &communication_);
      // Between steps, the other process may just have ended the session before this one. If a step
      // comes all the same, it fails.
      if (!status.ok()) exchange_failure_ = status;
      continue;
    }
    *std::find(active_comms_.begin(), active_comms_.end(), index) = active_comms_.back();
    active_comms_.pop_back();
    FinishComm(communication_.comm(index));
  }
  return has_moved;
}

// With nothing to fire, this thread moves communication along itself: completions come without a
// thread switch.
bool DeviceExecutor::DriveCommunication() {
  if (!communication_.TryOwn()) return false;
  unshared_ns_ = kUnsharedNs;
  // Where others wait for this core, one look has to do.
  const int num_looks = counts_cpu_time_ ? 1 : kAdvancesPerRound;
  for (int i = 0; i < num_looks; ++i) {
    // A look that finds something is work, one that does not is waiting. Reading the clock takes
    // about as long as a pause.
    const int64_t look_ns = idle_.is_idle() ? clock_->NowNs() : 0;
    if (communication_.Advance()) {
      if (idle_.is_idle()) idle_.End(look_ns);
      TakeCompletions();
      return true;
    }
    if (!idle_.is_idle()) BeginIdle();
  }
  return false;
}

// Between the acts of a long phase: completions, messages of the stage and floating phases.
void DeviceExecutor::ServeOthers() {
  TakeCompletions();
  if (exchange_ != nullptr) PollExchange();
  PollFloating();
}

bool DeviceExecutor::PollExchange() {
  if (!exchange_failure_.ok() && completed_ < submitted_) {
    observer_->OnFailure(exchange_failure_);
    exchange_failure_ = absl::OkStatus();
  }
  const bool is_owner = communication_.is_owner();
  const bool has_moved = exchange_->Poll(&communication_);
  if (!is_owner && communication_.is_owner()) unshared_ns_ = kUnsharedNs;
  return has_moved;
}

// Before an act. The endpoint is kept while acts are short, so that a chain of small messages wakes
// no other thread.
void DeviceExecutor::ShareEndpoint(uint32_t actor) {
  unshared_ns_ -= actors_[actor].act_ns;
  if (unshared_ns_ < 0) communication_.Disown();
}

void DeviceExecutor::StartReadyComms() {
  const bool hands_over = is_synchronous_ && IsLongActNext();
  // One that starts may make the next of its group ready.
  for (size_t i = 0; i < ready_comms_.size(); ++i) {
    const uint32_t actor = ready_comms_[i];
    StartComm(actor, communication_.comm(actors_[actor].part).phase, hands_over);
  }
  ready_comms_.clear();
  communication_.Flush();
}

void DeviceExecutor::StartComm(uint32_t index, uint32_t phase, bool hands_over) {
  const Actor& actor = actors_[index];
  Progress& progress = progress_[phase];
  void* const* args = args_.data() + actor.first_arg;
  CommStart start;
  start.comm = actor.part;
  start.sequence = InstanceOf(progress.step, progress.microbatch, phases_[phase].per_microbatch);
  // Of a transfer there is one of the two.
  start.inputs = args;
  start.outputs = args + actor.num_inputs;
  --progress.remaining;
  ++progress.outstanding;
  CountCommunication(communication_.comm(actor.part).ordinal);
  Send(messages_.data() + actor.first_message, actor.num_early, &progress);
  if (is_synchronous_) {
    StartTransport(&start, hands_over);
  } else {
    LaneStream* const stream = &StreamOf(phases_[phase]);
    Join(actor, staging_->BeginsOn(start.comm, stream));
    staging_->Begin(start, phases_[phase].lane, stream);
  }
}

// What the communication reads is in the host's memory. `hands_over`: the endpoint is left before
// the long act that follows anyway. Flush follows.
void DeviceExecutor::StartTransport(CommStart* start, bool hands_over) {
  const Comm& comm = communication_.comm(start->comm);
  start->flags = RecordOf(progress_[comm.phase].step).is_poisoned ? transport::kErrorFlag
                                                                  : transport::kNoFlags;
  active_comms_.push_back(start->comm);
  if (hands_over) {
    if (communication_.is_owner()) communication_.Disown();
    communication_.HandOver(*start);
    return;
  }
  if (!communication_.is_owner()) unshared_ns_ = kUnsharedNs;
  communication_.Start(*start);
}

// Whether the next ready act of a lane is so long that the endpoint is given up before it.
bool DeviceExecutor::IsLongActNext() {
  for (const uint32_t phase : {running_compute_, running_per_step_}) {
    if (phase == planner::kNone) continue;
    const uint32_t end = phases_[phase].end_actor;
    Progress& progress = progress_[phase];
    const uint32_t actor = ready_.First(progress.first_ready, end);
    progress.first_ready = std::min(actor, end);  // a later search begins here
    if (actor != planner::kNone && actors_[actor].act_ns > kUnsharedNs) return true;
  }
  return false;
}

void DeviceExecutor::FinishComm(Comm& comm) {
  EndIdle();
  const bool is_collective = comm.collective != nullptr;
  const Actor& actor = actors_[comm.actor];
  Progress& progress = progress_[comm.phase];
  const LaneStream::Mark act = MarkOf(comm.actor, comm.phase, comm.begin_ns);
  const uint32_t flags = is_collective                    ? comm.collective->flags()
                         : actor.kind == ActorKind::kRecv ? comm.request.flags
                                                          : transport::kNoFlags;
  if (is_collective && !comm.collective->status().ok()) {
    Fail(act, comm.collective->status());
  } else if (!is_collective && comm.request.state == transport::Request::State::kFailed) {
    Fail(act, comm.request.status);
  } else if ((flags & transport::kErrorFlag) != 0) {
    Poison(progress.step);
  }
  if (!is_synchronous_) staging_->End(actor.part, &StreamOf(phases_[comm.phase]));
  if (is_tracing_) Trace(act, comm.end_ns);
  CountCommunication(comm.ordinal);
  Send(messages_.data() + actor.first_message + actor.num_early, actor.num_late, &progress);
  AddTokens(actor);
  --progress.outstanding;
  if (!ready_comms_.empty()) StartReadyComms();
  FinishIfDone(comm.phase);
}

void DeviceExecutor::CountCommunication(uint32_t ordinal) {
  std::atomic<uint64_t>& count = communication_counts_[ordinal];
  count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void DeviceExecutor::Cancel() {
  communication_.Cancel();
  active_comms_.clear();
}

}  // namespace penstock::actors
