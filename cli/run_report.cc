#include "cli/run_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "cli/json.h"
#include "cli/phase_times.h"
#include "cli/plan_summary.h"
#include "cli/progress.h"
#include "cli/utf8.h"
#include "fmt/format.h"

#include "actors/engine/device_memory.h"
#include "actors/engine/step_name.h"
#include "base/counted.h"
#include "base/format.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

// Firing an actor takes about as long, and predictions leave it out.
constexpr double kMinPredictedSeconds = 1e-6;

std::string Ratio(double measured, double predicted) {
  return predicted >= kMinPredictedSeconds ? fmt::format("{:.2f}", measured / predicted)
                                           : std::string("-");
}

// "steps 7 to 20": those that the trace holds, which keeps the last events.
std::string TracedSteps(absl::Span<const actors::TraceEvent> events) {
  int64_t first = events[0].step;
  int64_t last = first;
  for (const actors::TraceEvent& event : events) {
    first = std::min(first, event.step);
    last = std::max(last, event.step);
  }
  if (first == last) return StrCat("step ", actors::StepNumber(first));
  return StrCat("steps ", actors::StepNumber(first), " to ", actors::StepNumber(last));
}

double RunSeconds(int64_t ns) { return 1e-9 * static_cast<double>(ns); }

std::string PathJson(const actors::CriticalPath& path) {
  return StrCat(
      "{\"step\": ", actors::StepNumber(path.step.step),
      ", \"step_time_s\": ", JsonNumber(RunSeconds(path.duration_ns())),
      ", \"compute_s\": ", JsonNumber(RunSeconds(path.compute_ns)),
      ", \"exposed_communication_s\": ", JsonNumber(RunSeconds(path.exposed_communication_ns)),
      ", \"core_wait_s\": ", JsonNumber(RunSeconds(path.core_wait_ns)),
      ", \"idle_s\": ", JsonNumber(RunSeconds(path.idle_ns)),
      ", \"hidden_fraction\": ", JsonNumber(path.hidden_fraction()),
      ", \"bubble_fraction\": ", JsonNumber(path.bubble_fraction()), "}");
}

std::string MeanPathJson(const actors::MeanPath& path) {
  std::vector<std::string> computing;
  computing.reserve(path.device_compute_s.size());
  for (const double seconds : path.device_compute_s) computing.push_back(JsonNumber(seconds));
  std::vector<std::string> steps;
  steps.reserve(path.steps.size());
  for (const actors::ExplainedStep& step : path.steps) {
    steps.push_back(StrCat("{\"step\": ", actors::StepNumber(step.step),
                           ", \"step_time_s\": ", JsonNumber(RunSeconds(step.duration_ns)),
                           ", \"idle_s\": ", JsonNumber(RunSeconds(step.idle_ns)), "}"));
  }
  return StrCat("{\"steps\": ", path.num_steps, ", \"step_time_s\": ", JsonNumber(path.duration_s),
                ", \"compute_s\": ", JsonNumber(path.compute_s),
                ", \"exposed_communication_s\": ", JsonNumber(path.exposed_communication_s),
                ", \"core_wait_s\": ", JsonNumber(path.core_wait_s),
                ", \"idle_s\": ", JsonNumber(path.idle_s), ", \"device_compute_s\": [",
                StrJoin(computing, ", "), "], \"per_step\": [", StrJoin(steps, ", "), "]}");
}

// "42.0 ms = 30.1 ms compute + 8.20 ms exposed communication + 3.00 ms waiting for cores + 0.70 ms
// idle", without cores where none was waited for.
std::string PathSum(double step_s, double compute_s, double exposed_communication_s,
                    double core_wait_s, double idle_s) {
  return fmt::format(
      "{} = {} compute + {} exposed communication + {}{} idle", FormatSeconds(step_s),
      FormatSeconds(compute_s), FormatSeconds(exposed_communication_s),
      core_wait_s > 0 ? StrCat(FormatSeconds(core_wait_s), " waiting for cores + ") : "",
      FormatSeconds(idle_s));
}

std::string PathSum(const actors::CriticalPath& path) {
  return PathSum(RunSeconds(path.duration_ns()), RunSeconds(path.compute_ns),
                 RunSeconds(path.exposed_communication_ns), RunSeconds(path.core_wait_ns),
                 RunSeconds(path.idle_ns));
}

