#include "cli/run_program.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/types/span.h"
#include "cli/compile_job.h"
#include "cli/files.h"
#include "cli/job_graph.h"
#include "cli/job_policy.h"
#include "cli/metrics.h"
#include "cli/option_checks.h"
#include "cli/plan_summary.h"
#include "cli/report_collect.h"
#include "cli/report_run.h"
#include "cli/verified_plan.h"

#include "actors/cluster/socket_address.h"
#include "base/counted.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/plan_io.h"
#include "planner/strategy/strategy.h"

namespace penstock::cli {
namespace {

// What a plan leaves open.
constexpr std::string_view kKeysOfPlans[] = {"train.steps", "train.seed", "data.text",
                                             "data.inputs"};
// What else may be set: it has defaults that need no note.
constexpr std::string_view kMoreKeysOfPlans[] = {
    "train.log_every",      "train.on_nonfinite", "checkpoint.path",
    "checkpoint.every",     "checkpoint.keep",    "cluster.threads",
    "cluster.node_timeout", "metrics.listen",     "data.tokens",
    "data.token_type",      "data.csv",           "data.csv_label",
    "data.images",          "data.labels",        "data.scale",
    "data.tokenizer",       "data.cache"};

constexpr std::string_view kOneInput = "data.inputs.";

absl::Status CheckKeyOfPlan(std::string_view assignment) {
  std::string_view key = assignment.substr(0, assignment.find('='));
  if (key.substr(0, kOneInput.size()) == kOneInput) key = "data.inputs";
  for (const absl::Span<const std::string_view> keys :
       {absl::MakeConstSpan(kKeysOfPlans), absl::MakeConstSpan(kMoreKeysOfPlans)}) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(StrCat("--set ", assignment,
                                           ": a plan runs as it was compiled; only ", KeysOfPlans(),
                                           " can be set"));
}

absl::StatusOr<RunProgram> LoadPlan(const Registries& registries, const std::string& file,
                                    const Job& job) {
  RunProgram program;
  program.policies = registries.policies;
  ASSIGN_OR_RETURN(program.plan, ReadVerifiedPlan(file, registries.policies));
  const auto devices = static_cast<int64_t>(program.plan.devices.size());
  if (job.cluster.devices.has_value() && *job.cluster.devices != devices) {
    return AtKey(
        job, {"cluster.devices"},
        absl::InvalidArgumentError(StrCat(file, " is a plan for ", Counted(devices, "device"),
                                          ", not ", *job.cluster.devices)));
  }
  const int64_t threads = program.plan.threads_per_device;
  if (job.cluster.threads.has_value() && *job.cluster.threads > threads) {
    return AtKey(
        job, {"cluster.threads"},
        absl::InvalidArgumentError(StrCat(file, " was compiled for ", Counted(threads, "thread"),
                                          " a device, not ", *job.cluster.threads)));
  }
  return program;
}

// Where the report is a page, it shows the graph.
CompileSettings SettingsOf(const RunOptions& options, const Job& job, const JobGraph& graph,
                           RunProgram* program) {
  CompileSettings settings = SettingsOf(job, graph);
  settings.estimate = &program->estimate;
  if (!IsPage(options.report)) return settings;
  settings.passes.on_graph = [program](std::string_view pass, const graph::Graph& lowered) {
    if (pass == "lower-reshards") CollectGraph(lowered, &program->page);
  };
  return settings;
}

absl::StatusOr<RunProgram> CompileJob(const Registries& registries, const RunOptions& options,
                                      const Job& job) {
  RunProgram program;
  ASSIGN_OR_RETURN(JobGraph graph, BuildJobGraph(registries, job));
  program.policies = graph.policies;
  program.model = graph.model;
  program.text = graph.notes + SummarizeJob(graph);
  const CompileSettings settings = SettingsOf(options, job, graph, &program);
  ASSIGN_OR_RETURN(const planner::FoldedPlan plan,
                   CompileFoldedGraph(registries, std::move(graph.graph), settings));
  // What runs is what a plan file would hold.
  ASSIGN_OR_RETURN(const std::string bytes, planner::PlanToBytes(plan));
  ASSIGN_OR_RETURN(program.plan, planner::PlanFromBytes(bytes));
  return program;
}

constexpr char kCompileAnother[] = "; `penstock plan` compiles another plan";

// An error that names the keys in which the job differs from the one that the plan is for.
absl::Status PlanOfAnotherGraph(const Job& job, const JobGraph& graph, const planner::Plan& plan,
                                const std::string& file) {
  std::vector<std::string_view> keys;
  std::vector<std::string> differences;
  for (const planner::ProgramSetting& ours : graph.settings) {
    for (const planner::ProgramSetting& theirs : plan.settings) {
      if (theirs.name != ours.name || theirs.value == ours.value) continue;
      keys.push_back(ours.name);
      differences.push_back(StrCat(ours.name, " = ", theirs.value, ", not ", ours.value));
    }
  }
  if (differences.empty()) {
    return absl::InvalidArgumentError(
        StrCat(file, " is a plan for another graph: it was compiled from ", plan.name,
               " with other operators, sizes or constants than this job's"));
  }
  // The schedule of the learning rate is part of the plan, the number of steps is not.
  const std::string run_plan =
      keys.size() == 1 && keys[0] == "train.steps"
          ? StrCat(", and `penstock run ", file, " --set train.steps=", job.train.steps,
                   "` runs so many steps of this one")
          : std::string();
  return AtKey(
      job, keys,
      absl::InvalidArgumentError(StrCat(file, " was compiled with ", StrJoin(differences, "; "),
                                        kCompileAnother, run_plan)));
}

// Of a strategy, what the job has decided: how many chunks a group has may depend on the machine
// that a plan is compiled for.
std::string DecidedStrategy(const JobGraph& graph, const std::string& text) {
  if (!graph.has_chosen_chunks) return text;
  absl::StatusOr<std::optional<planner::Strategy>> strategy = planner::ParseStrategy(text);
  if (!strategy.ok() || !strategy->has_value()) return text;
  (*strategy)->vpp = 1;
  return planner::ToString(**strategy);
}

// What the job says of the layout has to be what the plan was compiled with.
absl::Status CheckIsPlanOf(const Job& job, const JobGraph& graph, const planner::Plan& plan,
                           const std::string& file) {
  if (plan.graph_fingerprint != planner::Fingerprint(graph.graph)) {
    return PlanOfAnotherGraph(job, graph, plan, file);
  }
  const auto differs = [&](std::string_view key, const auto& ours, const auto& theirs) {
    return AtKey(job, {std::string(key)},
                 absl::InvalidArgumentError(StrCat(file, " was compiled with ", key, " = ", theirs,
                                                   ", not ", ours, kCompileAnother)));
  };
  if (job.parallel.strategy != "auto" &&
      DecidedStrategy(graph, graph.strategy) != DecidedStrategy(graph, plan.strategy)) {
    return differs("parallel.strategy", graph.strategy, plan.strategy);
  }
  if (job.parallel.microbatches > 0 && job.parallel.microbatches != plan.num_microbatches) {
    return differs("parallel.microbatches", job.parallel.microbatches, plan.num_microbatches);
  }
  if (job.locations.contains("parallel.schedule") && job.parallel.schedule != plan.policy) {
    return differs("parallel.schedule", job.parallel.schedule, plan.policy);
  }
  return absl::OkStatus();
}

// The job by a plan that was compiled before.
absl::StatusOr<RunProgram> LoadJobPlan(const Registries& registries, const RunOptions& options,
                                       const Job& job) {
  ASSIGN_OR_RETURN(JobGraph graph, BuildJobGraph(registries, job));
  ASSIGN_OR_RETURN(RunProgram program, LoadPlan(registries, options.plan, job));
  RETURN_IF_ERROR(CheckIsPlanOf(job, graph, program.plan, options.plan));
  program.policies = graph.policies;
  program.model = graph.model;
  program.text = graph.notes + SummarizeJob(graph);
  if (IsPage(options.report)) {
    const CompileSettings settings = SettingsOf(options, job, graph, &program);
    RETURN_IF_ERROR(CompileFoldedGraph(registries, std::move(graph.graph), settings).status());
  }
  return program;
}

}  // namespace

std::string KeysOfPlans() {
  return StrCat(StrJoin(kKeysOfPlans, ", "), ", ", StrJoin(kMoreKeysOfPlans, ", "));
}

absl::StatusOr<Job> ReadOptions(const RunOptions& options) {
  Job job;
  if (HasSuffix(options.file, ".plan")) {
    if (!options.plan.empty()) {
      return absl::InvalidArgumentError("--plan goes with a job, not with another plan");
    }
    if (!options.strategy.empty()) {
      return absl::InvalidArgumentError(
          StrCat("--strategy ", options.strategy, ": a plan runs as it was compiled"));
    }
    if (!options.policy.empty()) {
      return absl::InvalidArgumentError(
          StrCat("--policy ", options.policy, ": a plan has the order of its phases"));
    }
    if (!options.cluster.empty()) {
      return absl::InvalidArgumentError(
          StrCat("--cluster ", options.cluster, ": a plan runs as it was compiled"));
    }
    for (const std::string& assignment : options.overrides) {
      RETURN_IF_ERROR(ApplyOverride(assignment, job));
      RETURN_IF_ERROR(CheckKeyOfPlan(assignment));
    }
  } else {
    ASSIGN_OR_RETURN(job, ReadJob(options.file, options.overrides, options.cluster));
  }
  if (!options.strategy.empty()) {
    job.parallel.strategy = options.strategy;
    job.locations["parallel.strategy"] = StrCat("--strategy ", options.strategy);
  }
  OverridePolicy(options.policy, &job);
  if (options.devices.has_value()) {
    job.cluster.devices = *options.devices;
    job.locations["cluster.devices"] = StrCat("--devices ", *options.devices);
  }
  if (options.processes.has_value()) {
    job.cluster.processes = *options.processes;
    job.locations["cluster.processes"] = StrCat("--procs ", *options.processes);
  }
  if (options.listen.has_value()) {
    RETURN_IF_ERROR(AtOption("--listen", actors::CheckListenAddress(*options.listen)));
    if (options.insecure) RETURN_IF_ERROR(actors::CheckIsInsecureAddress(*options.listen));
  }
  if (options.metrics.has_value()) {
    RETURN_IF_ERROR(AtOption("--metrics", ParseMetricsAddress(*options.metrics).status()));
    job.metrics.listen = *options.metrics;
    job.locations["metrics.listen"] = StrCat("--metrics ", *options.metrics);
  }
  return job;
}

absl::StatusOr<RunProgram> GetProgram(const Registries& registries, const RunOptions& options,
                                      const Job& job) {
  if (HasSuffix(options.file, ".plan")) {
    ASSIGN_OR_RETURN(RunProgram program, LoadPlan(registries, options.file, job));
    std::vector<std::string_view> left_open;
    for (const std::string_view key : kKeysOfPlans) {
      if (!job.locations.contains(key)) left_open.push_back(key);
    }
    if (!left_open.empty()) {
      program.text = StrCat("note: a plan file does not hold ", StrJoin(left_open, ", "),
                            "; their defaults apply (set them with --set, or run the job with "
                            "--plan ",
                            options.file, ")\n");
    }
    program.page.no_graph = "A plan file does not hold the graph; run the job with --plan.";
    return program;
  }
  if (!options.plan.empty()) return LoadJobPlan(registries, options, job);
  return CompileJob(registries, options, job);
}

absl::Status CheckTrains(const planner::Plan& plan) {
  if (!plan.fetches.empty() && plan.fetches[0].type.shape.empty() &&
      IsFloat(plan.fetches[0].type.dtype)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      StrCat("plan ", plan.name,
             ": its first result is not a scalar loss; `penstock eval` runs "
             "graphs of other kinds"));
}

}  // namespace penstock::cli
