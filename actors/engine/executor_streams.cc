// What a device executor does for asynchronous devices: what it leaves in their streams and takes
// from there, and how feeds and fetches get to and from their memory.

#include <algorithm>
#include <utility>

#include "actors/engine/executor.h"
#include "base/strings.h"

namespace penstock::actors {

using planner::ActorKind;
using planner::kNone;
using planner::Lane;

namespace {

constexpr uint32_t kMarksOfCopy = 2;  // where a traced copy begins, and its end

}  // namespace

// Marks that an instance of the phase leaves in its stream: of itself, and of its acts.
uint32_t DeviceExecutor::NumMarks(uint32_t phase) const {
  return NumPhaseMarks() + NumActMarks(phase);
}
uint32_t DeviceExecutor::NumActMarks(uint32_t phase) const {
  return is_tracing_ ? phases_[phase].num_on_stream : 0;
}

// Floating phases that have been launched in part may wait for each other's communication: there is
// room for all of them.
void DeviceExecutor::ReserveMarks(Device& device) {
  std::array<uint32_t, kNumLanes> most = {};
  std::array<uint32_t, kNumLanes> sum = {};
  for (uint32_t p = 0; p < phases_.size(); ++p) {
    if (phases_[p].floating_stream != kNone) {
      StreamOf(phases_[p]).SetCapacity(device, 2 * NumMarks(p), is_tracing_);
      continue;
    }
    const auto lane = static_cast<size_t>(phases_[p].lane);
    most[lane] = std::max(most[lane], NumMarks(p));
    sum[lane] += NumMarks(p);
  }
  for (size_t lane = 0; lane < kNumLanes; ++lane) {
    const bool is_floating = static_cast<Lane>(lane) == Lane::kFloating;
    streams_[lane]->SetCapacity(device, is_floating ? 2 * sum[lane] : kLaunchAhead * most[lane],
                                is_tracing_);
  }
  // A mark a run. As many instances of a phase as its lane has room for are under way, and as many
  // may have completed since their communication was looked at.
  for (StreamComm& comm : stream_comms_) {
    comm.stream->SetCapacity(device, 2 * StreamOf(phases_[PhaseOf(comm.actor)]).capacity(),
                             is_tracing_);
  }
  if (is_tracing_) {
    uint32_t most_copies = 0;
    for (const Phase& phase : phases_) most_copies = std::max(most_copies, phase.num_copies);
    for (CopyStream& copies : copy_streams_) {
      copies.stream->SetCapacity(device, kLaunchAhead * kMarksOfCopy * most_copies, true);
    }
  }
  if (sources_.empty()) return;
  for (const Phase& phase : phases_) {
    instance_ends_.emplace_back(std::max(StreamOf(phase).capacity(), 1u));
  }
}

// The phase comes after the instances that its tokens and credits came from. Those that are not in
// the ring any more are complete.
void DeviceExecutor::FollowSources(uint32_t index) {
  const Phase& phase = phases_[index];
  LaneStream& stream = StreamOf(phase);
  for (uint32_t i = 0; i < phase.num_sources; ++i) {
    const PhaseSource& source = sources_[phase.first_source + i];
    const int64_t instance = source.InstanceFor(progress_[index].next_instance);
    if (instance < 0) continue;
    LaneStream& other = StreamOf(phases_[source.phase]);
    if (instance >= progress_[source.phase].next_instance) {
      stream.Follow(other);  // it is being launched
      FollowCopies(phases_[source.phase].lane, &stream);
      continue;
    }
    const std::vector<InstanceEnd>& ends = instance_ends_[source.phase];
    const InstanceEnd& end = ends[instance % static_cast<int64_t>(ends.size())];
    if (end.instance == instance) stream.FollowMark(other, end.mark);
  }
}

// Whether the stream of the phase may run ahead by one instance more.
bool DeviceExecutor::HasStreamRoom(uint32_t phase) const {
  if (phases_[phase].has_host_copies && progress_[phase].num_launched >= HostStaging::kCopySlots) {
    return false;
  }
  if (is_tracing_ && phases_[phase].num_copies > 0) {
    for (const CopyStream& copies : copy_streams_) {
      if (copies.lane == phases_[phase].lane &&
          !copies.stream->HasRoom(kMarksOfCopy * phases_[phase].num_copies)) {
        return false;
      }
    }
  }
  return StreamOf(phases_[phase]).HasRoom(NumMarks(phase));
}

bool DeviceExecutor::PollStreams() {
  bool has_moved = false;
  for (LaneStream* lane : all_streams_) {
    has_moved |= lane->stream().Poll();
    const StreamError* error = nullptr;
    while (const LaneStream::Mark* done = lane->Done(&error)) {
      const LaneStream::Mark mark = *done;
      if (error != nullptr) FailStream(*error, mark);
      const int64_t now = lane->Pop(clock_->NowNs());
      const auto lane_index = static_cast<size_t>(phases_[mark.phase].lane);
      if (mark.is_begin) {
        last_act_ns_[lane_index] = std::max(last_act_ns_[lane_index], now);
        last_phase_ns_[lane_index] = std::max(last_phase_ns_[lane_index], now);
      } else if (mark.actor == kNone) {
        Complete(mark, now);
      } else {
        // The lane did one thing after the other.
        LaneStream::Mark act = mark;
        act.begin_ns = std::max(act.begin_ns, std::exchange(last_act_ns_[lane_index], now));
        Trace(act, now);
      }
      has_moved = true;
    }
  }
  if (!stream_comms_.empty()) has_moved |= PollStreamComms();
  if (!copy_streams_.empty()) has_moved |= PollCopies();
  has_moved |= staging_->Poll();
  return TakeReadyComms() || has_moved;
}

// Communication that waits for a member that is gone holds up its stream, and so the launches that
// would tell. With its error, the stream goes on and the step drains.
void DeviceExecutor::CheckStreamComms() {
  num_stream_polls_ = 0;
  const int64_t now = clock_->NowNs();
  if (now - last_check_ns_ < kCheckNs) return;
  last_check_ns_ = now;
  for (const StreamComm& comm : stream_comms_) {
    const LaneStream::Mark* run = comm.stream->Pending();
    if (run == nullptr) continue;
    const absl::Status status = comm.collective->Check();
    if (status.ok()) continue;
    EndAfter(*run, status);
  }
}

// Other members may wait on, and nothing of the group runs any more, so the device cannot go on.
void DeviceExecutor::EndAfter(const LaneStream::Mark& run, const absl::Status& status) {
  Fail(run, status);
  if (std::exchange(has_ended_, true)) return;  // each member of the group has the error
  observer_->OnFailure(WithMark(run, status));
}

bool DeviceExecutor::PollStreamComms() {
  bool has_moved = false;
  for (StreamComm& comm : stream_comms_) {
    has_moved |= comm.stream->stream().Poll();
    const StreamError* error = nullptr;
    while (const LaneStream::Mark* done = comm.stream->Done(&error)) {
      LaneStream::Mark run = *done;
      if (error != nullptr) FailStream(*error, run);
      const int64_t now = comm.stream->Pop(clock_->NowNs());
      --num_stream_comms_running_;
      if (comm.kind == ActorKind::kCollective) --num_stream_collectives_running_;
      CountCommunication(comm.ordinal);
      run.begin_ns = std::max(run.begin_ns, std::exchange(comm.last_ns, now));
      if (is_tracing_) Trace(run, now);
      has_moved = true;
    }
  }
  if (num_stream_comms_running_ > 0 && ++num_stream_polls_ >= kPollsPerCheck) CheckStreamComms();
  return has_moved;
}

bool DeviceExecutor::PollCopies() {
  bool has_moved = false;
  for (CopyStream& copies : copy_streams_) {
    has_moved |= copies.stream->stream().Poll();
    const StreamError* error = nullptr;
    while (const LaneStream::Mark* done = copies.stream->Done(&error)) {
      LaneStream::Mark copy = *done;
      if (error != nullptr) FailStream(*error, copy);
      const int64_t now = copies.stream->Pop(clock_->NowNs());
      copy.begin_ns = std::max(copy.begin_ns, std::exchange(copies.last_ns, now));
      if (!copy.is_begin) Trace(copy, now);
      has_moved = true;
    }
  }
  return has_moved;
}

// What `stream` is given from here on comes after the communication and copies that the actor
// needs.
void DeviceExecutor::Join(const Actor& actor, LaneStream* stream) {
  for (uint32_t i = 0; i < actor.num_joins; ++i) {
    const uint32_t join = joins_[actor.first_join + i];
    if ((join & kJoinsCopy) != 0) {
      stream->stream().Wait(memory_copies_[join & ~kJoinsCopy].done.get());
    } else {
      stream->Follow(*stream_comms_[join].stream);
    }
  }
}

// Communication that the device runs itself, beside its lane. It takes place in poisoned steps,
// too: the other members wait for it.
void DeviceExecutor::LaunchStreamComm(uint32_t index, uint32_t phase_index) {
  const Actor& actor = actors_[index];
  const Phase& phase = phases_[phase_index];
  Progress& progress = progress_[phase_index];
  StreamComm& comm = stream_comms_[actor.part];
  const int64_t begin_ns = is_tracing_ ? clock_->NowNs() : 0;
  Join(actor, comm.stream.get());
  comm.stream->Follow(StreamOf(phase));
  void* const* args = args_.data() + actor.first_arg;
  void* const none = nullptr;  // what the receiver of a message brings, and the sender ends with
  const absl::Status status = comm.collective->Launch(
      {actor.num_inputs > 0 ? args : &none, actor.num_outputs > 0 ? args + actor.num_inputs : &none,
       RecordOf(progress.step).is_poisoned, progress.first_launch + index});
  if (!status.ok()) EndAfter(MarkOf(index, phase_index, 0), status);
  comm.stream->Promise(1);
  comm.stream->Record(MarkOf(index, phase_index, begin_ns));
  ++num_stream_comms_running_;
  if (comm.kind == ActorKind::kCollective) ++num_stream_collectives_running_;
  if (++num_launched_ == launches_[launch_run_].count) {
    num_launched_ = 0;
    launch_run_ = (launch_run_ + 1) % static_cast<uint32_t>(launches_.size());
  }
  CountCommunication(comm.ordinal);
  Send(messages_.data() + actor.first_message, actor.num_early, &progress);
}

// All of the phase has been launched. Phases of other lanes follow its lane, so it follows the
// communication before they get tokens.
void DeviceExecutor::JoinStreamComms(const Phase& phase) {
  for (uint32_t i = 0; i < phase.num_stream_comms; ++i) {
    const StreamComm& comm = stream_comms_[phase.first_stream_comm + i];
    StreamOf(phase).Follow(*comm.stream);
    AddTokens(actors_[comm.actor]);
  }
}

// A copy between the memories, beside the stream of its phase: after all that this has been given
// so far, and before what waits for the copy.
void DeviceExecutor::LaunchCopy(uint32_t index, uint32_t phase_index) {
  const Actor& actor = actors_[index];
  const MemoryCopy& copy = memory_copies_[actor.part];
  LaneStream& stream = *copy_streams_[copy.stream].stream;
  Progress& progress = progress_[phase_index];
  stream.Follow(StreamOf(phases_[phase_index]));
  Join(actor, &stream);
  LaneStream::Mark mark = MarkOf(index, phase_index, 0);
  if (is_tracing_) {
    stream.Promise(kMarksOfCopy);
    mark.begin_ns = clock_->NowNs();
    mark.is_begin = true;
    stream.Record(mark);
    mark.is_begin = false;
  }
  if (!RecordOf(progress.step).is_poisoned) {
    void* const* args = args_.data() + actor.first_arg;
    stream.stream().Copy(args[1], args[0], copy.num_bytes, copy.kind);
  }
  stream.stream().Record(copy.done.get());
  if (is_tracing_) stream.Record(mark);
  Send(messages_.data() + actor.first_message, actor.num_early, &progress);
  AddTokens(actor);
}

// `stream` waits for the copies that phases of the lane have launched so far. The stream of a phase
// waits for its own copies when all of the phase has been launched. A phase of another lane may
// take tokens of a copy before that, so it waits for the copies itself.
void DeviceExecutor::FollowCopies(Lane lane, LaneStream* stream) {
  for (CopyStream& copies : copy_streams_) {
    if (copies.lane == lane) stream->Follow(*copies.stream);
  }
}

// The stream has come to the end of a phase instance.
void DeviceExecutor::Complete(const LaneStream::Mark& instance, int64_t now) {
  EndIdle();
  const Phase& phase = phases_[instance.phase];
  --progress_[instance.phase].num_launched;
  if (phase.num_fetches > 0) DeliverFetches(instance);
  LaneStream::Mark ran = instance;
  if (phase.lane != Lane::kFloating) {
    // Launched ahead, it began when the one before it was complete.
    int64_t& last_ns = last_phase_ns_[static_cast<size_t>(phase.lane)];
    ran.begin_ns = std::max(ran.begin_ns, std::exchange(last_ns, now));
  }
  if (is_tracing_) Trace(ran, now);
  if (phase.lane == Lane::kCompute) CountComputed(phase.type, now - ran.begin_ns);
  StepRecord& record = RecordOf(instance.step);
  if (--record.remaining > 0) return;
  // Its communication is over, too. Once the step is reported, another thread may take the trace.
  if (!stream_comms_.empty()) PollStreamComms();
  if (!copy_streams_.empty()) PollCopies();
  CompleteStep(record);
}

// Starts communications whose bytes have left the device.
bool DeviceExecutor::TakeReadyComms() {
  bool has_moved = false;
  CommStart start;
  const StreamError* error = nullptr;
  while (staging_->NextReady(&start, &error)) {
    const Comm& comm = communication_.comm(start.comm);
    if (error != nullptr) FailStream(*error, MarkOf(comm.actor, comm.phase, 0));
    StartTransport(&start, /*hands_over=*/false);
    has_moved = true;
  }
  communication_.Flush();
  return has_moved;
}

// The failed steps have drained: nothing is under way.
void DeviceExecutor::ResetStreams() {
  absl::Status status;
  for (LaneStream* stream : all_streams_) status.Update(stream->stream().Reset());
  for (const StreamComm& comm : stream_comms_) status.Update(comm.stream->stream().Reset());
  for (const CopyStream& copies : copy_streams_) {
    status.Update(copies.stream->stream().Reset());
  }
  status.Update(staging_->Reset());
  if (!status.ok()) {
    LaneStream::Mark where;
    where.step = completed_;
    Fail(where, status);
    return;
  }
  has_stream_error_ = false;
}

// `where` is the first mark that is known to come after the failure.
void DeviceExecutor::FailStream(const StreamError& error, const LaneStream::Mark& where) {
  has_stream_error_ = true;
  if (error.launch == kNoLaunch) {
    Fail(where, error.status);
    return;
  }
  const auto actor = static_cast<uint32_t>(error.launch % actors_.size());
  const auto instance = static_cast<int64_t>(error.launch / actors_.size());
  LaneStream::Mark failed;
  failed.actor = actor;
  failed.phase = PhaseOf(actor);
  failed.step = instance;
  if (phases_[failed.phase].per_microbatch) {
    failed.step = instance / num_microbatches_;
    failed.microbatch = instance % num_microbatches_;
  }
  // A stream brings its error up again with what it skips in later steps. That another member of a
  // collective or a peer has failed is told by that device.
  const bool is_of_another = IsStreamComm(actors_[actor]) && absl::IsAborted(error.status);
  if (failed.step >= completed_ && !is_of_another) Fail(failed, error.status);
  Poison(where.step);
}

// Copies the feed's tile: to the device's memory where that is the host's, otherwise to staging.
// Returns where it has put the tile.
std::byte* DeviceExecutor::FillFeed(const Actor& actor, const Phase& phase,
                                    const Progress& progress) {
  const HostCopy& copy = copies_[actor.part];
  std::byte* const tile =
      is_synchronous_ ? static_cast<std::byte*>(args_[actor.first_arg])
                      : staging_->TileOf(actor.part, InstanceOf(progress.step, progress.microbatch,
                                                                phase.per_microbatch));
  copy.tile.FromGlobal(RecordOf(progress.step).buffers->feeds[copy.target].data(), tile,
                       progress.microbatch);
  return tile;
}

void DeviceExecutor::CopyFeed(const Actor& actor, const Phase& phase, const Progress& progress) {
  std::byte* const tile = FillFeed(actor, phase, progress);
  if (is_synchronous_) return;
  progress.stream->Copy(args_[actor.first_arg], tile, copies_[actor.part].num_bytes,
                        CopyKind::kHostToDevice);
}

// From an asynchronous device the tile comes later: see DeliverFetches.
void DeviceExecutor::CopyFetch(const Actor& actor, const Phase& phase, const Progress& progress) {
  const HostCopy& copy = copies_[actor.part];
  const void* source = args_[actor.first_arg];
  if (is_synchronous_) {
    copy.tile.ToGlobal(source, RecordOf(progress.step).buffers->fetches[copy.target].data(),
                       progress.microbatch);
    return;
  }
  progress.stream->Copy(staging_->TileOf(actor.part, InstanceOf(progress.step, progress.microbatch,
                                                                phase.per_microbatch)),
                        source, copy.num_bytes, CopyKind::kDeviceToHost);
}

// Of a phase instance that is complete on an asynchronous device.
void DeviceExecutor::DeliverFetches(const LaneStream::Mark& instance) {
  const Phase& phase = phases_[instance.phase];
  const StepRecord& record = RecordOf(instance.step);
  if (record.is_poisoned) return;
  const int64_t number = InstanceOf(instance.step, instance.microbatch, phase.per_microbatch);
  for (uint32_t i = 0; i < phase.num_fetches; ++i) {
    const uint32_t part = actors_[fetches_[phase.first_fetch + i]].part;
    const HostCopy& copy = copies_[part];
    copy.tile.ToGlobal(staging_->TileOf(part, number), record.buffers->fetches[copy.target].data(),
                       instance.microbatch);
  }
}

}  // namespace penstock::actors
