#include "cli/analyse_trace.h"

#include <algorithm>
#include <iterator>

#include "cli/device_list.h"
#include "cli/measured_latency.h"
#include "cli/replayed_cores.h"
#include "cli/replayed_links.h"

#include "actors/trace/computation_times.h"
#include "planner/cost/replay.h"

namespace penstock::cli {
namespace {

// Longer steps would take too long to be replayed.
constexpr uint64_t kMaxSampledActs = 200'000;
// Steps whose critical paths and kernel times are worked out after the run.
constexpr int64_t kMaxAnalysedSteps = 100;

// Seconds of a step at the median times of the kernels, where possible without communication beside
// them; NaN: it cannot be replayed.
double ReplayStep(const TracedRun& run, absl::Span<const actors::TraceEvent> events, const Job& job,
                  const planner::PolicyRegistry& policies) {
  planner::ReplayOptions options;
  options.core_of_device = CoreOfDevice(run.cores);
  options.process_of_device.assign(run.plan.devices.size(), 0);
  for (const actors::NodeDescription& node : run.nodes) {
    std::fill_n(options.process_of_device.begin() + node.first_device, node.num_devices, node.rank);
  }
  const absl::StatusOr<DeviceList> devices =
      DeviceListOf(job, static_cast<int64_t>(run.plan.devices.size()));
  if (!devices.ok()) return std::numeric_limits<double>::quiet_NaN();
  for (size_t d = 0; d < run.plan.devices.size(); ++d) {
    options.has_copy_streams.push_back(devices->KindOf(static_cast<int64_t>(d)) != "cpu");
  }
  const std::vector<std::vector<double>> times = actors::MedianComputeSeconds(
      run.plan, WithoutCoreSharing(run.plan, events, run.cores),
      actors::BesideCommunication(run.plan, events, options.process_of_device));
  options.compute_s = [&](uint32_t device, uint32_t actor) { return times[device][actor]; };
  options.link = LinksOfProcesses(job, options.process_of_device, [&](double bytes_per_s) {
    return MeasuredLatency(run.plan, events, options.process_of_device, bytes_per_s);
  });
  return planner::ReplayStepSeconds(run.plan, policies, options)
      .value_or(std::numeric_limits<double>::quiet_NaN());
}

}  // namespace

bool IsSampled(const planner::Plan& plan) {
  uint64_t num_acts = 0;
  for (const planner::DevicePlan& device : plan.devices) num_acts += device.actors.size();
  return plan.devices.size() > 1 && num_acts * plan.num_microbatches <= kMaxSampledActs;
}

TraceAnalysis AnalyseTrace(const TracedRun& run, const Job& job,
                           const planner::PolicyRegistry& policies) {
  TraceAnalysis analysis;
  analysis.steps = actors::FindTracedSteps(run.plan, run.events);
  if (!analysis.steps.has_value()) return analysis;
  const int64_t before = analysis.steps->last - kMaxAnalysedSteps * run.every;
  const auto is_late = [before](const actors::TraceEvent& event) { return event.step > before; };
  absl::Span<const actors::TraceEvent> events = run.events;
  std::vector<actors::TraceEvent> late;
  if (!std::all_of(events.begin(), events.end(), is_late)) {
    std::copy_if(events.begin(), events.end(), std::back_inserter(late), is_late);
    events = late;
  }
  const std::optional<actors::StepWindow> step =
      actors::MedianTracedStep(run.plan, events, run.steps);
  if (!step.has_value()) return analysis;
  analysis.path = actors::FindCriticalPath(run.plan, events, *step, &run.cores);
  analysis.mean_path =
      actors::MeanCriticalPath(run.plan, events, run.steps, kMaxAnalysedSteps, &run.cores);
  analysis.replayed_step_s = ReplayStep(run, events, job, policies);
  return analysis;
}

}  // namespace penstock::cli