std::string MeanPathText(const RunSummary& summary) {
  const actors::MeanPath& path = summary.mean_path;
  return StrCat("Mean of ", Counted(path.num_steps, "traced step"),
                MeanOmitsFirst(summary) ? kWithoutFirst : "", ": ",
                PathSum(path.duration_s, path.compute_s, path.exposed_communication_s,
                        path.core_wait_s, path.idle_s),
                ".");
}

std::string PathFractions(const actors::CriticalPath& path) {
  return fmt::format(
      "{:.0f} % of communication hidden behind computation, bubble (devices neither compute nor "
      "communicate{}) {:.0f} % of device time",
      100 * path.hidden_fraction(), path.core_wait_ns > 0 ? ", or wait for cores" : "",
      100 * path.bubble_fraction());
}

// Whether the trace lacks events of a step that ran.
bool IsTraceCut(const RunSummary& summary) {
  if (!summary.has_trace || summary.steps == 0) return false;
  return !summary.traced.has_value() || summary.traced->first > summary.first_step ||
         summary.traced->last + summary.trace_every < summary.first_step + summary.steps;
}

// "steps 101 to 200 of 200 (...)": which steps a trace holds that lost events, and what to set for
// others.
std::string TraceText(const RunSummary& summary) {
  const std::string limit =
      StrCat("each device keeps its last ", summary.trace_capacity, " events");
  if (!summary.traced.has_value()) {
    return StrCat("no step as a whole: ", limit,
                  "; fewer parallel.microbatches make a step smaller");
  }
  const int64_t first = actors::StepNumber(summary.traced->first);
  const int64_t last = actors::StepNumber(summary.traced->last);
  std::string text = first == last ? StrCat("step ", first) : StrCat("steps ", first, " to ", last);
  StrAppend(&text, " of ", summary.first_step + summary.steps, ": ", limit);
  if (first > actors::StepNumber(summary.first_step))
    StrAppend(&text, "; run with train.steps = ", first - 1, " for earlier steps");
  return text;
}

// A step that takes the time given by planner/cost/replay.h, with the measured times of actors.
std::string ReplayText(const RunSummary& summary) {
  if (!(summary.replayed_step_s > 0)) return "";
  // It has medians of many steps, and the step its own times.
  const bool is_above =
      summary.path.has_value() && summary.replayed_step_s > RunSeconds(summary.path->duration_ns());
  return StrCat("replayed bound (the step at these kernel times, without overhead) ",
                FormatSeconds(summary.replayed_step_s),
                is_above ? ", above this step: kernels took longer in other steps" : "");
}

// The acts that take most of the path, those of all micro-batches together.
constexpr size_t kMostPathActs = 10;

std::string PathReport(const planner::Plan& plan, const RunSummary& summary) {
  const actors::CriticalPath& path = *summary.path;
  const std::string replay = ReplayText(summary);
  std::string text = StrCat(
      "## Critical path (step ", actors::StepNumber(path.step.step), ", of median time)\n\n",
      PathSum(path), "; ", PathFractions(path), replay.empty() ? "" : "; ", replay, ".\n\n",
      MeanPathText(summary),
      "\n\nThe path is the chain of acts that determined the step time; an act is one firing of an "
      "actor. Communication is exposed while its device does not compute. Waiting for cores: other "
      "devices computed on all cores of the device. Idle: nothing of the path ran, because a "
      "thread had to wake up. Bubble: a device neither computed nor moved data. Replayed bound: a "
      "simulation of the plan with the measured median kernel times, the given or measured latency "
      "of links, the link rates that the planner assumes, and no runtime overhead.\n\n"
      "| device | computing | transferring | of it hidden | bubble |\n|---|---|---|---|---|\n");
  for (size_t i = 0; i < path.devices.size(); ++i) {
    const actors::DeviceTime& time = path.devices[i];
    text +=
        fmt::format("| {} | {} | {} | {} | {} |\n", i, FormatSeconds(RunSeconds(time.compute_ns)),
                    FormatSeconds(RunSeconds(time.communication_ns)),
                    FormatSeconds(RunSeconds(time.hidden_communication_ns)),
                    FormatSeconds(RunSeconds(time.bubble_ns)));
  }
  std::map<std::pair<uint32_t, uint32_t>, std::pair<int64_t, int64_t>> acts;  // count, ns
  for (const actors::PathSegment& segment : path.segments) {
    if (segment.actor == planner::kNone) continue;
    auto& [count, ns] = acts[{segment.device, segment.actor}];
    ++count;
    ns += segment.duration_ns();
  }
  std::vector<std::pair<std::pair<uint32_t, uint32_t>, std::pair<int64_t, int64_t>>> longest(
      acts.begin(), acts.end());
  std::stable_sort(longest.begin(), longest.end(),
                   [](const auto& a, const auto& b) { return a.second.second > b.second.second; });
  longest.resize(std::min(longest.size(), kMostPathActs));
  text += "\n| device | longest acts of the path | runs | time |\n|---|---|---|---|\n";
  for (const auto& [act, measured] : longest) {
    const planner::ActorPlan& actor = plan.devices[act.first].actors[act.second];
    text += fmt::format("| {} | {} {} | {} | {} |\n", act.first, planner::Name(actor.kind),
                        actor.name, measured.first, FormatSeconds(RunSeconds(measured.second)));
  }
  return text;
}

}  // namespace

