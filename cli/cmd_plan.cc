// penstock plan: compiles a job to a plan file and says what came out.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/checkpoint_copy.h"
#include "cli/compile_job.h"
#include "cli/environment.h"
#include "cli/explain.h"
#include "cli/fewer_devices.h"
#include "cli/files.h"
#include "cli/job.h"
#include "cli/job_graph.h"
#include "cli/job_policy.h"
#include "cli/json.h"
#include "cli/option_checks.h"
#include "cli/plan_summary.h"
#include "nlohmann/json.hpp"

#include "base/counted.h"
#include "base/device.h"
#include "base/format.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/sharding.h"
#include "graph/text.h"
#include "planner/compile.h"
#include "planner/draw/draw_graph.h"
#include "planner/draw/layer_names.h"
#include "planner/lower/unasked_gathers.h"
#include "planner/plan/plan_io.h"
#include "planner/plan/show_plan.h"
#include "planner/search/explain_candidate.h"
#include "planner/search/winning_change.h"

namespace penstock::cli {
namespace {

// Before any pass.
constexpr std::string_view kInput = "input";

// The passes of any job. `split-directions` runs for bidirectional policies only, `mixed-precision`
// for train.dtype = "bf16" and "f16", `move-optimizer` for optimizer=host, `widen-sums` for
// train.sum_dtype = "f32", and `fuse-epilogues` where a device is a GPU.
std::vector<planner::Pass> AllPasses(const graph::OpRegistry& ops) {
  planner::SendOptions sends;
  sends.placement = planner::StagePlacement{1, 2, planner::Placement::kBidirectional};
  return planner::CompilePasses(
      ops, sends, DType::kBF16, planner::kLeastSubBatchBytes,
      [](const graph::Graph&, int) { return true; },
      /*sums_in_f32=*/true, /*optimizer_on_host=*/true);
}

// Of --dump.
std::string DumpNames(const graph::OpRegistry& ops) {
  std::string names(kInput);
  for (const planner::Pass& pass : AllPasses(ops)) StrAppend(&names, ", ", pass.name);
  return names;
}

// PASS=FILE, by pass.
absl::StatusOr<std::map<std::string, std::string, std::less<>>> ParseDumps(
    const graph::OpRegistry& ops, const std::vector<std::string>& dumps) {
  std::map<std::string, std::string, std::less<>> files;
  for (const std::string& dump : dumps) {
    const size_t equals = dump.find('=');
    if (equals == std::string::npos || equals + 1 == dump.size()) {
      return absl::InvalidArgumentError(StrCat("--dump ", dump, ": expected PASS=FILE"));
    }
    const std::string name = dump.substr(0, equals);
    const std::vector<planner::Pass> passes = AllPasses(ops);
    const bool is_known =
        name == kInput || std::any_of(passes.begin(), passes.end(),
                                      [&](const planner::Pass& pass) { return pass.name == name; });
    if (!is_known) {
      return absl::InvalidArgumentError(
          StrCat("--dump ", dump, ": no such pass; there are ", DumpNames(ops)));
    }
    files[name] = dump.substr(equals + 1);
  }
  return files;
}

struct PlanOptions {
  std::string job;
  std::vector<std::string> overrides;
  std::string output;
  std::string strategy;
  std::string policy;
  std::optional<int64_t> devices;
  std::string cluster;
  std::vector<std::string> dumps;  // PASS=FILE
  std::string svg;
  bool has_explanation = false;
  bool is_json = false;
};

// The values whose shardings the strategy or the file gives: parameters, inputs and, with zero and
// sp, states, gradients and activations. Those of layers that are split alike are one line.
std::string ExplainShardings(const graph::Graph& graph) {
  std::vector<std::pair<std::string, std::vector<std::string_view>>> lines;  // with their names
  std::map<std::string, size_t> index_of_line;
  for (graph::ValueId id = 0; id < graph.num_values(); ++id) {
    const graph::Value& value = graph.value(id);
    if (!value.sharding.has_value()) continue;
    std::string line =
        StrCat(planner::WithoutLayer(value.name), " : ", ToString(value.type), " ",
               graph::ToString(graph.meshes()[graph.node(value.producer).mesh], *value.sharding));
    const auto [known, is_new] = index_of_line.emplace(line, lines.size());
    if (is_new) lines.push_back({std::move(line), {}});
    lines[known->second].second.push_back(value.name);
  }
  std::string text = "shardings given (all others follow by propagation):\n";
  for (const auto& [line, names] : lines) {
    const size_t colon = line.find(" : ");
    StrAppend(&text, "  ", names.size() == 1 ? names[0] : line.substr(0, colon),
              line.substr(colon));
    if (names.size() > 1) StrAppend(&text, " (", names.size(), " of them)");
    StrAppend(&text, "\n");
  }
  return text;
}

// A number for each device; of many, a row for each amount.
nlohmann::json PeakMemory(const planner::FoldedPlan& plan, const CheckpointCopies& copies) {
  constexpr uint32_t kMaxListedDevices = 64;
  const auto bytes_of = [&](uint32_t d) {
    return plan.ProgramOnDevice(d).arena_bytes +
           (copies.device_bytes.empty() ? 0 : copies.device_bytes[d]);
  };
  nlohmann::json list = nlohmann::json::array();
  if (plan.num_devices() <= kMaxListedDevices) {
    for (uint32_t d = 0; d < plan.num_devices(); ++d) {
      list.push_back(bytes_of(d));
    }
    return list;
  }
  std::map<uint64_t, uint64_t> devices_by_bytes;
  for (uint32_t d = 0; d < plan.num_devices(); ++d) {
    ++devices_by_bytes[bytes_of(d)];
  }
  for (const auto& [bytes, devices] : devices_by_bytes) {
    list.push_back({{"bytes", bytes}, {"devices", devices}});
  }
  return list;
}

// Of a line for each, those of layers that are alike counted.
std::string DescribeGathers(const std::vector<planner::UnaskedGather>& gathers) {
  std::vector<std::pair<std::string, int64_t>> lines;
  for (const planner::UnaskedGather& gather : gathers) {
    const graph::SourceLocation& place = gather.location;
    std::string line =
        StrCat("%", planner::WithoutLayer(gather.value),
               place.line > 0 ? StrCat(" at ", place.file, ":", place.line, ":", place.column) : "",
               ", ", FormatBytes(static_cast<uint64_t>(gather.num_bytes)), " a device, because ",
               gather.reader, " cannot run on ", gather.from, " and reads ", gather.to);
    const auto known = std::find_if(lines.begin(), lines.end(),
                                    [&](const auto& other) { return other.first == line; });
    if (known == lines.end()) {
      lines.push_back({std::move(line), 1});
    } else {
      ++known->second;
    }
  }
  std::string text;
  for (const auto& [line, count] : lines) {
    StrAppend(&text, "      gathered though nothing asks for it: ", line,
              count > 1 ? StrCat(" (", count, " of them)") : "", "\n");
  }
  return text;
}

nlohmann::json GathersJson(const std::vector<planner::UnaskedGather>& gathers) {
  nlohmann::json list = nlohmann::json::array();
  for (const planner::UnaskedGather& gather : gathers) {
    const graph::SourceLocation& place = gather.location;
    nlohmann::json each = {{"value", gather.value},
                           {"bytes", gather.num_bytes},
                           {"operator", gather.reader},
                           {"from", gather.from},
                           {"to", gather.to}};
    if (place.line > 0) {
      each["location"] = StrCat(place.file, ":", place.line, ":", place.column);
    }
    list.push_back(std::move(each));
  }
  return list;
}

// "gpt, dp=2,tp=2,pp=1, 4 micro-batches on 4 devices".
std::string TitleOf(const JobGraph& job) {
  return StrCat(job.graph.name(), ", ", job.strategy, ", ",
                Counted(job.microbatches, "micro-batch", "es"), " on ",
                Counted(job.num_devices, "device"));
}

absl::Status Plan(const Environment& environment, const PlanOptions& options) {
  const SteadyClock clock;
  const int64_t begin_ns = clock.NowNs();
  ASSIGN_OR_RETURN(const auto dumps, ParseDumps(environment.registries.ops, options.dumps));
  RETURN_IF_ERROR(CheckWritable(options.output));
  RETURN_IF_ERROR(CheckWritable(options.svg));
  ASSIGN_OR_RETURN(Job job, ReadJob(options.job, options.overrides, options.cluster));
  if (!options.strategy.empty()) {
    job.parallel.strategy = options.strategy;
    job.locations["parallel.strategy"] = StrCat("--strategy ", options.strategy);
  }
  OverridePolicy(options.policy, &job);
  if (options.devices.has_value()) {
    job.cluster.devices = *options.devices;
    job.locations["cluster.devices"] = StrCat("--devices ", *options.devices);
  }
  ASSIGN_OR_RETURN(JobGraph graph, BuildJobGraph(environment.registries, job));
  environment.err << graph.notes;
  std::string explanation = SummarizeJob(graph);
  if (options.has_explanation) StrAppend(&explanation, ExplainShardings(graph.graph));
  if (const auto input = dumps.find(kInput); input != dumps.end()) {
    RETURN_IF_ERROR(WriteTextFile(input->second, graph::PrintGraph(graph.graph)));
  }
  planner::PassOptions passes;
  absl::Status dumped;
  for (const auto& [pass, file] : dumps) passes.dump_after.push_back(pass);
  passes.on_dump = [&](std::string_view pass, std::string_view text) {
    if (dumped.ok()) dumped = WriteTextFile(dumps.find(pass)->second, std::string(text));
  };
  absl::StatusOr<std::string> svg;
  std::vector<planner::UnaskedGather> gathers;
  passes.on_graph = [&](std::string_view pass, const graph::Graph& lowered) {
    if (pass == "insert-reshards") gathers = planner::FindUnaskedGathers(graph.graph, lowered);
    if (pass == "lower-reshards" && !options.svg.empty()) {
      svg = planner::DrawGraph(lowered, TitleOf(graph));
    }
  };
  planner::StepEstimate estimate;
  CompileSettings settings = SettingsOf(job, graph);
  settings.passes = passes;
  settings.estimate = &estimate;
  ASSIGN_OR_RETURN(const planner::FoldedPlan plan,
                   CompileFoldedGraph(environment.registries, graph.graph, settings));
  RETURN_IF_ERROR(dumped);
  if (!options.svg.empty()) {
    RETURN_IF_ERROR(svg.status());
    RETURN_IF_ERROR(WriteTextFile(options.svg, *svg));
  }
  ASSIGN_OR_RETURN(const CheckpointCopies copies, CheckpointCopiesOf(job, plan));
  AddCheckpointCopies(copies, graph.device_groups, &estimate);
  std::string note = MemoryNote(graph, estimate);
  if (note.empty() && graph.machine.has_value()) note = MemoryNote(*graph.machine, plan, copies);
  environment.err << note;
  const double search_s = 1e-9 * static_cast<double>(clock.NowNs() - begin_ns);
  std::vector<planner::WinningChange> changes;
  if (options.has_explanation) {
    if (graph.search.has_value()) {
      ASSIGN_OR_RETURN(changes, planner::FindWinningChanges(graph.searched->problem, *graph.search,
                                                            planner::RunnersUp(*graph.search)));
    }
    StrAppend(&explanation, ExplainPlan(graph, estimate, changes));
  }
  if (!options.output.empty()) RETURN_IF_ERROR(planner::WritePlan(plan, options.output));
  std::vector<FewerDevices> fewer;
  if (options.has_explanation) fewer = TryFewerDevices(environment.registries, job, graph);
  StrAppend(&explanation, FewerDevicesText(fewer, graph));

  if (options.is_json) {
    const planner::PlanCounts counts = planner::Count(plan);
    nlohmann::json json = {{"strategy", plan.common.strategy},
                           {"schedule", plan.common.policy},
                           {"stages", plan.num_stages()},
                           {"microbatches", graph.microbatches},
                           {"devices", plan.num_devices()},
                           {"actors", counts.actors},
                           {"channels", counts.channels},
                           {"collectives", counts.collectives},
                           {"predicted_step_time_s", plan.common.predicted_step_s},
                           {"predicted_peak_memory_bytes", PeakMemory(plan, copies)},
                           {"checkpoint_copy_bytes", copies.total()},
                           {"search_time_s", search_s},
                           {"unasked_gathers", GathersJson(gathers)}};
    json.update(ExplainPlanJson(graph, estimate, changes));
    if (options.has_explanation) {
      json["explanation"] = explanation;
      json["fewer_devices"] = FewerDevicesJson(fewer, graph);
    }
    environment.out << DumpJson(json) << "\n";
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(
      const std::string summary,
      SummarizePlan(plan, DescribeDevices(job, plan.num_devices(), plan.common.threads_per_device),
                    copies));
  environment.out << explanation << summary << DescribeGathers(gathers)
                  << CheckpointCopyNote(job, copies.total()) << "      compiled in "
                  << FormatSeconds(search_s) << "\n";
  return absl::OkStatus();
}

}  // namespace

void AddPlanCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand("plan", "Compile a job to a plan without running it.");
  command->add_option("JOB", options->job, "Job (.toml); `penstock run --help` lists its keys")
      ->required();
  command
      ->add_option("--set", options->overrides,
                   "Override a key of the job; VALUE is in TOML syntax. May be repeated")
      ->option_text("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("-o,--output", options->output, "Write the plan to this file")
      ->option_text("FILE");
  command
      ->add_option("--strategy", options->strategy,
                   "Override parallel.strategy: auto, or axis sizes such as dp=2,tp=2,pp=1")
      ->option_text("STRATEGY");
  command
      ->add_option("--policy", options->policy,
                   "Override parallel.schedule: a policy of `penstock list policies`, a file with "
                   "orders (.csv), or a plug-in library (.so)")
      ->option_text("NAME|FILE");
  command->add_option("--devices", options->devices, "Override cluster.devices")
      ->option_text("N")
      ->check(AtLeast(1));
  command
      ->add_option("--cluster", options->cluster,
                   "Cluster to use: a preset (`penstock list clusters`), a file that describes a "
                   "cluster, or a .toml file whose [cluster] keys override the job's")
      ->option_text("CLUSTER");
  command
      ->add_option("--dump", options->dumps,
                   StrCat("Write the graph after a pass, in the text format. May be repeated. "
                          "Passes: ",
                          DumpNames(environment.registries.ops)))
      ->option_text("PASS=FILE")
      ->allow_extra_args(false);
  command
      ->add_option(
          "--svg", options->svg,
          "Write a drawing of the planned graph: operators coloured by stage, and on their "
          "edges what devices communicate")
      ->option_text("FILE");
  command->add_flag(
      "--explain", options->has_explanation,
      "Also print the given shardings, what each axis splits, the parts of the predicted time and "
      "memory, and the schedules and strategies that came next");
  command->add_flag("--json", options->is_json, "Print one JSON object");
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return Plan(environment, *options); };
  });
}

}  // namespace penstock::cli
