// What a device executor tells of itself: traces, and what it waits for.

#include <algorithm>
#include <utility>

#include "actors/engine/executor.h"
#include "actors/engine/step_name.h"
#include "base/strings.h"

namespace penstock::actors {

using planner::ActorKind;
using planner::kNone;
using planner::Lane;

namespace {

constexpr size_t kMaxDescribedLines = 100;

}  // namespace

void DeviceExecutor::Trace(const LaneStream::Mark& what, int64_t end_ns) {
  if (!IsTraced(what.step)) return;
  trace_.Add({device_index_, what.actor, what.phase, static_cast<uint32_t>(what.microbatch),
              what.step, what.begin_ns, end_ns});
}

void DeviceExecutor::AppendCommunications(std::vector<uint64_t>* counts) const {
  for (const std::atomic<uint64_t>& count : communication_counts_) {
    counts->push_back(count.load(std::memory_order_relaxed));
  }
  if (exchange_ != nullptr) exchange_->AppendCounts(counts);
}

uint32_t DeviceExecutor::PhaseOf(uint32_t actor) const {
  const auto it =
      std::upper_bound(phases_.begin(), phases_.end(), actor,
                       [](uint32_t a, const Phase& phase) { return a < phase.end_actor; });
  return static_cast<uint32_t>(it - phases_.begin());
}

// "actor h3.attn on device 0, step 2, micro-batch 1"
std::string DeviceExecutor::DescribeMark(const LaneStream::Mark& mark) const {
  return StrCat(mark.actor == kNone ? StrCat("phase ", device_plan_.phases[mark.phase].name)
                                    : StrCat("actor ", NameOf(mark.actor)),
                " on device ", device_index_, ", ",
                InstanceName(mark.phase, mark.step, mark.microbatch));
}

absl::Status DeviceExecutor::WithMark(const LaneStream::Mark& mark,
                                      const absl::Status& status) const {
  return absl::Status(status.code(), StrCat(DescribeMark(mark), ": ", ToStd(status.message())));
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
  return InstanceName(phase, step, microbatch);
}

std::string DeviceExecutor::InstanceName(uint32_t phase, int64_t step, int64_t microbatch) const {
  std::string text = StepName(step, options_.first_step);
  if (phases_[phase].per_microbatch) StrAppend(&text, ", micro-batch ", microbatch);
  return text;
}

// A wait for each counter that keeps the phase from starting; `line` begins the line of all.
void DeviceExecutor::AddMissing(uint32_t index, std::string line,
                                std::vector<DeviceWait>* waits) const {
  const Phase& phase = phases_[index];
  const size_t first = waits->size();
  for (uint32_t i = 0; i < phase.num_counters && waits->size() < kMaxDescribedLines; ++i) {
    const TokenCounter& counter = counters_[phase.first_counter + i];
    if (!counter.is_short()) continue;
    const TokenCounterInfo& info = counter_infos_[phase.first_counter + i];
    const planner::ChannelPlan& channel = device_plan_.channels[info.channel];
    const uint32_t waiting = info.is_credit ? channel.producer : channel.consumer;
    const uint32_t other = info.is_credit ? channel.consumer : channel.producer;
    std::string what = StrCat(info.is_credit ? "credits" : "tokens", " from '", NameOf(other), "' ",
                              counter.count(), " of ", counter.need);
    StrAppend(&line, waits->size() > first ? "; " : "", what);
    waits->push_back({NameOf(waiting), std::move(what)});
  }
  if (waits->size() > first) (*waits)[first].line = std::move(line);
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

std::vector<DeviceWait> DeviceExecutor::Waits() const {
  std::vector<DeviceWait> waits;
  if (completed_ == submitted_) return waits;
  auto is_waited_for = [&](uint32_t phase) {  // started late or not at all in a submitted step
    const int64_t rate = phases_[phase].per_microbatch ? num_microbatches_ : 1;
    return progress_[phase].next_instance < submitted_ * rate;
  };
  const PhaseDecision* decision = stage_ == nullptr ? nullptr : stage_->decisions.Front();
  for (uint32_t p = 0; p < phases_.size() && waits.size() < kMaxDescribedLines; ++p) {
    const Phase& phase = phases_[p];
    const Progress& progress = progress_[p];
    if (!is_waited_for(p)) continue;
    const std::string name = StrCat("device ", device_index_, ": phase '",
                                    device_plan_.phases[p].name, "', ", InstanceName(p));
    if (progress.is_running) {
      if (progress.remaining == 0) continue;  // what it waits for follows below
      uint32_t blocked = phase.first_actor;
      while (blocked + 1 < phase.end_actor && pending_[blocked] == 0) ++blocked;
      const uint32_t next = progress.next_in_order;
      if (next < phase.end_actor && IsStreamComm(actors_[next]) && pending_[next] == 0 &&
          !MayLaunch(p)) {
        const std::string turn =
            StrCat("phase '", device_plan_.phases[launches_[launch_run_].phase].name,
                   "', which launches first");
        waits.push_back({NameOf(next), turn, kNone,
                         StrCat(name, ", is at actor '", NameOf(next), "', after ", turn)});
        continue;
      }
      std::vector<std::string> sources;
      for (const planner::ChannelPlan& channel : device_plan_.channels) {
        if (channel.consumer != blocked || channel.producer < phase.first_actor ||
            channel.producer >= phase.end_actor || actors_[channel.producer].runs_on_stream) {
          continue;
        }
        const uint32_t part = actors_[channel.producer].part;
        if (std::find(active_comms_.begin(), active_comms_.end(), part) != active_comms_.end()) {
          sources.push_back(StrCat("from '", NameOf(channel.producer), "'"));
        }
      }
      const std::string tokens = StrCat(pending_[blocked], " tokens");
      std::string line =
          StrCat(name, ", is at actor '", NameOf(blocked), "', which misses ", tokens);
      for (const std::string& source : sources) StrAppend(&line, "; ", source);
      waits.push_back({NameOf(blocked),
                       sources.empty() ? tokens : StrCat("tokens ", StrJoin(sources, ", ")), kNone,
                       std::move(line)});
      continue;
    }
    if (phase.missing > 0) {
      AddMissing(p, StrCat(name, ", misses "), &waits);
      continue;
    }
    const std::string first_actor =
        phase.first_actor < phase.end_actor ? NameOf(phase.first_actor) : "";
    switch (phase.lane) {
      case Lane::kCompute:
        if (decision == nullptr) {
          waits.push_back({first_actor, "its stage, which has not chosen", kNone,
                           StrCat(name, ", could run; its stage has not chosen")});
        } else if (decision->type != phase.type) {
          const std::string chosen =
              StrCat(ToString(*decision), " of ", StepName(decision->step, options_.first_step));
          waits.push_back({first_actor, StrCat(chosen, ", which its stage chose first"), kNone,
                           StrCat(name, ", could run; its stage chose ", chosen, " first")});
        }
        break;
      case Lane::kPerStep:
        if (per_step_phases_[next_per_step_] != p) {
          const std::string before =
              StrCat("phase '", device_plan_.phases[per_step_phases_[next_per_step_]].name, "'");
          waits.push_back({first_actor, before, kNone, StrCat(name, ", comes after ", before)});
        }
        break;
      case Lane::kFloating:
        break;
    }
  }
  const std::string device = StrCat("device ", device_index_, ": ");
  const auto add = [&](uint32_t actor, uint32_t communication, std::string what, std::string line) {
    if (waits.size() >= kMaxDescribedLines) return;
    waits.push_back({NameOf(actor), std::move(what), communication, StrCat(device, line)});
  };
  for (const uint32_t part : active_comms_) {
    const Comm& comm = communication_.comms()[part];
    add(comm.actor, comm.ordinal, "other devices", StrCat("pending ", DescribeComm(comm)));
  }
  if (is_synchronous_) return waits;
  staging_->ForEachPending([&](uint32_t part) {
    const Comm& comm = communication_.comms()[part];
    add(comm.actor, kNone, "a copy on its stream",
        StrCat("the stream has not copied what is read by ", DescribeComm(comm)));
  });
  const auto describe = [&](const LaneStream& stream) {
    const LaneStream::Mark* pending = stream.Pending();
    if (pending == nullptr) return;
    const bool is_phase = pending->actor == kNone;
    add(is_phase ? device_plan_.phases[pending->phase].first_actor : pending->actor, kNone,
        "its stream",
        StrCat("the stream has not completed ",
               is_phase ? StrCat("phase '", device_plan_.phases[pending->phase].name)
                        : StrCat("actor '", NameOf(pending->actor)),
               "', ", InstanceName(pending->phase, pending->step, pending->microbatch)));
  };
  for (const LaneStream* stream : all_streams_) describe(*stream);
  for (const StreamComm& comm : stream_comms_) describe(*comm.stream);
  return waits;
}

std::vector<std::string> DeviceExecutor::Describe() const {
  std::vector<std::string> lines;
  for (DeviceWait& wait : Waits()) {
    if (!wait.line.empty()) lines.push_back(std::move(wait.line));
  }
  return lines;
}

int64_t DeviceExecutor::MicrobatchesDone(int64_t steps_done) const {
  int64_t least = steps_done * num_microbatches_;
  bool has_phase = false;
  for (uint32_t type = 0; type < phase_of_type_.size(); ++type) {
    if (stage_ == nullptr || phase_of_type_[type] == kNone) continue;
    const int64_t completed = stage_->counts[type].completed.load(std::memory_order_relaxed);
    least = has_phase ? std::min(least, completed) : completed;
    has_phase = true;
  }
  return least;
}

ChannelUse DeviceExecutor::ChannelsInUse() const {
  ChannelUse use;
  std::vector<uint64_t> slots(device_plan_.registers.size(), 0);  // in use, of each register
  for (size_t i = 0; i < counters_.size(); ++i) {
    const planner::ChannelPlan& channel = device_plan_.channels[counter_infos_[i].channel];
    if (channel.reg == kNone) continue;
    const uint64_t count = counters_[i].count();
    if (!counter_infos_[i].is_credit) {
      use.tokens_waiting += count;
      continue;
    }
    // The counts of one moment are not read all at once.
    const uint64_t in_use = channel.capacity - std::min<uint64_t>(count, channel.capacity);
    use.credits += channel.capacity;
    use.credits_in_use += in_use;
    const planner::RegisterPlan& reg = device_plan_.registers[channel.reg];
    const uint64_t firings =
        planner::FiringsPerStep(plan_, device_plan_.phases[counters_[i].phase]);
    const uint64_t per_slot = planner::TokensPerSlot(plan_, reg, firings * channel.produce);
    slots[channel.reg] = std::max(slots[channel.reg], (in_use + per_slot - 1) / per_slot);
  }
  for (size_t r = 0; r < slots.size(); ++r) {
    const planner::RegisterPlan& reg = device_plan_.registers[r];
    if (reg.register_class != planner::RegisterClass::kChannel) continue;
    use.bytes_in_use += slots[r] * reg.slot_bytes;
  }
  return use;
}

DeviceSnapshot DeviceExecutor::Snapshot() const {
  DeviceSnapshot snapshot;
  snapshot.device = device_index_;
  const int64_t now = clock_->NowNs();
  const int64_t completed = num_completed_.load(std::memory_order_relaxed);
  const IdleTime::Reading idle = idle_.Read(now);
  snapshot.step = completed + options_.first_step;
  snapshot.graphs = DescribeGraphs();
  snapshot.age_ns = now - loaded_ns_;
  snapshot.still_ns = idle.current_ns;
  snapshot.collective_ns = std::clamp<int64_t>(idle.ns[IdleTime::kCollective], 0, snapshot.age_ns);
  snapshot.transfer_ns = std::clamp<int64_t>(idle.ns[IdleTime::kTransfer], 0,
                                             snapshot.age_ns - snapshot.collective_ns);
  const int64_t known_ns = snapshot.collective_ns + snapshot.transfer_ns;
  snapshot.idle_ns =
      std::clamp<int64_t>(known_ns + idle.ns[IdleTime::kNothing], known_ns, snapshot.age_ns);
  const uint32_t actor = running_actor_.load(std::memory_order_relaxed);
  if (num_submitted_.load(std::memory_order_relaxed) <= completed) {
    snapshot.state = DeviceSnapshot::State::kIdle;
  } else if (idle.current_ns > 0 && actor == kNone) {
    snapshot.state = DeviceSnapshot::State::kWaiting;
  } else {
    snapshot.state = DeviceSnapshot::State::kRunning;
    snapshot.still_ns = 0;
    if (actor != kNone) snapshot.running = NameOf(actor);
  }
  snapshot.microbatches = MicrobatchesDone(completed);
  snapshot.channels = ChannelsInUse();
  AppendCommunications(&snapshot.communications);
  snapshot.communications.resize(communication_counts_.size());  // those of the plan
  return snapshot;
}

}  // namespace penstock::actors
