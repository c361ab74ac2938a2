// What happened in a run, beside what its plan expected.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_RUN_REPORT_H_
#define PENSTOCK_CLI_RUN_REPORT_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

#include "actors/engine/executor.h"
#include "actors/trace/critical_path.h"
#include "planner/plan/plan.h"

namespace penstock::cli {

// The loss on held-out text after a step, numbered from 1.
struct Validation {
  int64_t step = 0;
  double loss = 0;
};

struct RunSummary {
  std::string strategy;
  std::string devices;          // as DescribeDevices has them (plan_summary.h)
  int64_t first_step = 0;       // steps of the runs that this one continues
  int64_t steps = 0;            // that ran
  int64_t tokens_per_step = 0;  // 0: no text
  int64_t images_per_step = 0;  // 0: no labelled examples
  double final_loss = std::numeric_limits<double>::quiet_NaN();  // of no step
  double validation_loss = 0;                                    // NaN: not measured
  // Of a classifier on held-out examples; NaN: not measured, or another model.
  double validation_accuracy = std::numeric_limits<double>::quiet_NaN();
  double unigram_entropy = 0;  // NaN: no text
  std::string sample;
  std::string cores_note;  // where devices outnumber the cores
  // Cores of this host that other programs kept busy during the training, of so many; NaN: not
  // known.
  double other_cores = std::numeric_limits<double>::quiet_NaN();
  int64_t num_cores = 0;
  // What GPUs launch as CUDA graphs, a line for devices of which the same is true; empty: no GPUs.
  std::vector<std::string> graphs;
  // What a step would take at the peak rates of the devices (planner/simulator/peak_step.h), and
  // whose they are; 0: not known.
  double peak_step_s = 0;
  std::string peak_of;
  std::vector<double> step_times_s;  // of every step
  std::vector<double> losses;        // likewise
  std::vector<Validation> validations;
  // What the trace holds as a whole; nothing without a trace, or where it holds no whole step.
  bool has_trace = false;
  std::optional<actors::StepRange> traced;
  size_t trace_capacity = 0;  // events a device
  int64_t trace_every = 1;    // steps
  // Of a typical step; nothing without a trace that holds one.
  std::optional<actors::CriticalPath> path;
  actors::MeanPath mean_path;  // where there is a path
  double replayed_step_s = 0;  // where there is a path; NaN: not known
};

// The median of the steps after the first, which warms up; of all where there is only one.
double TypicalStepTime(absl::Span<const double> step_times_s);

// Whether the mean path is without the first step of the run, which was recorded and warms up.
bool MeanOmitsFirst(const RunSummary& summary);
inline constexpr char kWithoutFirst[] = ", without the first, which warms up";

// Why parts of the path may be longer than they would be on a quiet machine: other programs had a
// part of the cores. Empty where they hardly had one, or there is no path.
std::string OtherLoadNote(const RunSummary& summary);

// {"summary": {...}}, one line.
std::string SummaryJson(const RunSummary& summary);

// Text that may hold any byte, for a terminal: others than text are written as \x00.
std::string Printable(std::string_view text);

// A few lines for people.
std::string SummaryText(const RunSummary& summary);

// Markdown: the run, its critical path, then predicted against measured, of steps, devices and
// phases. `events` may be empty: the path and the phases are left out.
std::string RunReport(const planner::Plan& plan, const RunSummary& summary,
                      absl::Span<const actors::TraceEvent> events);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_RUN_REPORT_H_
