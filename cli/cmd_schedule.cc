// penstock schedule: the timeline, bubble and memory of a pipeline schedule, from plain numbers.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/environment.h"
#include "cli/files.h"
#include "cli/help_text.h"
#include "cli/job_policy.h"
#include "cli/json.h"
#include "cli/option_checks.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/op.h"
#include "planner/draw/draw_timeline.h"
#include "planner/policy/decide_orders.h"
#include "planner/policy/order_csv.h"
#include "planner/policy/pipeline.h"
#include "planner/policy/policy.h"
#include "planner/policy/stage_layouts.h"

namespace penstock::cli {
namespace {

constexpr size_t kMaxCsvBytes = size_t{1} << 28;
// Sums of as many as there may be stay finite.
constexpr double kMostTime = 1e100;

struct ScheduleOptions {
  std::string what;  // a policy, or a CSV file
  std::optional<int> stages;
  std::optional<int> microbatches;
  std::optional<int> chunks;
  double forward = 1;
  double backward = 1;
  double weight = 1;
  double latency = 0;
  double memory_limit = 0;
  std::string svg;
  bool is_csv = false;
  bool is_json = false;
};

// What is scheduled, and the orders.
struct Schedule {
  std::string name;
  planner::Pipeline pipeline;
  planner::PipelineOrders orders;
  bool pairs_phases = false;  // see planner::PolicyNeeds
};

planner::UniformPipeline UniformOf(const ScheduleOptions& options) {
  return {.forward_s = options.forward,
          .backward_s = options.backward,
          .weight_s = options.weight,
          .latency_s = options.latency};
}

absl::Status CheckAgrees(std::string_view option, const std::optional<int>& stated, int actual,
                         std::string_view file) {
  if (!stated.has_value() || *stated == actual) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(option, " ", *stated, ": the orders in ", file, " have ", actual));
}

absl::StatusOr<Schedule> ReadSchedule(const ScheduleOptions& options) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(options.what, kMaxCsvBytes));
  ASSIGN_OR_RETURN(planner::CsvOrders csv, planner::ParseOrdersCsv(text, options.what));
  planner::UniformPipeline uniform = UniformOf(options);
  const bool is_bidirectional = csv.placement.placement == planner::Placement::kBidirectional;
  uniform.num_groups = csv.placement.num_groups;
  uniform.num_chunks = csv.placement.num_chunks;
  uniform.placement = csv.placement.placement;
  uniform.num_microbatches = csv.num_microbatches * (is_bidirectional ? 2 : 1);
  uniform.splits_backward = csv.splits_backward;
  RETURN_IF_ERROR(CheckAgrees("--stages", options.stages, uniform.num_groups, options.what));
  RETURN_IF_ERROR(
      CheckAgrees("--microbatches", options.microbatches, uniform.num_microbatches, options.what));
  RETURN_IF_ERROR(CheckAgrees("--chunks", options.chunks, uniform.num_chunks, options.what));
  Schedule schedule;
  schedule.name = options.what;
  ASSIGN_OR_RETURN(schedule.pipeline, planner::MakePipeline(uniform));
  if (!csv.has_backward) {
    for (planner::VirtualStage& stage : schedule.pipeline.stages) {
      stage.kinds = {true, false, false};
    }
  }
  schedule.orders = std::move(csv.orders);
  schedule.pairs_phases = csv.has_pairs;
  return schedule;
}

// The orders with so many chunks a stage, so placed.
absl::StatusOr<Schedule> PlanLayout(const planner::Policy& policy, const ScheduleOptions& options,
                                    int num_chunks, planner::Placement placement) {
  planner::UniformPipeline uniform = UniformOf(options);
  uniform.num_groups = *options.stages;
  uniform.num_microbatches = *options.microbatches;
  uniform.num_chunks = num_chunks;
  uniform.placement = placement;
  uniform.splits_backward = policy.needs().splits_backward;
  Schedule schedule;
  schedule.name = options.what;
  schedule.pairs_phases = policy.needs().pairs_phases;
  ASSIGN_OR_RETURN(schedule.pipeline, planner::MakePipeline(uniform));
  schedule.pipeline.memory_limit = options.memory_limit;
  ASSIGN_OR_RETURN(schedule.orders, planner::PlanPipeline(policy, schedule.pipeline));
  if (std::any_of(schedule.orders.begin(), schedule.orders.end(),
                  [](const std::vector<planner::PhaseChoice>& order) { return order.empty(); })) {
    ASSIGN_OR_RETURN(schedule.orders,
                     planner::DecideOrders(policy, schedule.pipeline, std::move(schedule.orders)));
  }
  return schedule;
}

