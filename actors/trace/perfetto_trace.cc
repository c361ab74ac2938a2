#include "actors/trace/perfetto_trace.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <tuple>

#include "absl/container/flat_hash_map.h"

#include "actors/engine/step_name.h"
#include "actors/trace/communication_times.h"
#include "actors/trace/computation_times.h"
#include "actors/trace/perfetto_writer_internal.h"
#include "actors/trace/register_use.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using planner::ActorKind;
using planner::kNone;
using planner::Lane;
using Track = PerfettoWriter::Track;
using Name = PerfettoWriter::Name;
using SliceOptions = PerfettoWriter::SliceOptions;

// Actors of a device are shown in groups.
constexpr std::array<const char*, 6> kGroupNames = {
    "kernels",          "sends", "receives", "collectives", "copies to and from the host",
    "feeds and fetches"};

size_t GroupOf(ActorKind kind) {
  switch (kind) {
    case ActorKind::kSend:
      return 1;
    case ActorKind::kRecv:
      return 2;
    case ActorKind::kCollective:
      return 3;
    case ActorKind::kCopy:
      return 4;
    case ActorKind::kFeed:
    case ActorKind::kFetch:
      return 5;
    default:
      return 0;
  }
}

class Writer {
 public:
  Writer(const planner::Plan& plan, absl::Span<const TraceEvent> events,
         const TraceContext& context, std::ostream& out)
      : plan_(plan), context_(context), events_(events), out_(out) {}

  void Write() {
    AddSteps();
    AddPath();
    AddDevices();
    FindBegins();
    SortEvents();
    // A flow leads from the slice that comes first, in the file where times are equal.
    for (Track track = 1; track < first_event_.size() - 1; ++track) {
      if (starts_flows_[track]) WriteSlices(track);
    }
    for (Track track = 1; track < first_event_.size() - 1; ++track) {
      if (!starts_flows_[track]) WriteSlices(track);
    }
    AddCounters();
  }

 private:
  struct DeviceTracks {
    Track device = 0;
    Track compute = 0;
    Track per_step = 0;
    std::vector<Track> phases;  // of each
    std::vector<Track> actors;  // of each
  };

  void AddSteps() {
    if (context_.steps.empty()) return;
    const Track track = out_.AddTrack("steps", {.rank = 0});
    int64_t end_ns = INT64_MIN;
    for (const StepWindow& step : context_.steps) {
      const int64_t begin_ns = std::max(step.begin_ns, end_ns);
      end_ns = std::max(begin_ns, step.end_ns);
      out_.AddSlice(track, out_.AddName(StepName(step.step)), begin_ns, end_ns, {});
    }
  }

  void AddPath() {
    if (context_.path == nullptr) return;
    const CriticalPath& path = *context_.path;
    const Track track = out_.AddTrack(
        StrCat("critical path of ", StepName(path.step.step)),
        {.description = "What ran or was waited for at each moment of the step", .rank = 1});
    for (const PathSegment& segment : path.segments) {
      std::string name = StrCat("idle, device ", segment.device);
      if (segment.actor != kNone && segment.device < plan_.devices.size() &&
          segment.actor < plan_.devices[segment.device].actors.size()) {
        name = StrCat(plan_.devices[segment.device].actors[segment.actor].name, ", device ",
                      segment.device);
      }
      out_.AddSlice(track, out_.AddName(name), segment.begin_ns, segment.end_ns, {});
    }
  }

