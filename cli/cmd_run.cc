// penstock run: trains the model of a job, or runs a plan, and tells how it went.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/checkpoint_copy.h"
#include "cli/checkpoints.h"
#include "cli/environment.h"
#include "cli/feeds.h"
#include "cli/files.h"
#include "cli/help_text.h"
#include "cli/host_layout.h"
#include "cli/host_probe.h"
#include "cli/inference.h"
#include "cli/interrupts.h"
#include "cli/job.h"
#include "cli/job_run.h"
#include "cli/json.h"
#include "cli/model_folder.h"
#include "cli/option_checks.h"
#include "cli/plan_summary.h"
#include "cli/recorded_lines.h"
#include "cli/run_program.h"

#include "actors/cluster/device_range.h"
#include "actors/cluster/link_probe.h"
#include "actors/session/local_engine.h"
#include "actors/session/session.h"
#include "base/counted.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

// A job may be written for more processes than it has devices here; the option means this run.
absl::Status CheckProcesses(const RunOptions& options, const Job& job, const planner::Plan& plan,
                            bool is_launched) {
  const int64_t count = job.cluster.processes;
  const auto num_devices = static_cast<int64_t>(plan.devices.size());
  if (!options.processes.has_value() || count <= num_devices) return absl::OkStatus();
  if (is_launched) return TooManySlots(count, num_devices);
  return AtKey(job, {"cluster.processes"},
               absl::InvalidArgumentError(StrCat(Counted(count, "process", "es"), " for ",
                                                 Counted(num_devices, "device"),
                                                 ": each process needs at least one")));
}

// A run does not end in the loss of what it was for.
absl::Status CheckOutputs(const RunOptions& options) {
  const bool has_traced_output =
      !options.trace.empty() || !options.svg.empty() || !options.report.empty();
  if (options.trace_every == 0 && has_traced_output) {
    return absl::InvalidArgumentError(
        "--trace-every 0: records no step, but --trace, --svg and --report need some");
  }
  if (options.trace_every.value_or(0) > 0 && !has_traced_output) {
    return absl::InvalidArgumentError(
        "--trace-every: nothing is traced; give --trace, --svg or --report with it");
  }
  for (const auto& [name, path] :
       {std::pair("--trace", &options.trace), std::pair("--svg", &options.svg),
        std::pair("--report", &options.report)}) {
    RETURN_IF_ERROR(AtOption(name, CheckWritable(*path)));
  }
  RETURN_IF_ERROR(AtOption("--dump", CheckCreatable(options.dump)));
  if (options.dump.empty() || options.is_dry) return absl::OkStatus();
  return AtOption("--dump", CreateFolder(options.dump));
}

// What would run, and whether the devices of each host fit into a machine like this one.
absl::Status ReportDryRun(const Environment& environment, const RunOptions& options, const Job& job,
                          const planner::Plan& plan) {
  ASSIGN_OR_RETURN(const HostDevices hosts,
                   HostDevicesOf(job, static_cast<int64_t>(plan.devices.size())));
  uint64_t most_used = 0;  // by the devices of a host
  uint32_t first = 0;
  for (const uint32_t count : hosts) {
    uint64_t used = CheckpointCopyBytes(job, plan, first, count);
    const auto is_on_host = [first, count](uint32_t, uint32_t owner) {
      return owner - first < count;
    };
    RETURN_IF_ERROR(actors::CheckFits(plan, first, count, MachineMemoryBytes(), is_on_host, &used));
    most_used = std::max(most_used, used);
    first += count;
  }
  if (options.is_json) {
    environment.out << "{\"summary\": {\"strategy\": " << JsonString(plan.strategy)
                    << ", \"dry_run\": true, \"predicted_step_time_s\": "
                    << JsonNumber(plan.predicted_step_s)
                    << ", \"predicted_peak_memory_bytes\": " << most_used << "}}\n";
  } else {
    environment.out << "dry run: the job is valid and fits into "
                    << (hosts.size() > 1
                            ? StrCat(hosts.size(), " hosts with as much memory as this one")
                            : std::string("this machine"))
                    << "; nothing was run\n";
  }
  return absl::OkStatus();
}