// Of a policy that chooses its layout: the one that takes the shortest time within the limit of
// memory.
absl::StatusOr<Schedule> PlanBestLayout(const planner::Policy& policy,
                                        const ScheduleOptions& options) {
  absl::StatusOr<Schedule> best = absl::InternalError("no layout");
  std::pair<double, double> least;
  bool is_first = true;
  for (const planner::StageLayout& layout : planner::LayoutsToTry(options.chunks.value_or(0))) {
    absl::StatusOr<Schedule> schedule =
        PlanLayout(policy, options, layout.num_chunks, layout.placement);
    const absl::StatusOr<planner::Timeline> timeline =
        schedule.ok() ? planner::RunPipeline(schedule->pipeline, schedule->orders)
                      : schedule.status();
    if (!timeline.ok()) {
      if (std::exchange(is_first, false)) best = timeline.status();
      continue;
    }
    is_first = false;
    const std::pair<double, double> cost = {timeline->span_s, timeline->makespan_s};
    if (best.ok() && cost >= least) continue;
    best = std::move(schedule);
    least = cost;
  }
  return best;
}

absl::StatusOr<Schedule> PlanSchedule(const Environment& environment,
                                      const ScheduleOptions& options) {
  const planner::PolicyRegistry& policies = environment.registries.policies;
  std::unique_ptr<const planner::Policy> loaded;
  if (IsPolicyFile(options.what)) {
    ASSIGN_OR_RETURN(loaded, ReadPolicyFile(options.what));
  }
  const planner::Policy* policy = loaded != nullptr ? loaded.get() : policies.Find(options.what);
  if (policy == nullptr) {
    const std::string nearest = graph::NearestName(options.what, policies.Names());
    return absl::InvalidArgumentError(
        StrCat("schedule: there is no policy '", options.what, "'",
               nearest.empty() ? StrCat("; known: ", StrJoin(policies.Names(), ", "), ";")
                               : StrCat("; did you mean '", nearest, "'?"),
               " Files need the ending .csv or .so"));
  }
  for (const auto& [name, value] :
       {std::pair("--stages", options.stages), std::pair("--microbatches", options.microbatches)}) {
    if (!value.has_value()) {
      return absl::InvalidArgumentError(
          StrCat("schedule ", options.what, ": ", name, " is missing"));
    }
  }
  const planner::PolicyNeeds needs = policy->needs();
  if (needs.chooses_layout) return PlanBestLayout(*policy, options);
  return PlanLayout(*policy, options, options.chunks.value_or(needs.min_chunks),
                    needs.placement.value_or(planner::Placement::kLoop));
}

absl::Status CheckMemory(const ScheduleOptions& options, const planner::Timeline& timeline) {
  if (options.memory_limit <= 0) return absl::OkStatus();
  for (size_t g = 0; g < timeline.peak_activations.size(); ++g) {
    if (timeline.peak_activations[g] <= options.memory_limit * (1 + 1e-9)) continue;
    return absl::ResourceExhaustedError(
        fmt::format("'{}' keeps {:g} activations on group {}, more than --memory-limit {:g}; "
                    "`schedule auto` looks for an order within the limit",
                    options.what, timeline.peak_activations[g], g, options.memory_limit));
  }
  return absl::OkStatus();
}

std::string Summary(const Schedule& schedule, const planner::Timeline& timeline) {
  const planner::Pipeline& pipeline = schedule.pipeline;
  const bool is_bidirectional = pipeline.placement.placement == planner::Placement::kBidirectional;
  return fmt::format(
      "{}: {} stages, {} micro-batches{}: makespan {:g}, bubble {:.1f} %", schedule.name,
      pipeline.num_groups, pipeline.num_microbatches * (is_bidirectional ? 2 : 1),
      pipeline.num_chunks() > 1 ? fmt::format(", {} chunks a stage ({})", pipeline.num_chunks(),
                                              planner::Name(pipeline.placement.placement))
                                : "",
      timeline.makespan_s, 100 * planner::BubbleOf(timeline));
}