double TypicalStepTime(absl::Span<const double> step_times_s) {
  if (step_times_s.empty()) return 0;
  const size_t skipped = step_times_s.size() > 1 ? 1 : 0;
  std::vector<double> sorted(step_times_s.begin() + static_cast<std::ptrdiff_t>(skipped),
                             step_times_s.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : 0.5 * (sorted[middle - 1] + sorted[middle]);
}

bool MeanOmitsFirst(const RunSummary& summary) {
  const std::vector<actors::ExplainedStep>& steps = summary.mean_path.steps;
  const bool is_recorded = !summary.traced.has_value() || summary.traced->first == 0;
  return summary.first_step == 0 && is_recorded && !steps.empty() && steps[0].step > 0;
}

std::string OtherLoadNote(const RunSummary& summary) {
  constexpr double kLeastCores = 0.1;
  if (!summary.path.has_value() || !(summary.other_cores >= kLeastCores)) return "";
  return fmt::format(
      "other programs kept {:.1f} of {} busy: what waited for a core because of them counts as "
      "computation, exposed communication or idle time",
      summary.other_cores, Counted(summary.num_cores, "core"));
}

std::string SummaryJson(const RunSummary& summary) {
  const double step_time_s = TypicalStepTime(summary.step_times_s);
  std::string text = StrCat(
      "{\"summary\": {\"strategy\": ", JsonString(summary.strategy), ", \"steps\": ", summary.steps,
      summary.first_step > 0 ? StrCat(", \"resumed_from_step\": ", summary.first_step) : "",
      ", \"final_loss\": ", JsonNumber(summary.final_loss),
      ", \"validation_loss\": ", JsonNumber(summary.validation_loss),
      std::isnan(summary.validation_accuracy)
          ? std::string()
          : StrCat(", \"validation_accuracy\": ", JsonNumber(summary.validation_accuracy)),
      ", \"unigram_entropy\": ", JsonNumber(summary.unigram_entropy),
      ", \"sample\": ", JsonString(summary.sample), ", \"step_time_s\": ", JsonNumber(step_time_s));
  if (summary.tokens_per_step > 0 && step_time_s > 0) {
    StrAppend(&text, ", \"tokens_per_s\": ",
              JsonNumber(static_cast<double>(summary.tokens_per_step) / step_time_s));
  }
  if (summary.images_per_step > 0 && step_time_s > 0) {
    StrAppend(&text, ", \"images_per_s\": ",
              JsonNumber(static_cast<double>(summary.images_per_step) / step_time_s));
  }
  if (summary.peak_step_s > 0 && step_time_s > 0) {
    StrAppend(&text, ", \"mfu\": ", JsonNumber(summary.peak_step_s / step_time_s),
              ", \"peak_of\": ", JsonString(summary.peak_of));
  }
  if (!summary.graphs.empty()) {
    std::vector<std::string> lines;
    for (const std::string& line : summary.graphs) lines.push_back(JsonString(line));
    StrAppend(&text, ", \"graphs\": [", StrJoin(lines, ", "), "]");
  }
  if (summary.traced.has_value()) {
    StrAppend(&text, ", \"traced_steps\": {\"first\": ", actors::StepNumber(summary.traced->first),
              ", \"last\": ", actors::StepNumber(summary.traced->last), "}");
  }
  if (summary.path.has_value()) {
    StrAppend(&text, ", \"replayed_step_time_s\": ", JsonNumber(summary.replayed_step_s),
              ", \"other_programs_cores\": ", JsonNumber(summary.other_cores, 3),
              ", \"critical_path\": ", PathJson(*summary.path),
              ", \"mean_critical_path\": ", MeanPathJson(summary.mean_path));
  }
  return text + "}}";
}

// What a model makes can hold any byte; a terminal is shown text alone.
std::string Printable(std::string_view text) {
  std::string printable;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n' || c == '\t' || (byte >= 0x20 && byte < 0x7f)) {
      printable.push_back(c);
    } else {
      printable += fmt::format("\\x{:02x}", byte);
    }
  }
  return printable;
}