  // Tracks from processes down to actors.
  void AddDevices() {
    processes_ = context_.processes;
    std::vector<bool> is_hosted(plan_.devices.size());
    for (const TraceProcess& process : processes_) {
      for (uint32_t d = 0; d < process.num_devices; ++d) {
        const uint64_t device = uint64_t{process.first_device} + d;
        if (device < is_hosted.size()) is_hosted[device] = true;
      }
    }
    for (uint32_t d = 0; d < is_hosted.size(); ++d) {
      if (is_hosted[d]) continue;
      const bool continues =
          d > 0 && !is_hosted[d - 1] && processes_.size() > context_.processes.size();
      if (continues) {
        ++processes_.back().num_devices;
      } else {
        processes_.push_back({"penstock", d, 1});
      }
    }
    tracks_.resize(plan_.devices.size());
    for (size_t p = 0; p < processes_.size(); ++p) {
      const auto id = static_cast<int32_t>(p + 1);
      const Track process = out_.AddTrack(processes_[p].name, {.process_id = id, .rank = id});
      process_tracks_.push_back(process);
      std::map<uint32_t, Track> stages;
      for (uint32_t i = 0; i < processes_[p].num_devices; ++i) {
        const uint64_t device = uint64_t{processes_[p].first_device} + i;
        if (device >= tracks_.size() || tracks_[device].device != 0) continue;
        const uint32_t stage = plan_.devices[device].stage;
        Track& parent = stages[stage];
        if (parent == 0) {
          parent = out_.AddTrack(StrCat("stage ", stage),
                                 {.parent = process, .rank = static_cast<int32_t>(stage)});
        }
        AddDevice(static_cast<uint32_t>(device), parent);
      }
    }
  }

  void AddDevice(uint32_t index, Track stage) {
    const planner::DevicePlan& device = plan_.devices[index];
    DeviceTracks& tracks = tracks_[index];
    tracks.device = out_.AddTrack(StrCat("device ", index),
                                  {.parent = stage, .rank = static_cast<int32_t>(index)});
    int32_t rank = 0;
    tracks.compute = out_.AddTrack("compute phases", {.parent = tracks.device, .rank = rank++});
    tracks.per_step =
        out_.AddTrack("once-a-step phases", {.parent = tracks.device, .rank = rank++});
    // Actors before floating phases, of which there may be many.
    std::array<Track, kGroupNames.size()> groups = {};
    for (size_t g = 0; g < groups.size(); ++g, ++rank) {
      const bool is_used =
          std::any_of(device.actors.begin(), device.actors.end(),
                      [&](const planner::ActorPlan& actor) { return GroupOf(actor.kind) == g; });
      if (is_used) {
        groups[g] = out_.AddTrack(kGroupNames[g], {.parent = tracks.device, .rank = rank});
      }
    }
    Track floating = 0;
    for (const planner::PhasePlan& phase : device.phases) {
      switch (phase.lane) {
        case Lane::kCompute:
          tracks.phases.push_back(tracks.compute);
          break;
        case Lane::kPerStep:
          tracks.phases.push_back(tracks.per_step);
          break;
        case Lane::kFloating:
          if (floating == 0) {
            floating = out_.AddTrack("floating phases", {.parent = tracks.device, .rank = rank++});
          }
          tracks.phases.push_back(out_.AddTrack(phase.name, {.parent = floating}));
          break;
      }
    }
    tracks.actors.resize(device.actors.size());
    for (const planner::PhasePlan& phase : device.phases) {
      const std::string description = StrCat("In phase ", phase.name);
      const uint64_t end = uint64_t{phase.first_actor} + phase.num_actors;
      for (uint64_t a = phase.first_actor; a < std::min<uint64_t>(end, device.actors.size()); ++a) {
        const planner::ActorPlan& actor = device.actors[a];
        tracks.actors[a] = out_.AddTrack(actor.name, {.parent = groups[GroupOf(actor.kind)],
                                                      .description = description,
                                                      .rank = static_cast<int32_t>(a)});
      }
    }
  }

  // The track of an event; 0: the plan does not have what ran.
  Track TrackOf(const TraceEvent& event) const {
    if (event.device >= tracks_.size()) return 0;
    const DeviceTracks& tracks = tracks_[event.device];
    if (event.phase >= tracks.phases.size()) return 0;
    if (event.actor == kNone) return tracks.phases[event.phase];
    return event.actor < tracks.actors.size() ? tracks.actors[event.actor] : 0;
  }