absl::Status SimulateSchedule(const Environment& environment, const ScheduleOptions& options) {
  RETURN_IF_ERROR(CheckWritable(options.svg));
  absl::StatusOr<Schedule> made =
      HasSuffix(options.what, ".csv") ? ReadSchedule(options) : PlanSchedule(environment, options);
  ASSIGN_OR_RETURN(const Schedule schedule, std::move(made));
  const absl::StatusOr<planner::Timeline> run =
      planner::RunPipeline(schedule.pipeline, schedule.orders);
  if (!run.ok()) {
    return absl::Status(run.status().code(),
                        StrCat(options.what, ": ", ToStd(run.status().message())));
  }
  const planner::Timeline& timeline = *run;
  RETURN_IF_ERROR(CheckMemory(options, timeline));
  const std::string summary = Summary(schedule, timeline);
  if (!options.svg.empty()) {
    RETURN_IF_ERROR(
        WriteTextFile(options.svg, planner::DrawTimeline(schedule.pipeline, timeline, summary)));
  }
  if (options.is_json) {
    environment.out << DumpJson({{"policy", schedule.name},
                                 {"makespan", timeline.makespan_s},
                                 {"span", timeline.span_s},
                                 {"bubble", planner::BubbleOf(timeline)},
                                 {"peak_activations", timeline.peak_activations}})
                    << "\n";
  } else if (options.is_csv) {
    environment.out << planner::OrdersToCsv(schedule.pipeline, schedule.orders,
                                            schedule.pairs_phases);
  } else {
    std::vector<std::string> peaks;
    for (const double peak : timeline.peak_activations) peaks.push_back(fmt::format("{:g}", peak));
    environment.out << summary << "\n"
                    << fmt::format(
                           "longest span of a group {:g}; activations kept at most, by "
                           "group: {}\n",
                           timeline.span_s, StrJoin(peaks, " "));
  }
  return absl::OkStatus();
}

}  // namespace

void AddScheduleCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<ScheduleOptions>();
  CLI::App* command = app.add_subcommand(
      "schedule", "Show the timeline, bubble and memory of a pipeline schedule.");
  command->footer(
      WrapText(StrCat("Policies: ", StrJoin(environment.registries.policies.Names(), ", "),
                      ". Times have any unit, that of the makespan. Example:\n"
                      "  penstock schedule zb-h1 --stages 4 --microbatches 8 --svg zb-h1.svg"),
               kHelpColumns, 0));
  command
      ->add_option(
          "NAME", options->what,
          "A policy, a file with orders in the CSV format of PyTorch's schedules (.csv), or a "
          "plug-in library (.so)")
      ->required();
  command
      ->add_option("--stages", options->stages,
                   "Number of pipeline stages, each a group of devices (that of a .csv)")
      ->check(AtLeast(1))
      ->check(CLI::Range(1, planner::kMaxGroups))
      ->option_text("P");
  command
      ->add_option("--microbatches", options->microbatches,
                   "Number of micro-batches of a step (that of a .csv)")
      ->check(AtLeast(1))
      ->check(CLI::Range(1, planner::kMaxPipelineMicrobatches))
      ->option_text("M");
  command
      ->add_option("--chunks", options->chunks,
                   "Chunks of the model a stage (as few as the policy allows; for auto, 1 or 2, "
                   "whichever is fastest)")
      ->check(AtLeast(1))
      ->check(CLI::Range(1, planner::kMaxChunks))
      ->option_text("V");
  command->add_option("--f", options->forward, "Time of a stage's forward phase (1)")
      ->check(NotNegative())
      ->check(CLI::Range(0.0, kMostTime))
      ->option_text("X");
  command->add_option("--b", options->backward, "Time of a stage's input gradients (1)")
      ->check(NotNegative())
      ->check(CLI::Range(0.0, kMostTime))
      ->option_text("X");
  command
      ->add_option(
          "--w", options->weight,
          "Time of a stage's weight gradients, which are part of B in policies without W (1)")
      ->check(NotNegative())
      ->check(CLI::Range(0.0, kMostTime))
      ->option_text("X");
  command->add_option("--comm", options->latency, "Latency of what passes between stages (0)")
      ->check(NotNegative())
      ->check(CLI::Range(0.0, kMostTime))
      ->option_text("X");
  command
      ->add_option(
          "--memory-limit", options->memory_limit,
          "Limit of stored activations of a stage; 1 is what one micro-batch needs in all chunks "
          "of the stage (0: no limit). zb-1p, zb-2p, zb-v and auto plan within it")
      ->check(NotNegative())
      ->check(CLI::Range(0.0, kMostTime))
      ->option_text("K");
  command->add_flag("--csv", options->is_csv, "Print the orders as CSV");
  command->add_option("--svg", options->svg, "Draw the timeline into this file")
      ->option_text("FILE");
  command->add_flag("--json", options->is_json, "Print the figures as one JSON object")
      ->excludes("--csv");
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return SimulateSchedule(environment, *options); };
  });
}

}  // namespace penstock::cli
