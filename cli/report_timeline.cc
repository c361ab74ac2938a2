#include "cli/report_timeline.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "actors/engine/step_name.h"
#include "actors/trace/communication_times.h"
#include "actors/trace/computation_times.h"

namespace penstock::cli {
namespace {

using planner::ActorKind;
using planner::kNone;
using planner::Lane;

double TimelineSeconds(int64_t ns) { return 1e-9 * static_cast<double>(ns); }

// The first devices of every stage, as many as there is room for; by stage, then device.
std::vector<ReportRow> RowsOf(const planner::Plan& plan) {
  std::vector<ReportRow> rows;
  size_t most = 0;
  for (const planner::StagePlan& stage : plan.stages) most = std::max(most, stage.devices.size());
  for (size_t i = 0; i < most; ++i) {
    for (uint32_t s = 0; s < plan.stages.size() && rows.size() < kMaxTimelineRows; ++s) {
      const std::vector<uint32_t>& devices = plan.stages[s].devices;
      if (i < devices.size()) rows.push_back({devices[i], s});
    }
  }
  std::sort(rows.begin(), rows.end(), [](const ReportRow& a, const ReportRow& b) {
    return std::pair(a.stage, a.device) < std::pair(b.stage, b.device);
  });
  return rows;
}

template <typename Slice>
void KeepLongest(std::vector<Slice>* slices, size_t most, ReportOmitted* omitted) {
  if (slices->size() <= most) return;
  const auto length = [](const Slice& slice) { return slice.end_s - slice.begin_s; };
  std::stable_sort(slices->begin(), slices->end(),
                   [&](const Slice& a, const Slice& b) { return length(a) > length(b); });
  omitted->count = static_cast<int64_t>(slices->size() - most);
  omitted->longest_s = length((*slices)[most]);
  for (size_t i = most; i < slices->size(); ++i) omitted->total_s += length((*slices)[i]);
  slices->resize(most);
}

ReportLane LaneOf(ActorKind kind) {
  switch (kind) {
    case ActorKind::kSend:
      return ReportLane::kSend;
    case ActorKind::kRecv:
      return ReportLane::kReceive;
    case ActorKind::kCollective:
      return ReportLane::kCollective;
    default:
      return ReportLane::kKernel;
  }
}

ReportPathKind KindOf(const actors::PathSegment& segment) {
  switch (segment.kind) {
    case actors::SegmentKind::kCompute:
      return ReportPathKind::kCompute;
    case actors::SegmentKind::kCommunication:
      return ReportPathKind::kCommunication;
    case actors::SegmentKind::kIdle:
      break;
  }
  return 2 * segment.core_wait_ns >= segment.duration_ns() ? ReportPathKind::kCoreWait
                                                           : ReportPathKind::kIdle;
}

class TimelineMaker {
 public:
  TimelineMaker(const planner::Plan& plan, absl::Span<const actors::TraceEvent> events,
                const actors::CriticalPath& path)
      : plan_(plan), events_(events), path_(path) {
    timeline_.step = actors::StepNumber(path.step.step);
    timeline_.span_s = TimelineSeconds(path.duration_ns());
    timeline_.rows = RowsOf(plan);
    timeline_.num_devices = plan.devices.size();
    for (size_t row = 0; row < timeline_.rows.size(); ++row) {
      rows_[timeline_.rows[row].device] = static_cast<uint32_t>(row);
    }
  }

  ReportTimeline Run() {
    AddSlices();
    KeepLongest(&phases_, kMaxPhaseSlices, &timeline_.omitted_phases);
    KeepLongest(&kernels_, kMaxKernelSlices, &timeline_.omitted_kernels);
    KeepLongest(&communications_, kMaxCommunicationSlices, &timeline_.omitted_communications);
    for (const std::vector<ReportSlice>* slices : {&phases_, &kernels_, &communications_}) {
      timeline_.slices.insert(timeline_.slices.end(), slices->begin(), slices->end());
    }
    std::sort(timeline_.slices.begin(), timeline_.slices.end(),
              [](const ReportSlice& a, const ReportSlice& b) {
                return std::tuple(a.row, a.lane, a.begin_s) < std::tuple(b.row, b.lane, b.begin_s);
              });
    NumberNames();
    AddPath();
    return std::move(timeline_);
  }