  void FindBegins() {
    begins_ns_ = SerialBegins(plan_, events_);
    const std::vector<TransferTime> transfers = TransferTimes(plan_, events_);
    for (size_t i = 0; i < events_.size(); ++i) {
      if (IsCommunication(plan_, events_[i])) begins_ns_[i] = transfers[i].begin_ns;
    }
  }

  // By track, then by begin.
  void SortEvents() {
    std::vector<Track> tracks;
    tracks.reserve(events_.size());
    Track last = 0;
    for (const TraceEvent& event : events_)
      last = std::max(last, tracks.emplace_back(TrackOf(event)));
    // The events of a track come after those of the ones before it.
    first_event_.assign(last + 2, 0);
    for (const Track track : tracks) ++first_event_[track + 1];
    std::partial_sum(first_event_.begin(), first_event_.end(), first_event_.begin());
    sorted_.resize(events_.size());
    std::vector<uint32_t> next = first_event_;
    for (uint32_t i = 0; i < tracks.size(); ++i) sorted_[next[tracks[i]]++] = i;
    starts_flows_.assign(last + 1, false);
    for (Track track = 1; track <= last; ++track) {
      const auto begin = sorted_.begin() + first_event_[track];
      const auto end = sorted_.begin() + first_event_[track + 1];
      if (begin == end) continue;
      const TraceEvent& event = events_[*begin];
      starts_flows_[track] =
          event.actor != kNone &&
          plan_.devices[event.device].actors[event.actor].kind == ActorKind::kSend;
      const auto begins_before = [this](uint32_t a, uint32_t b) {
        return begins_ns_[a] < begins_ns_[b];
      };
      if (!std::is_sorted(begin, end, begins_before)) std::stable_sort(begin, end, begins_before);
    }
  }

  // The same for both sides of a transfer, never 0.
  uint64_t FlowOf(uint32_t transfer, const TraceEvent& event) {
    return flows_.try_emplace({transfer, event.step, event.microbatch}, flows_.size() + 1)
        .first->second;
  }

  void WriteSlices(Track track) {
    int64_t free_ns = INT64_MIN;
    Name name = 0;  // of an actor: the same for all slices of the track
    for (uint32_t k = first_event_[track]; k < first_event_[track + 1]; ++k) {
      const TraceEvent& event = events_[sorted_[k]];
      const planner::DevicePlan& device = plan_.devices[event.device];
      const planner::PhasePlan& phase = device.phases[event.phase];
      SliceOptions options;
      options.step = StepNumber(event.step);
      if (phase.per_microbatch) options.microbatch = event.microbatch;
      const int64_t known_ns = begins_ns_[sorted_[k]];
      if (event.actor == kNone) {
        const bool has_number = phase.per_microbatch && plan_.num_microbatches > 1;
        name = out_.AddName(has_number ? StrCat(phase.name, " ", event.microbatch) : phase.name);
      } else {
        const planner::ActorPlan& actor = device.actors[event.actor];
        if (name == 0) name = out_.AddName(actor.name);
        if (planner::IsCommunication(actor.kind)) {
          options.wait_ms = static_cast<double>(known_ns - event.begin_ns) * 1e-6;
          if (actor.kind != ActorKind::kCollective) {
            options.flow = FlowOf(actor.target, event);
            options.ends_flow = actor.kind == ActorKind::kRecv;
          }
        }
      }
      const int64_t begin_ns = std::max(known_ns, free_ns);
      free_ns = std::max(begin_ns, event.end_ns);
      out_.AddSlice(track, name, begin_ns, free_ns, options);
    }
  }

