// What a device executor tells of itself: traces, and what it waits for.

#include <algorithm>

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
  if (options_.trace_every > 1 && what.step % options_.trace_every != 0) return;
  const TraceEvent event = {
      device_index_, what.actor,    what.phase, static_cast<uint32_t>(what.microbatch),
      what.step,     what.begin_ns, end_ns};
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
  std::string text = StepName(step + options_.first_step);
  if (phases_[phase].per_microbatch) StrAppend(&text, ", micro-batch ", microbatch);
  return text;
}

std::string DeviceExecutor::DescribeCounters(uint32_t index) const {
  const Phase& phase = phases_[index];
  std::string text;
  for (uint32_t i = 0; i < phase.num_counters; ++i) {
    const TokenCounter& counter = counters_[phase.first_counter + i];
    if (counter.count >= counter.need) continue;
    const TokenCounterInfo& info = counter_infos_[phase.first_counter + i];
    const planner::ChannelPlan& channel = device_plan_.channels[info.channel];
    StrAppend(&text, text.empty() ? "" : "; ", info.is_credit ? "credits" : "tokens", " from '",
              NameOf(info.is_credit ? channel.consumer : channel.producer), "' ", counter.count,
              " of ", counter.need);
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
            channel.producer >= phase.end_actor || actors_[channel.producer].runs_on_stream) {
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
      lines.push_back(StrCat(name, ", misses ", DescribeCounters(p)));
      continue;
    }
    switch (phase.lane) {
      case Lane::kCompute:
        if (decision == nullptr) {
          lines.push_back(StrCat(name, ", could run; its stage has not chosen"));
        } else if (decision->type != phase.type) {
          lines.push_back(StrCat(name, ", could run; its stage chose ", ToString(*decision), " of ",
                                 StepName(decision->step), " first"));
        }
        break;
      case Lane::kPerStep:
        if (per_step_phases_[once_turn_] != p) {
          lines.push_back(StrCat(name, ", comes after phase '",
                                 device_plan_.phases[per_step_phases_[once_turn_]].name, "'"));
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
  if (is_synchronous_) return lines;
  staging_->ForEachPending([&](uint32_t part) {
    if (lines.size() >= kMaxDescribedLines) return;
    lines.push_back(StrCat("device ", device_index_, ": the stream has not copied what is read by ",
                           DescribeComm(communication_.comms()[part])));
  });
  const auto describe = [&](const LaneStream& stream) {
    const LaneStream::Mark* pending = stream.Pending();
    if (pending == nullptr || lines.size() >= kMaxDescribedLines) return;
    lines.push_back(
        StrCat("device ", device_index_, ": the stream has not completed ",
               pending->actor == kNone ? StrCat("phase '", device_plan_.phases[pending->phase].name)
                                       : StrCat("actor '", NameOf(pending->actor)),
               "', ", InstanceName(pending->phase, pending->step, pending->microbatch)));
  };
  for (const LaneStream* stream : all_streams_) describe(*stream);
  for (const StreamComm& comm : stream_comms_) describe(*comm.stream);
  return lines;
}

}  // namespace penstock::actors
