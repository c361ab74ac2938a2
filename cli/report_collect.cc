#include "cli/report_collect.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

#include "cli/phase_times.h"
#include "cli/report_operators.h"
#include "cli/report_timeline.h"

#include "actors/engine/device_memory.h"
#include "actors/engine/step_name.h"
#include "actors/trace/register_use.h"
#include "base/strings.h"
#include "planner/draw/draw_graph.h"
#include "planner/draw/drawn_graph.h"

namespace penstock::cli {
namespace {

using planner::PhaseKind;

constexpr size_t kMaxPathActs = 15;

double ReportSeconds(int64_t ns) { return 1e-9 * static_cast<double>(ns); }

void CollectCurves(const RunSummary& summary, Report* report) {
  const auto points = [&](const std::vector<double>& values) {
    std::vector<ReportPoint> curve;
    curve.reserve(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      curve.push_back(
          {actors::StepNumber(summary.first_step + static_cast<int64_t>(i)), values[i]});
    }
    return curve;
  };
  report->losses = points(summary.losses);
  report->step_times_s = points(summary.step_times_s);
  for (const Validation& validation : summary.validations) {
    report->validation_losses.push_back({validation.step, validation.loss});
  }
  // The last one, after all steps.
  const int64_t last = summary.first_step + summary.steps;
  const bool is_there =
      !report->validation_losses.empty() && report->validation_losses.back().step == last;
  if (std::isfinite(summary.validation_loss) && !is_there) {
    report->validation_losses.push_back({last, summary.validation_loss});
  }
}

void CollectPath(const planner::Plan& plan, const RunSummary& summary, Report* report) {
  const actors::CriticalPath& path = *summary.path;
  const actors::MeanPath& mean = summary.mean_path;
  report->path = {.step = actors::StepNumber(path.step.step),
                  .step_s = ReportSeconds(path.duration_ns()),
                  .compute_s = ReportSeconds(path.compute_ns),
                  .exposed_s = ReportSeconds(path.exposed_communication_ns),
                  .core_wait_s = ReportSeconds(path.core_wait_ns),
                  .idle_s = ReportSeconds(path.idle_ns),
                  .hidden_fraction = path.hidden_fraction(),
                  .bubble_fraction = path.bubble_fraction(),
                  .bound_s = summary.replayed_step_s,
                  .mean_steps = mean.num_steps,
                  .mean_omits_first = MeanOmitsFirst(summary),
                  .mean_step_s = mean.duration_s,
                  .mean_compute_s = mean.compute_s,
                  .mean_exposed_s = mean.exposed_communication_s,
                  .mean_core_wait_s = mean.core_wait_s,
                  .mean_idle_s = mean.idle_s};
  std::map<std::pair<uint32_t, uint32_t>, ReportAct> acts;
  for (const actors::PathSegment& segment : path.segments) {
    if (segment.actor == planner::kNone) continue;
    const planner::ActorPlan& actor = plan.devices[segment.device].actors[segment.actor];
    ReportAct& act = acts[{segment.device, segment.actor}];
    act.device = segment.device;
    act.kind = std::string(planner::Name(actor.kind));
    act.name = actor.name;
    ++act.runs;
    act.seconds += ReportSeconds(segment.duration_ns());
  }
  for (auto& [key, act] : acts) report->path_acts.push_back(std::move(act));
  std::stable_sort(report->path_acts.begin(), report->path_acts.end(),
                   [](const ReportAct& a, const ReportAct& b) { return a.seconds > b.seconds; });
  report->path_acts.resize(std::min(report->path_acts.size(), kMaxPathActs));
  for (size_t d = 0; d < path.devices.size() && d < plan.devices.size(); ++d) {
    const actors::DeviceTime& time = path.devices[d];
    report->devices.push_back({.device = static_cast<uint32_t>(d),
                               .stage = plan.devices[d].stage,
                               .compute_s = ReportSeconds(time.compute_ns),
                               .communication_s = ReportSeconds(time.communication_ns),
                               .hidden_s = ReportSeconds(time.hidden_communication_ns),
                               .bubble_s = ReportSeconds(time.bubble_ns)});
  }
}

constexpr std::array<std::pair<PhaseKind, std::string_view>, 6> kPhaseNames = {
    {{PhaseKind::kBeforeStep, "before the step"},
     {PhaseKind::kForward, "forward"},
     {PhaseKind::kBackward, "backward"},
     {PhaseKind::kWeight, "weight gradients"},
     {PhaseKind::kTransfer, "communication"},
     {PhaseKind::kAfterStep, "update"}}};

void Add(const ReportPhase& phase, double weight, ReportPhase* sum) {
  sum->predicted_s += weight * phase.predicted_s;
  sum->compute_s += weight * phase.compute_s;
  sum->transfer_s += weight * phase.transfer_s;
  sum->wait_s += weight * phase.wait_s;
  sum->work_s += weight * phase.work_s;
}

// A device's phases of a kind, all its runs in a step.
std::map<PhaseKind, ReportPhase> PhasesOf(const planner::Plan& plan, uint32_t device,
                                          const PhaseTimes& times) {
  std::map<PhaseKind, ReportPhase> phases;
  const std::vector<planner::PhasePlan>& plans = plan.devices[device].phases;
  for (uint32_t p = 0; p < plans.size(); ++p) {
    const double firings = planner::FiringsPerStep(plan, plans[p]);
    ReportPhase phase;
    phase.predicted_s = plans[p].predicted_s;
    const auto measured = times.find({device, p});
    if (measured != times.end() && measured->second.runs > 0) {
      const PhaseTime& time = measured->second;
      const auto runs = static_cast<double>(time.runs);
      phase.compute_s = time.compute_s / runs;
      phase.transfer_s = time.transfer_s / runs;
      phase.work_s = time.work_s() / runs;
      // Others wait beside what the device computes, several at once.
      const bool takes_turns = plans[p].lane != planner::Lane::kFloating;
      phase.wait_s = takes_turns ? (time.total_s - time.work_s()) / runs : 0;
    }
    Add(phase, firings, &phases[plans[p].kind]);
  }
  return phases;
}

ReportStepParts PartsOf(const actors::MeanPath& mean, const std::vector<uint32_t>& devices) {
  ReportStepParts parts;
  parts.step_s = mean.duration_s;
  for (const uint32_t device : devices) {
    if (device >= mean.device_wait_s.size()) return {};
    const double weight = 1.0 / static_cast<double>(devices.size());
    parts.compute_s += weight * mean.device_compute_s[device];
    parts.transfer_s += weight * mean.device_transfer_s[device];
    parts.wait_s += weight * mean.device_wait_s[device];
  }
  const double inside_s = parts.compute_s + parts.transfer_s + parts.wait_s;
  parts.outside_s = std::max(parts.step_s - inside_s, 0.0);
  return parts;
}

std::vector<ReportMemory> WithoutZeros(std::vector<ReportMemory> memory) {
  std::erase_if(memory, [](const ReportMemory& part) { return part.bytes <= 0; });
  return memory;
}

double Total(const std::vector<ReportMemory>& memory) {
  double total = 0;
  for (const ReportMemory& part : memory) total += part.bytes;
  return total;
}

std::vector<ReportMemory> AllocatedOn(const planner::Plan& plan, uint32_t d) {
  const planner::DevicePlan& device = plan.devices[d];
  const actors::DeviceMemory memory = actors::MemoryOf(plan, d, nullptr, true);
  const auto bytes = [](uint64_t count) { return static_cast<double>(count); };
  // What the parts leave of the arena is padding.
  const double parts =
      bytes(device.state_bytes) + bytes(device.channel_bytes) + bytes(device.workspace_bytes);
  return WithoutZeros({{"states", bytes(device.state_bytes)},
                       {"channels", bytes(device.channel_bytes)},
                       {"workspace", bytes(device.workspace_bytes)},
                       {"padding", bytes(device.arena_bytes) - parts},
                       {"collective buffers", bytes(memory.collective_bytes)},
                       {"on the host", bytes(device.host_bytes)}});
}

// What was in use at the moment when most was: the bytes of channels that held values.
std::vector<ReportMemory> InUseOn(const planner::DevicePlan& device, const actors::DeviceUse& use) {
  int64_t most = 0;
  for (const actors::UseSample& sample : use.channel_bytes) most = std::max(most, sample.value);
  return WithoutZeros({{"states", static_cast<double>(device.state_bytes)},
                       {"channels", static_cast<double>(most)},
                       {"workspace", static_cast<double>(device.workspace_bytes)}});
}

std::vector<ReportMemory> Predicted(const planner::MemoryEstimate& memory) {
  return WithoutZeros({{"parameters", memory.parameters},
                       {"optimizer", memory.optimizer},
                       {"gradients", memory.gradients},
                       {"activations", memory.activations},
                       {"transfers", memory.transfers},
                       {"workspace", memory.workspace},
                       {"on the host", memory.host}});
}

void CollectStages(const ReportSources& sources, Report* report) {
  const planner::Plan& plan = sources.plan;
  const PhaseTimes times = MeasurePhases(plan, sources.events);
  const std::vector<actors::DeviceUse> uses = actors::UseOverTime(plan, sources.events);
  for (uint32_t s = 0; s < plan.stages.size(); ++s) {
    ReportStage stage;
    stage.stage = s;
    stage.devices = plan.stages[s].devices;
    std::map<PhaseKind, ReportPhase> phases;
    for (const uint32_t device : stage.devices) {
      const double weight = 1.0 / static_cast<double>(stage.devices.size());
      for (const auto& [kind, phase] : PhasesOf(plan, device, times)) {
        Add(phase, weight, &phases[kind]);
        Add(phase, weight, &stage.total);
      }
      std::vector<ReportMemory> memory = AllocatedOn(plan, device);
      if (Total(memory) > Total(stage.allocated_memory)) stage.allocated_memory = std::move(memory);
      if (sources.events.empty()) continue;
      memory = InUseOn(plan.devices[device], uses[device]);
      if (Total(memory) > Total(stage.measured_memory)) stage.measured_memory = std::move(memory);
    }
    stage.total.name = "all";
    if (sources.summary.path.has_value()) {
      stage.parts = PartsOf(sources.summary.mean_path, stage.devices);
    }
    for (const auto& [kind, name] : kPhaseNames) {
      const auto phase = phases.find(kind);
      if (phase == phases.end()) continue;
      phase->second.name = std::string(name);
      stage.phases.push_back(std::move(phase->second));
    }
    const planner::StepEstimate* estimate = sources.estimate;
    if (estimate != nullptr && estimate->groups.size() == plan.stages.size()) {
      stage.predicted_memory = Predicted(estimate->groups[s].memory);
    }
    report->stages.push_back(std::move(stage));
  }
}

}  // namespace

void CollectReport(const ReportSources& sources, Report* report) {
  const RunSummary& summary = sources.summary;
  report->summary_json = SummaryJson(summary);
  report->steps = summary.steps;
  report->final_loss = summary.final_loss;
  report->validation_loss = summary.validation_loss;
  report->unigram_entropy = summary.unigram_entropy;
  report->step_time_s = TypicalStepTime(summary.step_times_s);
  report->predicted_step_s = sources.plan.predicted_step_s;
  if (summary.tokens_per_step > 0 && report->step_time_s > 0) {
    report->tokens_per_s = static_cast<double>(summary.tokens_per_step) / report->step_time_s;
  }
  report->sample = summary.sample;
  CollectCurves(summary, report);
  CollectStages(sources, report);
  if (!summary.path.has_value()) {
    report->no_trace = summary.has_trace
                           ? "The trace holds no step as a whole."
                           : "Nothing was recorded: the run was aborted, or no step completed.";
    return;
  }
  CollectPath(sources.plan, summary, report);
  report->timeline = MakeTimeline(sources.plan, sources.events, *summary.path);
  CollectOperators(sources.plan, sources.events, sources.ops, summary.traced, report);
}

void CollectGraph(const graph::Graph& graph, Report* report) {
  const absl::StatusOr<planner::DrawnGraph> drawn = planner::ToDraw(graph, INT32_MAX);
  if (!drawn.ok()) {
    report->no_graph = std::string(ToStd(drawn.status().message()));
    return;
  }
  report->blocks = planner::FoldBlocks(*drawn);
  report->num_graph_stages = drawn->num_stages;
  absl::StatusOr<std::string> svg = planner::DrawGraph(graph, "");
  if (svg.ok() && svg->size() <= kMaxGraphSvgBytes) report->graph_svg = *std::move(svg);
}

}  // namespace penstock::cli