// The hosts of the places in their order, each with its number of places, which are one after the
// other.
std::vector<std::pair<std::string_view, int64_t>> HostsOf(
    const std::vector<actors::NodePlace>& places) {
  std::vector<std::pair<std::string_view, int64_t>> hosts;
  for (const actors::NodePlace& place : places) {
    if (hosts.empty() || hosts.back().first != place.host) hosts.emplace_back(place.host, 0);
    ++hosts.back().second;
  }
  return hosts;
}

bool AreEven(const std::vector<std::pair<std::string_view, int64_t>>& hosts) {
  return std::all_of(hosts.begin(), hosts.end(),
                     [&](const auto& host) { return host.second == hosts[0].second; });
}

// Whether the plan is made by this run, and not for a cluster that a file describes.
bool IsPlannedHere(const RunOptions& options, const Job& job) {
  return !HasSuffix(options.file, ".plan") && options.plan.empty() && job.cluster.file.empty();
}

// A job that says nothing of hosts has those that it is launched on.
absl::Status PlaceOnHosts(const Environment& environment, const RunOptions& options, Job* job) {
  const std::vector<actors::NodePlace>& places = environment.launch.places;
  if (places.empty()) return absl::OkStatus();
  if (options.listen.has_value()) {
    return absl::InvalidArgumentError("--listen of `run` does not go with `launch`");
  }
  if (places.size() != static_cast<size_t>(job->cluster.processes)) {
    return absl::InvalidArgumentError(StrCat("--procs ", job->cluster.processes, ": there are ",
                                             places.size(), " slots on the hosts, a process each"));
  }
  const bool says_hosts = job->cluster.hosts != 1 || !job->cluster.host.empty();
  if (says_hosts) return absl::OkStatus();
  const auto hosts = HostsOf(places);
  if (AreEven(hosts)) {
    job->cluster.hosts = static_cast<int64_t>(hosts.size());
    return absl::OkStatus();
  }
  if (!IsPlannedHere(options, *job)) return absl::OkStatus();
  for (const auto& [host, num_places] : hosts) job->cluster.host_processes.push_back(num_places);
  if (environment.launch.probes_links.value_or(false)) {
    environment.err
        << "note: --probe yes measures no networks between hosts with different numbers "
           "of slots"
        << std::endl;
  }
  return absl::OkStatus();
}

// Hosts of the places, if each has as many; else 0.
size_t NumEvenHosts(const std::vector<actors::NodePlace>& places) {
  const auto hosts = HostsOf(places);
  return AreEven(hosts) ? hosts.size() : 0;
}

// Where the hosts of a launch are to have the same part of the plan, the plan may be made for the
// networks that join them and for how fast each computes. The order of hosts is free, unless the
// ranks of members are given.
absl::Status ProbeHosts(const RunOptions& options, Environment* environment, Job* job) {
  std::vector<actors::NodePlace>& places = environment->launch.places;
  const size_t num_hosts = NumEvenHosts(places);
  const bool is_planned = IsPlannedHere(options, *job) && job->cluster.host.empty();
  const bool is_wanted = environment->launch.probes_links.value_or(
      is_planned && job->parallel.strategy == "auto" &&
      NumProbedNodes(places, num_hosts) <= actors::kMaxProbedNodes);
  if (!is_wanted || num_hosts < 2 || job->cluster.hosts != static_cast<int64_t>(num_hosts)) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(HostProbe probe, ProbeLaunch(environment, *job));
  if (!probe.speeds.empty()) environment->launch.probes_links = false;  // they have been
  if (!is_planned || probe.networks.empty()) return absl::OkStatus();
  places = std::move(probe.places);
  job->cluster.networks = std::move(probe.networks);
  job->cluster.host_speeds = std::move(probe.speeds);
  return absl::OkStatus();
}

// A dry run touches no checkpoints, so those of an earlier run are in nobody's way.
absl::StatusOr<ResumePoint> ResumePointOf(const RunOptions& options, const Job& job,
                                          const planner::Plan& plan) {
  absl::StatusOr<ResumePoint> start = FindResumePoint(job, options.resumes, plan);
  if (!options.is_dry || !absl::IsAlreadyExists(start.status())) return start;
  ResumePoint begin;
  begin.note = StrCat(
      "note: without --dry-run, the job is refused: ", ToStd(start.status().message()), "\n");
  return begin;
}