std::string SummaryText(const RunSummary& summary) {
  const double step_time_s = TypicalStepTime(summary.step_times_s);
  std::string text = StrCat(
      "run:  ", Counted(summary.steps, "step"),
      summary.first_step > 0 ? StrCat(" after the first ", summary.first_step) : std::string());
  if (summary.steps > 0) {
    StrAppend(&text, ", loss ", FormatLoss(summary.final_loss), ", ", FormatSeconds(step_time_s),
              " a step");
  }
  if (summary.tokens_per_step > 0 && step_time_s > 0) {
    StrAppend(&text, ", ", FormatCount(static_cast<double>(summary.tokens_per_step) / step_time_s),
              " tokens/s");
  }
  if (summary.images_per_step > 0 && step_time_s > 0) {
    StrAppend(&text, ", ", FormatCount(static_cast<double>(summary.images_per_step) / step_time_s),
              " images/s");
  }
  if (summary.peak_step_s > 0 && step_time_s > 0) {
    text += fmt::format(", MFU {:.1f} % of {}", 100 * summary.peak_step_s / step_time_s,
                        summary.peak_of);
  }
  text += "\n";
  if (!std::isnan(summary.validation_loss) && std::isnan(summary.unigram_entropy)) {
    StrAppend(&text, "      validation loss ", FormatLoss(summary.validation_loss));
    if (!std::isnan(summary.validation_accuracy)) {
      text += fmt::format(", accuracy {:.1f} %", 100 * summary.validation_accuracy);
    }
    text += "\n";
  } else if (!std::isnan(summary.validation_loss)) {
    text += fmt::format("      validation loss {}; guessing by frequency alone gives {}\n",
                        FormatLoss(summary.validation_loss), FormatLoss(summary.unigram_entropy));
  }
  if (summary.path.has_value()) {
    StrAppend(&text, "path: step ", actors::StepNumber(summary.path->step.step), ", ",
              PathSum(*summary.path), "\n      ", PathFractions(*summary.path), "\n");
    if (const std::string replay = ReplayText(summary); !replay.empty()) {
      StrAppend(&text, "      ", replay, "\n");
    }
  }
  for (const std::string& line : summary.graphs) StrAppend(&text, "graphs: ", line, "\n");
  if (IsTraceCut(summary)) StrAppend(&text, "trace: ", TraceText(summary), "\n");
  if (!summary.sample.empty()) {
    StrAppend(&text,
              "\nsample of what the trained model writes, as it continues held-out text:\n\n",
              ReadableUtf8(summary.sample), "\n");
  }
  return text;
}