 private:
  void AddSlices() {
    const std::vector<actors::TraceEvent> serial = actors::SerializeComputations(plan_, events_);
    const std::vector<actors::TransferTime> transfers = actors::TransferTimes(plan_, events_);
    for (size_t i = 0; i < events_.size(); ++i) {
      const actors::TraceEvent& event = serial[i];
      const auto row = rows_.find(event.device);
      if (row == rows_.end()) continue;
      const planner::DevicePlan& device = plan_.devices[event.device];
      if (event.phase >= device.phases.size()) continue;
      const planner::PhasePlan& phase = device.phases[event.phase];
      const bool is_phase = event.actor == kNone;
      if (is_phase ? phase.lane == Lane::kFloating : event.actor >= device.actors.size()) continue;
      const bool moves = actors::IsCommunication(plan_, event);
      const int64_t begin_ns = moves ? transfers[i].begin_ns : event.begin_ns;
      const int64_t end_ns = moves ? begin_ns + transfers[i].moving_ns : event.end_ns;
      ReportSlice slice;
      slice.row = row->second;
      slice.kind = phase.kind;
      slice.lane = is_phase ? ReportLane::kPhase : LaneOf(device.actors[event.actor].kind);
      slice.name = NameIndex(is_phase ? phase.name : device.actors[event.actor].name);
      slice.microbatch = phase.per_microbatch ? static_cast<int64_t>(event.microbatch) : -1;
      slice.is_other_step = event.step != path_.step.step;
      slice.begin_s =
          TimelineSeconds(std::max(begin_ns, path_.step.begin_ns) - path_.step.begin_ns);
      slice.end_s = TimelineSeconds(std::min(end_ns, path_.step.end_ns) - path_.step.begin_ns);
      if (slice.begin_s >= slice.end_s) continue;
      (is_phase ? phases_ : moves ? communications_ : kernels_).push_back(slice);
    }
  }

  uint32_t NameIndex(const std::string& name) {
    return names_.try_emplace(name, static_cast<uint32_t>(names_.size())).first->second;
  }

  // Only the names of slices that are left.
  void NumberNames() {
    std::vector<const std::string*> texts(names_.size());
    for (const auto& [text, index] : names_) texts[index] = &text;
    std::vector<uint32_t> numbers(names_.size(), kNone);
    for (ReportSlice& slice : timeline_.slices) {
      uint32_t& number = numbers[slice.name];
      if (number == kNone) {
        number = static_cast<uint32_t>(timeline_.names.size());
        timeline_.names.push_back(*texts[slice.name]);
      }
      slice.name = number;
    }
  }

  void AddPath() {
    for (const actors::PathSegment& segment : path_.segments) {
      ReportPathSlice slice;
      slice.kind = KindOf(segment);
      const auto row = rows_.find(segment.device);
      if (row != rows_.end()) slice.row = row->second;
      slice.device = segment.device;
      if (segment.actor != kNone) {
        slice.name = plan_.devices[segment.device].actors[segment.actor].name;
      }
      slice.begin_s = TimelineSeconds(segment.begin_ns - path_.step.begin_ns);
      slice.end_s = TimelineSeconds(segment.end_ns - path_.step.begin_ns);
      if (slice.begin_s < slice.end_s) timeline_.path.push_back(std::move(slice));
    }
    KeepLongest(&timeline_.path, kMaxPathSlices, &timeline_.omitted_path);
    std::sort(
        timeline_.path.begin(), timeline_.path.end(),
        [](const ReportPathSlice& a, const ReportPathSlice& b) { return a.begin_s < b.begin_s; });
  }

  const planner::Plan& plan_;
  const absl::Span<const actors::TraceEvent> events_;
  const actors::CriticalPath& path_;
  std::map<uint32_t, uint32_t> rows_;  // by device
  std::map<std::string, uint32_t> names_;
  std::vector<ReportSlice> phases_, kernels_, communications_;
  ReportTimeline timeline_;
};

}  // namespace

ReportTimeline MakeTimeline(const planner::Plan& plan, absl::Span<const actors::TraceEvent> events,
                            const actors::CriticalPath& path) {
  return TimelineMaker(plan, events, path).Run();
}

}  // namespace penstock::cli
