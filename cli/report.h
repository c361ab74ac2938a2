// What the page of `penstock run --report` shows, as plain data: filled in by report_collect.h and
// report_timeline.h, written as HTML by report_page.h.
//
// Times are in seconds of one step, unless a member says otherwise. Steps are numbered from 1.
//
// Thread rule: values.

#ifndef PENSTOCK_CLI_REPORT_H_
#define PENSTOCK_CLI_REPORT_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "actors/session/checkpoint_writer.h"
#include "planner/draw/graph_blocks.h"
#include "planner/policy/phase.h"

namespace penstock::cli {

inline constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

struct ReportFact {
  std::string name;
  std::string value;
};

struct ReportPoint {
  int64_t step = 0;
  double value = 0;  // NaN and infinity: not drawn
};

// The largest things of a list are shown; this is what the others are.
struct ReportOmitted {
  int64_t count = 0;
  double longest_s = 0;
  double total_s = 0;
};

// --- The timeline of one step --------------------------------------------------------------------

enum class ReportLane : uint8_t { kPhase, kKernel, kSend, kReceive, kCollective };

struct ReportSlice {
  uint32_t row = 0;  // of ReportTimeline::rows
  ReportLane lane = ReportLane::kPhase;
  planner::PhaseKind kind = planner::PhaseKind::kForward;  // of its phase
  uint32_t name = 0;                                       // of ReportTimeline::names
  int64_t microbatch = -1;                                 // -1: once a step
  bool is_other_step = false;
  double begin_s = 0;  // since the step's beginning, within its span
  double end_s = 0;
};

enum class ReportPathKind : uint8_t { kCompute, kCommunication, kCoreWait, kIdle };

struct ReportPathSlice {
  ReportPathKind kind = ReportPathKind::kIdle;
  int64_t row = -1;  // -1: its device is not drawn
  uint32_t device = 0;
  std::string name;  // empty: no act
  double begin_s = 0;
  double end_s = 0;
};

struct ReportRow {
  uint32_t device = 0;
  uint32_t stage = 0;
};

struct ReportTimeline {
  int64_t step = 0;
  double span_s = 0;            // 0: there is no timeline
  std::vector<ReportRow> rows;  // devices that are drawn
  size_t num_devices = 0;       // in all
  std::vector<std::string> names;
  std::vector<ReportSlice> slices;  // by row, lane and begin
  std::vector<ReportPathSlice> path;
  ReportOmitted omitted_phases, omitted_kernels, omitted_communications, omitted_path;
};

// --- Tables --------------------------------------------------------------------------------------

struct ReportPath {
  int64_t step = 0;
  double step_s = 0;  // the sum of the four
  double compute_s = 0;
  double exposed_s = 0;
  double core_wait_s = 0;
  double idle_s = 0;
  double hidden_fraction = 0;
  double bubble_fraction = 0;
  double bound_s = kNoNumber;     // replayed; NaN: not known
  int64_t mean_steps = 0;         // of the means below
  bool mean_omits_first = false;  // MeanOmitsFirst (run_report.h)
  double mean_step_s = 0;
  double mean_compute_s = 0;
  double mean_exposed_s = 0;
  double mean_core_wait_s = 0;
  double mean_idle_s = 0;
};

struct ReportAct {
  uint32_t device = 0;
  std::string kind;  // "kernel", "send"
  std::string name;
  int64_t runs = 0;
  double seconds = 0;
};

struct ReportDevice {
  uint32_t device = 0;
  uint32_t stage = 0;
  double compute_s = 0;
  double communication_s = 0;
  double hidden_s = 0;  // of communication_s
  double bubble_s = 0;
};

// Of one kind of phase of a stage, or of all: a mean over the devices of the stage.
struct ReportPhase {
  std::string name;
  double predicted_s = 0;
  double compute_s = 0;
  double transfer_s = 0;
  double wait_s = 0;  // of phases that run one at a time
  // Computing and transferring at once counts once.
  double work_s = 0;
};

// What a step consists of for a device of a stage, on average: the parts add up to the step.
struct ReportStepParts {
  double step_s = 0;      // 0: not known
  double compute_s = 0;   // also beside communication
  double transfer_s = 0;  // while it does not compute
  double wait_s = 0;      // in a phase
  double outside_s = 0;   // of all phases that take turns
};

struct ReportMemory {
  std::string name;
  double bytes = 0;
};

struct ReportStage {
  uint32_t stage = 0;
  std::vector<uint32_t> devices;
  std::vector<ReportPhase> phases;
  ReportPhase total;
  ReportStepParts parts;
  // Of the device of the stage that needs most.
  std::vector<ReportMemory> predicted_memory;  // empty: not predicted apart from the plan
  std::vector<ReportMemory> measured_memory;   // empty: nothing was recorded
  std::vector<ReportMemory> allocated_memory;
};

struct ReportOperator {
  std::string op;
  std::string name;   // of the node; numbers of layers and made-up names as "*"
  std::string where;  // "stage 0, B"
  double calls = 0;   // a step, of all devices together
  double seconds = 0;
  double share = 0;                 // of all operators and communications
  double flops_per_s = kNoNumber;   // while it runs; NaN: none are counted
  double bytes_per_s = kNoNumber;   // likewise
  std::vector<std::string> shapes;  // of its operands, for a tooltip
};

struct Report {
  std::string title;  // of the plan
  std::string subtitle;
  std::string version;
  std::string summary_json;  // as --json prints it
  std::vector<ReportFact> facts;
  std::vector<ReportFact> processes;
  std::vector<ReportFact> settings;  // of the job
  std::vector<std::string> warnings;
  int64_t omitted_warnings = 0;

  int64_t steps = 0;
  double final_loss = kNoNumber;
  double validation_loss = kNoNumber;
  double unigram_entropy = kNoNumber;
  double step_time_s = 0;
  double predicted_step_s = 0;
  double tokens_per_s = 0;  // 0: no text
  std::vector<ReportPoint> losses;
  std::vector<ReportPoint> validation_losses;
  std::vector<ReportPoint> step_times_s;

  ReportTimeline timeline;
  std::optional<ReportPath> path;
  std::vector<ReportAct> path_acts;  // the longest
  std::vector<ReportDevice> devices;
  std::vector<ReportStage> stages;
  double peak_process_bytes = 0;  // the most of any process of the job on this host; 0: not known
  std::vector<ReportOperator> operators;  // the slowest
  int64_t num_operators = 0;              // in all
  std::string no_trace;                   // why there are no times of acts, if so

  std::vector<planner::StageBlocks> blocks;  // empty: the graph is not known
  int num_graph_stages = 1;
  std::string graph_svg;  // empty: too large
  std::string no_graph;   // why there is none

  std::string checkpoint_path;  // empty: none were to be written
  std::vector<actors::CheckpointResult> checkpoints;
  std::string sample;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_REPORT_H_