std::string RunReport(const planner::Plan& plan, const RunSummary& summary,
                      absl::Span<const actors::TraceEvent> events) {
  const double step_time_s = TypicalStepTime(summary.step_times_s);
  std::string text =
      StrCat("# Run of ", plan.name, "\n\n    ", SummarizePlan(plan, summary.devices), "\n");
  text += fmt::format(
      "| | predicted | measured | measured / predicted |\n|---|---|---|---|\n"
      "| step | {} | {} | {} |\n\n",
      FormatSeconds(plan.predicted_step_s), FormatSeconds(step_time_s),
      Ratio(step_time_s, plan.predicted_step_s));
  text += fmt::format("{}, final loss {:.6f}", Counted(summary.steps, "step"), summary.final_loss);
  if (!std::isnan(summary.validation_loss)) {
    text += fmt::format(", validation loss {:.6f}", summary.validation_loss);
  }
  if (!std::isnan(summary.validation_accuracy)) {
    text += fmt::format(", validation accuracy {:.4f}", summary.validation_accuracy);
  }
  if (!std::isnan(summary.unigram_entropy)) {
    text += fmt::format(", unigram entropy {:.6f}", summary.unigram_entropy);
  }
  text += "\n\n";
  if (!summary.cores_note.empty()) StrAppend(&text, "Note: ", summary.cores_note, ".\n\n");

  if (summary.path.has_value()) StrAppend(&text, PathReport(plan, summary), "\n");
  text +=
      "## Devices\n\nShares of a step's time, mean of the traced steps, which add up to it. "
      "Computing: kernels of the device run. Transferring: its data move while none runs. Waiting: "
      "in a phase, for the other side, a core or a link. Between phases: it has nothing to run, "
      "because what it needs comes from others or the step has no more for it. Collective buffers: "
      "beside the arena, where devices read each other's memory.\n\n| device | stage | arena | "
      "state | channels | workspace | on host | collective buffers | computing | transferring | "
      "waiting | between phases |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (size_t i = 0; i < plan.devices.size(); ++i) {
    const planner::DevicePlan& device = plan.devices[i];
    const actors::MeanPath& mean = summary.mean_path;
    std::string shares = "- | - | - | -";
    if (summary.path.has_value() && i < mean.device_wait_s.size() && mean.duration_s > 0) {
      const double compute = mean.device_compute_s[i] / mean.duration_s;
      const double transfer = mean.device_transfer_s[i] / mean.duration_s;
      const double wait = mean.device_wait_s[i] / mean.duration_s;
      shares =
          fmt::format("{:.1f} % | {:.1f} % | {:.1f} % | {:.1f} %", 100 * compute, 100 * transfer,
                      100 * wait, 100 * std::max(1 - compute - transfer - wait, 0.0));
    }
    text += fmt::format(
        "| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", i, device.stage,
        FormatBytes(device.arena_bytes), FormatBytes(device.state_bytes),
        FormatBytes(device.channel_bytes), FormatBytes(device.workspace_bytes),
        FormatBytes(device.host_bytes),
        FormatBytes(
            actors::MemoryOf(plan, static_cast<uint32_t>(i), nullptr, true).collective_bytes),
        shares);
  }

  if (events.empty()) return text;
  text +=
      StrCat("\n## Phases (mean time of one run, ", TracedSteps(events), ")\n\n",
             "Computing: its kernels run, by the clock. Transferring: its data move. That begins "
             "when both sides have started the communication, and takes as long as the fastest of "
             "the same size or larger between the same devices. Waiting: the rest, for the other "
             "side, for a core, for a link that other data use, or until the device notices that "
             "data have come. Kernels and transfers of one phase may overlap. Working: computing "
             "plus transferring, at most the whole run. Phases predicted to take less than 1 us "
             "have no ratio, because firing an actor takes as long.\n\n"
             "| device | phase | runs | predicted | computing | transferring | waiting | working "
             "/ predicted |\n|---|---|---|---|---|---|---|---|\n");
  for (const auto& [key, measured] : MeasurePhases(plan, events)) {
    const auto& [device, index] = key;
    if (device >= plan.devices.size() || index >= plan.devices[device].phases.size()) continue;
    if (measured.runs == 0) continue;
    const planner::PhasePlan& phase = plan.devices[device].phases[index];
    const auto runs = static_cast<double>(measured.runs);
    const double work_s = measured.work_s();
    text += fmt::format(
        "| {} | {} | {} | {} | {} | {} | {} | {} |\n", device, phase.name, measured.runs,
        FormatSeconds(phase.predicted_s), FormatSeconds(measured.compute_s / runs),
        FormatSeconds(measured.transfer_s / runs),
        FormatSeconds((measured.total_s - work_s) / runs), Ratio(work_s / runs, phase.predicted_s));
  }
  return text;
}

}  // namespace penstock::cli