absl::Status Run(const Environment& environment_of_call, const RunOptions& options) {
  Environment given = environment_of_call;
  std::optional<Interrupts> own;  // before anything else has threads
  if (given.interrupts == nullptr) given.interrupts = &own.emplace(given.err);
  Interrupts& interrupts = *given.interrupts;
  if (!options.timeout.empty()) interrupts.SetTimeLimit(ParseTimeLimit(options.timeout));
  interrupts.SetActivity("while the job was read");
  RecordedLines lines(given.err);
  ASSIGN_OR_RETURN(Job job, ReadOptions(options));
  given.launch.insecure = given.launch.insecure || options.insecure;
  RETURN_IF_ERROR(PlaceOnHosts(given, options, &job));
  if (!options.is_dry) RETURN_IF_ERROR(ProbeHosts(options, &given, &job));
  const Environment environment = WithErr(given, lines.stream());
  RETURN_IF_ERROR(CheckOutputs(options));
  interrupts.SetActivity("while the plan was made");
  ASSIGN_OR_RETURN(RunProgram program, GetProgram(environment.registries, options, job));
  RETURN_IF_ERROR(CheckTrains(program.plan));
  RETURN_IF_ERROR(CheckProcesses(options, job, program.plan, !environment.launch.places.empty()));
  interrupts.SetActivity("while data and weights were read");
  ASSIGN_OR_RETURN(StepFeeds feeds, StepFeeds::Create(program.plan, job));
  // Nobody else writes into the folder from here on.
  std::unique_ptr<Checkpoints> checkpoints;
  if (!job.checkpoint.path.empty() && !options.is_dry) {
    ASSIGN_OR_RETURN(checkpoints,
                     Checkpoints::Create(environment, job, program.plan, options.is_json));
  }
  ASSIGN_OR_RETURN(ResumePoint start, ResumePointOf(options, job, program.plan));
  feeds.SetPosition(start.info.step, start.info.sequences);
  if (!job.model.weights.empty() && start.states == nullptr) {
    const absl::StatusOr<ModelFolder> folder =
        ModelFolder::Open(environment.registries, job.model.weights);
    if (!folder.ok()) return AtKey(job, {"model.weights"}, folder.status());
    absl::StatusOr<Parameters> weights = folder->Weights(program.plan.states);
    if (!weights.ok()) return AtKey(job, {"model.weights"}, weights.status());
    start.states = *std::move(weights);
    start.note = StrCat("starting from the weights in ", job.model.weights, "\n");
  }
  const std::string data = feeds.Fingerprint();
  if (checkpoints != nullptr) {
    checkpoints->set_data(data);
    checkpoints->KeepFor(start);
  }
  if (!start.info.data.empty() && start.info.data != data) {
    StrAppend(&start.note,
              "note: the training data is not that of the checkpoint; the run goes on at the same "
              "position of other data\n");
  }
  const auto num_devices = static_cast<int64_t>(program.plan.devices.size());
  const CheckpointCopies copies = CheckpointCopiesOf(job, program.plan);
  environment.err << ProcessNote(job, std::min(job.cluster.processes, num_devices)) << program.text
                  << SummarizePlan(
                         program.plan,
                         DescribeDevices(job, num_devices, program.plan.threads_per_device), copies)
                  << CheckpointCopyNote(job, copies.total()) << start.note << std::flush;
  if (options.is_dry) return ReportDryRun(environment, options, job, program.plan);
  return RunJob(given, environment, lines, interrupts, options, job, std::move(program),
                std::move(feeds), std::move(start), std::move(checkpoints));
}

}  // namespace

void AddRunCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command =
      app.add_subcommand("run", "Train the model of a job, or run a compiled plan.");
  const std::string footer = StrCat(
      "A plan runs as it was compiled, without validation and sampling. --set can override ",
      KeysOfPlans(),
      ".\n\nRelative paths in a job count from the folder of its file, those in --set from the "
      "working directory. Ctrl-C ends the run after the current step and still writes the "
      "files of --trace, --svg and --report; a second one, or SIGTERM, ends it at once: what "
      "other processes have recorded is lost, and --trace and --svg are not written.");
  command->footer(StrCat("Keys of a job, a TOML file (default in parentheses):\n",
                         DescribeJobKeys(), "\n", WrapText(footer, kHelpColumns, 0)));
  command->add_option("FILE", options->file, "Job (.toml) or plan (.plan)")->required();
  command
      ->add_option("--set", options->overrides,
                   "Override a key of the job, such as train.steps=5; VALUE is in TOML syntax. "
                   "May be repeated")
      ->option_text("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("--devices", options->devices, "Override cluster.devices")
      ->option_text("N")
      ->check(AtLeast(1));
  command
      ->add_option("--strategy", options->strategy,
                   "Override parallel.strategy: auto, or axis sizes such as dp=2,tp=2,pp=1")
      ->option_text("STRATEGY");
  command
      ->add_option("--policy", options->policy,
                   "Override parallel.schedule: a policy of `penstock list policies`, a file with "
                   "orders (.csv), or a plug-in library (.so)")
      ->option_text("NAME|FILE");
  command->add_option("--procs", options->processes, "Override cluster.processes")
      ->option_text("N")
      ->check(AtLeast(1));
  command
      ->add_option("--listen", options->listen,
                   "Listen at HOST:PORT or unix:PATH, print the command that starts a node and "
                   "the file with the job's key, and wait up to 10 minutes for all nodes, instead "
                   "of starting them on this host")
      ->option_text("ADDRESS");
  command->add_flag("--insecure", options->insecure,
                    "Let nodes join without TLS, at a loopback address alone");
  command
      ->add_option("--cluster", options->cluster,
                   "Cluster to use: a preset (`penstock list clusters`), a file that describes a "
                   "cluster, or a .toml file whose [cluster] keys override the job's")
      ->option_text("CLUSTER");
  command
      ->add_option("--plan", options->plan,
                   "Use this plan, compiled earlier from the same job, instead of compiling")
      ->option_text("FILE");
  command
      ->add_option("--trace", options->trace,
                   StrCat("Write a Perfetto trace of the steps that fit into the last ",
                          actors::SessionOptions().trace_capacity,
                          " events of each device (F.json: a Chrome trace)"))
      ->option_text("FILE");
  command
      ->add_option("--trace-every", options->trace_every,
                   "Record the first step and every N-th step after it (1). 0 records none: the "
                   "summary then has no critical path")
      ->check(AtLeast(0))
      ->option_text("N");
  command
      ->add_option("--svg", options->svg, "Write a drawing of the phases of the last traced step")
      ->option_text("FILE");
  command
      ->add_option(
          "--report", options->report,
          "Write a report of the run: for FILE.html a page with loss curves, the timeline of a "
          "step, its critical path, predicted and measured times and memory, the slowest operators "
          "and the planned graph; otherwise the tables as Markdown")
      ->option_text("FILE");
  command
      ->add_option("--dump", options->dump, "Write initial states, feeds and losses as .npy files")
      ->option_text("DIR");
  command
      ->add_option("--metrics", options->metrics,
                   "Override metrics.listen: serve metrics to Prometheus at PORT on loopback, or "
                   "at HOST:PORT; port 0 takes any and prints it")
      ->option_text("[HOST:]PORT");
  command
      ->add_option(
          "--timeout", options->timeout,
          "End the run after this time as Ctrl-C does, with exit status 124: seconds, or a "
          "number with s, m, h or d")
      ->option_text("TIME")
      ->check(TimeLimit());
  command
      ->add_option("--log-dir", options->log_folder,
                   "Have each process of --procs keep what it prints in a file of this folder, on "
                   "its host")
      ->option_text("DIR");
  command->add_flag("--resume", options->resumes,
                    "Continue from the newest checkpoint in checkpoint.path, under the same or any "
                    "other strategy; without one, begin anew");
  command->add_flag("--dry-run", options->is_dry,
                    "Check and compile the job, print its plan, and exit");
  command->add_flag("--json", options->is_json,
                    "Print one JSON object per reported step, then {\"summary\": {...}}");
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return Run(environment, *options); };
  });
}

}  // namespace penstock::cli
