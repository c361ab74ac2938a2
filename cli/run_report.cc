#include "cli/run_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "cli/json.h"
#include "cli/plan_summary.h"
#include "cli/progress.h"
#include "fmt/format.h"

#include "base/strings.h"
#include "planner/format.h"

namespace penstock::cli {
namespace {

using planner::FormatBytes;
using planner::FormatSeconds;

std::string Ratio(double measured, double predicted) {
  return predicted > 0 ? fmt::format("{:.2f}", measured / predicted) : std::string("-");
}

// Measured time of the phases of a device: index -> (runs, total).
using PhaseTimes = std::map<std::pair<uint32_t, uint32_t>, std::pair<int64_t, double>>;

PhaseTimes MeasurePhases(absl::Span<const actors::TraceEvent> events) {
  PhaseTimes times;
  for (const actors::TraceEvent& event : events) {
    if (event.actor != planner::kNone) continue;
    auto& [runs, total_s] = times[{event.device, event.phase}];
    ++runs;
    total_s += 1e-9 * static_cast<double>(event.end_ns - event.begin_ns);
  }
  return times;
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

std::string SummaryJson(const RunSummary& summary) {
  const double step_time_s = TypicalStepTime(summary.step_times_s);
  std::string text = StrCat(
      "{\"summary\": {\"strategy\": ", JsonString(summary.strategy), ", \"steps\": ", summary.steps,
      ", \"final_loss\": ", JsonNumber(summary.final_loss),
      ", \"validation_loss\": ", JsonNumber(summary.validation_loss),
      ", \"unigram_entropy\": ", JsonNumber(summary.unigram_entropy),
      ", \"sample\": ", JsonString(summary.sample), ", \"step_time_s\": ", JsonNumber(step_time_s));
  if (summary.tokens_per_step > 0 && step_time_s > 0) {
    StrAppend(&text, ", \"tokens_per_s\": ",
              JsonNumber(static_cast<double>(summary.tokens_per_step) / step_time_s));
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
  std::string text = fmt::format("run:  {} steps, loss {:.4f}, {} a step", summary.steps,
                                 summary.final_loss, FormatSeconds(step_time_s));
  if (summary.tokens_per_step > 0 && step_time_s > 0) {
    StrAppend(&text, ", ", FormatCount(static_cast<double>(summary.tokens_per_step) / step_time_s),
              " tokens/s");
  }
  text += "\n";
  if (!std::isnan(summary.validation_loss)) {
    text += fmt::format(
        "      validation loss {:.4f}, {:.2f} of the unigram entropy {:.4f} (nats a byte)\n",
        summary.validation_loss, summary.validation_loss / summary.unigram_entropy,
        summary.unigram_entropy);
  }
  if (!summary.sample.empty()) StrAppend(&text, "\n", Printable(summary.sample), "\n");
  return text;
}

std::string RunReport(const planner::Plan& plan, const RunSummary& summary,
                      absl::Span<const actors::TraceEvent> events) {
  const double step_time_s = TypicalStepTime(summary.step_times_s);
  std::string text = StrCat("# Run of ", plan.name, "\n\n    ", SummarizePlan(plan), "\n");
  text += fmt::format(
      "| | predicted | measured | measured / predicted |\n|---|---|---|---|\n"
      "| step | {} | {} | {} |\n\n",
      FormatSeconds(plan.predicted_step_s), FormatSeconds(step_time_s),
      Ratio(step_time_s, plan.predicted_step_s));
  text += fmt::format(
      "{} steps, final loss {:.6f}, validation loss {:.6f}, unigram entropy {:.6f}\n\n",
      summary.steps, summary.final_loss, summary.validation_loss, summary.unigram_entropy);

  text +=
      "## Devices\n\n| device | stage | arena | state | channels | workspace | busy |\n"
      "|---|---|---|---|---|---|---|\n";
  for (size_t i = 0; i < plan.devices.size(); ++i) {
    const planner::DevicePlan& device = plan.devices[i];
    const std::string busy = i < summary.busy_share.size()
                                 ? fmt::format("{:.0f} %", 100 * summary.busy_share[i])
                                 : std::string("-");
    text +=
        fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", i, device.stage,
                    FormatBytes(device.arena_bytes), FormatBytes(device.state_bytes),
                    FormatBytes(device.channel_bytes), FormatBytes(device.workspace_bytes), busy);
  }

  const PhaseTimes times = MeasurePhases(events);
  if (times.empty()) return text;
  text +=
      "\n## Phases (mean time of one run)\n\n"
      "| device | phase | runs | predicted | measured | measured / predicted |\n"
      "|---|---|---|---|---|---|\n";
  for (const auto& [key, measured] : times) {
    const auto& [device, index] = key;
    if (device >= plan.devices.size() || index >= plan.devices[device].phases.size()) continue;
    const planner::PhasePlan& phase = plan.devices[device].phases[index];
    const double mean_s = measured.second / static_cast<double>(measured.first);
    text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", device, phase.name, measured.first,
                        FormatSeconds(phase.predicted_s), FormatSeconds(mean_s),
                        Ratio(mean_s, phase.predicted_s));
  }
  return text;
}

}  // namespace penstock::cli