  void AddCounters() {
    for (const TraceEvent& event : events_) {
      first_begin_ns_ = std::min(first_begin_ns_, event.begin_ns);
      last_end_ns_ = std::max(last_end_ns_, event.end_ns);
    }
    for (size_t p = 0; p < processes_.size(); ++p) AddProcessCounters(p);
    const std::vector<DeviceUse> uses = UseOverTime(plan_, events_);
    for (size_t d = 0; d < uses.size(); ++d) {
      const planner::DevicePlan& device = plan_.devices[d];
      const Track parent = tracks_[d].device;
      // What the plan gives the device does not change while it runs.
      AddConstant("bytes of the arena, planned", parent, device.arena_bytes);
      AddConstant("bytes of states, planned", parent, device.state_bytes);
      AddConstant("bytes of channels, planned", parent, device.channel_bytes);
      AddConstant("bytes of workspace, planned", parent, device.workspace_bytes);
      AddConstant("bytes of host memory, planned", parent, device.host_bytes);
      AddCounter("bytes in channel registers", parent, PerfettoWriter::Unit::kBytes,
                 uses[d].channel_bytes);
      AddCounter("communications under way", parent, PerfettoWriter::Unit::kCount,
                 uses[d].communications);
      for (const EdgeUse& edge : uses[d].edges) {
        const std::string name = StrCat(device.phases[edge.producer_phase].name, " to ",
                                        device.phases[edge.consumer_phase].name);
        AddCounter(StrCat("credits in use, ", name, " (of ", edge.capacity, ")"), parent,
                   PerfettoWriter::Unit::kCount, edge.credits_in_use);
        AddCounter(StrCat("tokens waiting, ", name), parent, PerfettoWriter::Unit::kCount,
                   edge.tokens_waiting);
      }
    }
  }

  void AddProcessCounters(size_t p) {
    const TraceProcess& process = processes_[p];
    uint64_t arena_bytes = 0;
    for (uint32_t i = 0; i < process.num_devices; ++i) {
      const uint64_t device = uint64_t{process.first_device} + i;
      if (device < plan_.devices.size()) arena_bytes += plan_.devices[device].arena_bytes;
    }
    AddConstant("bytes of arenas, planned", process_tracks_[p], arena_bytes);
    if (events_.empty()) return;
    // A ring of events may have lost what lies before: the counter begins with the events.
    std::vector<UseSample> samples;
    for (const UseSample& sample : process.resident_bytes) {
      const int64_t at_ns = std::clamp(sample.at_ns, first_begin_ns_, last_end_ns_);
      if (!samples.empty() && samples.back().at_ns == at_ns) samples.pop_back();
      samples.push_back({at_ns, sample.value});
    }
    AddCounter("resident bytes", process_tracks_[p], PerfettoWriter::Unit::kBytes, samples);
  }

  void AddCounter(const std::string& name, Track parent, PerfettoWriter::Unit unit,
                  const std::vector<UseSample>& samples) {
    if (samples.empty()) return;
    const Track counter = out_.AddCounter(name, parent, unit);
    for (const UseSample& sample : samples) out_.AddCount(counter, sample.at_ns, sample.value);
  }

  // From the first event to the last one. Nothing for 0.
  void AddConstant(const std::string& name, Track parent, uint64_t bytes) {
    if (bytes == 0 || events_.empty()) return;
    const auto value = static_cast<int64_t>(bytes);
    AddCounter(name, parent, PerfettoWriter::Unit::kBytes,
               {{first_begin_ns_, value}, {last_end_ns_, value}});
  }

  const planner::Plan& plan_;
  const TraceContext& context_;
  const absl::Span<const TraceEvent> events_;
  PerfettoWriter out_;
  std::vector<TraceProcess> processes_;  // with those that the context lacks
  std::vector<Track> process_tracks_;    // of each
  std::vector<DeviceTracks> tracks_;     // of each device
  std::vector<int64_t> begins_ns_;       // of each event: of its slice
  std::vector<uint32_t> sorted_;         // events
  std::vector<uint32_t> first_event_;    // of each track, into sorted_; one more at the end
  std::vector<bool> starts_flows_;       // of each track
  int64_t first_begin_ns_ = INT64_MAX;
  int64_t last_end_ns_ = INT64_MIN;
  absl::flat_hash_map<std::tuple<uint32_t, int64_t, uint32_t>, uint64_t> flows_;
};

}  // namespace

void WritePerfettoTrace(const planner::Plan& plan, absl::Span<const TraceEvent> events,
                        const TraceContext& context, std::ostream& out) {
  Writer(plan, events, context, out).Write();
}

}  // namespace penstock::actors
