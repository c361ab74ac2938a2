// penstock run: trains the model of a job, or runs a plan, and tells how it went.

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/cleanup/cleanup.h"
#include "cli/checkpoints.h"
#include "cli/data.h"
#include "cli/environment.h"
#include "cli/feeds.h"
#include "cli/files.h"
#include "cli/find_nonfinite.h"
#include "cli/help_text.h"
#include "cli/host_layout.h"
#include "cli/inference.h"
#include "cli/interrupts.h"
#include "cli/job.h"
#include "cli/job_graph.h"
#include "cli/job_monitor.h"
#include "cli/job_policy.h"
#include "cli/json.h"
#include "cli/measured_latency.h"
#include "cli/metrics.h"
#include "cli/model_folder.h"
#include "cli/npy.h"
#include "cli/option_checks.h"
#include "cli/plan_summary.h"
#include "cli/processes.h"
#include "cli/recorded_lines.h"
#include "cli/replayed_cores.h"
#include "cli/report_collect.h"
#include "cli/report_page.h"
#include "cli/report_run.h"
#include "cli/run_report.h"
#include "cli/trace_file.h"
#include "cli/trainer.h"
#include "fmt/format.h"

#include "actors/cluster/cluster.h"
#include "actors/cluster/device_range.h"
#include "actors/cluster/socket_address.h"
#include "actors/session/kept_tiles.h"
#include "actors/session/local_engine.h"
#include "actors/session/session.h"
#include "actors/trace/computation_times.h"
#include "actors/trace/critical_path.h"
#include "actors/trace/trace.h"
#include "base/counted.h"
#include "base/format.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/compile.h"
#include "planner/cost/replay.h"
#include "planner/plan/plan_io.h"

namespace penstock::cli {
namespace {

constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

// Between snapshots of the states, from which steps are run again to find where a NaN comes from.
constexpr double kSnapshotSeconds = 300;
// Of the machine's memory, the part that a snapshot may take.
constexpr uint64_t kSnapshotMemoryShare = 8;
// The user is told how long it takes to run longer steps again.
constexpr double kLongReplaySeconds = 120;

struct Options {
  std::string file;
  std::vector<std::string> overrides;
  std::optional<int64_t> devices;
  std::optional<int64_t> processes;
  std::string plan;  // that the job runs by
  std::string cluster;
  std::string trace;
  int64_t trace_every = 1;
  std::string svg;
  std::string report;
  std::string dump;
  std::optional<std::string> listen;
  std::optional<std::string> metrics;
  std::string strategy;
  std::string policy;
  bool resumes = false;
  bool is_dry = false;
  bool is_json = false;
};

// What is to be run: the plan as it was read back, and of a job its model.
struct Program {
  planner::Plan plan;
  JobModel model;    // without a model where a plan file or a graph file is run
  std::string text;  // the summary before the run
  planner::StepEstimate estimate;
  Report page;  // with the graph, where the report is a page
};

// What a plan leaves open.
constexpr std::string_view kKeysOfPlans[] = {"train.steps", "train.seed", "data.text",
                                             "data.inputs"};
// What else may be set: it has defaults that need no note.
constexpr std::string_view kMoreKeysOfPlans[] = {
    "train.log_every",      "train.on_nonfinite", "checkpoint.path",
    "checkpoint.every",     "checkpoint.keep",    "cluster.threads",
    "cluster.node_timeout", "metrics.listen",     "data.tokens",
    "data.token_type",      "data.csv",           "data.csv_label",
    "data.images",          "data.labels",        "data.scale"};

constexpr std::string_view kOneInput = "data.inputs.";

absl::Status CheckKeyOfPlan(std::string_view assignment) {
  std::string_view key = assignment.substr(0, assignment.find('='));
  if (key.substr(0, kOneInput.size()) == kOneInput) key = "data.inputs";
  for (const absl::Span<const std::string_view> keys :
       {absl::MakeConstSpan(kKeysOfPlans), absl::MakeConstSpan(kMoreKeysOfPlans)}) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      StrCat("--set ", assignment, ": a plan runs as it was compiled; only ",
             StrJoin(kKeysOfPlans, ", "), ", ", StrJoin(kMoreKeysOfPlans, ", "), " can be set"));
}

absl::Status AtOption(std::string_view option, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), StrCat(option, " ", ToStd(status.message())));
}

absl::StatusOr<Job> ReadOptions(const Options& options) {
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
  }
  if (options.metrics.has_value()) {
    RETURN_IF_ERROR(AtOption("--metrics", ParseMetricsAddress(*options.metrics).status()));
    job.metrics.listen = *options.metrics;
    job.locations["metrics.listen"] = StrCat("--metrics ", *options.metrics);
  }
  return job;
}

absl::StatusOr<Program> LoadPlan(const std::string& file, const Job& job) {
  Program program;
  ASSIGN_OR_RETURN(program.plan, planner::ReadPlan(file));
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
CompileSettings SettingsOf(const Options& options, const Job& job, const JobGraph& graph,
                           Program* program) {
  CompileSettings settings = SettingsOf(job, graph);
  settings.estimate = &program->estimate;
  if (!IsPage(options.report)) return settings;
  settings.passes.on_graph = [program](std::string_view pass, const graph::Graph& lowered) {
    if (pass == "lower-reshards") CollectGraph(lowered, &program->page);
  };
  return settings;
}

absl::StatusOr<Program> CompileJob(const Registries& registries, const Options& options,
                                   const Job& job) {
  Program program;
  ASSIGN_OR_RETURN(JobGraph graph, BuildJobGraph(registries, job));
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

// A job may be written for more processes than it has devices here; the option means this run.
absl::Status CheckProcesses(const Options& options, const Job& job, const planner::Plan& plan) {
  const int64_t count = job.cluster.processes;
  const auto num_devices = static_cast<int64_t>(plan.devices.size());
  if (!options.processes.has_value() || count <= num_devices) return absl::OkStatus();
  return AtKey(job, {"cluster.processes"},
               absl::InvalidArgumentError(StrCat(Counted(count, "process", "es"), " for ",
                                                 Counted(num_devices, "device"),
                                                 ": each process needs at least one")));
}

// The nodes that the job asks for; null where this process runs all. What nodes print goes to the
// environment, by a thread that may outlive the job.
absl::StatusOr<std::unique_ptr<actors::Cluster>> StartCluster(
    const Environment& environment, std::ostream& notes, const Options& options, const Job& job,
    const planner::Plan& plan, const JobMonitor& monitor, Interrupts& interrupts) {
  const auto num_devices = static_cast<int64_t>(plan.devices.size());
  int64_t count = job.cluster.processes;
  if (count > num_devices) {
    notes << "note: of cluster.processes = " << count << ", "
          << Counted(num_devices, "process", "es") << " with a device each are started"
          << std::endl;
    count = num_devices;
  }
  if (count == 1 && !options.listen.has_value()) return nullptr;
  ASSIGN_OR_RETURN(std::vector<uint32_t> devices, ProcessDevicesOf(job, count));
  // Where devices share cores, a stage that waits leaves its cores to the others: the devices of
  // one stage, which compute at the same time, have different ones.
  const bool stages_share_cores =
      plan.stages.size() > 1 && num_devices * plan.threads_per_device > UsableCores();
  ASSIGN_OR_RETURN(
      std::unique_ptr<actors::Cluster> cluster,
      StartProcesses(environment,
                     {.count = count,
                      .num_devices = num_devices,
                      .devices = std::move(devices),
                      .listen = options.listen.value_or(""),
                      .pin = !stages_share_cores || count == num_devices,
                      .core_sharing = stages_share_cores ? CpuTopology::Sharing::kInTurn
                                                         : CpuTopology::Sharing::kNeighbours,
                      .node_timeout_s = job.cluster.node_timeout,
                      .status_answers = monitor.answers(),
                      .on_listening = [&interrupts](const std::string& address) {
                        interrupts.RemoveAtExit(actors::FileOf(address));
                      }}));
  HostDevices hosts;  // that the plan is for, if that is known
  if (options.plan.empty() && !HasSuffix(options.file, ".plan")) {
    ASSIGN_OR_RETURN(hosts, HostDevicesOf(job, num_devices));
  }
  notes << PlacementNotes(cluster->nodes(), hosts) << std::flush;
  return cluster;
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
  if (job.parallel.strategy != "auto" && graph.strategy != plan.strategy) {
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
absl::StatusOr<Program> LoadJobPlan(const Registries& registries, const Options& options,
                                    const Job& job) {
  ASSIGN_OR_RETURN(JobGraph graph, BuildJobGraph(registries, job));
  ASSIGN_OR_RETURN(Program program, LoadPlan(options.plan, job));
  RETURN_IF_ERROR(CheckIsPlanOf(job, graph, program.plan, options.plan));
  program.model = graph.model;
  program.text = graph.notes + SummarizeJob(graph);
  if (IsPage(options.report)) {
    const CompileSettings settings = SettingsOf(options, job, graph, &program);
    RETURN_IF_ERROR(CompileFoldedGraph(registries, std::move(graph.graph), settings).status());
  }
  return program;
}

absl::StatusOr<Program> GetProgram(const Registries& registries, const Options& options,
                                   const Job& job) {
  if (HasSuffix(options.file, ".plan")) {
    ASSIGN_OR_RETURN(Program program, LoadPlan(options.file, job));
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

// Writes NAME.npy of every state as it is before the first step.
absl::Status DumpStates(const std::string& folder, const actors::Session& session) {
  if (folder.empty()) return absl::OkStatus();
  for (const planner::StatePlan& state : session.plan().states) {
    ASSIGN_OR_RETURN(const Tensor tensor, session.Fetch(state.name));
    RETURN_IF_ERROR(WriteNpy(StrCat(folder, "/", state.name, ".npy"), tensor));
  }
  return absl::OkStatus();
}

// Without events: nothing, and files that are there stay as they are.
absl::Status WriteTraces(const Options& options, const planner::Plan& plan,
                         const actors::StepWindow& last_step,
                         absl::Span<const actors::TraceEvent> events,
                         const actors::TraceContext& context) {
  if (events.empty()) return absl::OkStatus();
  if (!options.trace.empty()) {
    RETURN_IF_ERROR(WriteTraceFile(options.trace, plan, events, context));
  }
  if (!options.svg.empty()) {
    std::ostringstream text;
    actors::WriteTimelineSvg(plan, events, last_step, text);
    RETURN_IF_ERROR(WriteTextFile(options.svg, text.str()));
  }
  return absl::OkStatus();
}

// A run does not end in the loss of what it was for.
absl::Status CheckOutputs(const Options& options) {
  for (const auto& [name, path] :
       {std::pair("--trace", &options.trace), std::pair("--svg", &options.svg),
        std::pair("--report", &options.report)}) {
    RETURN_IF_ERROR(AtOption(name, CheckWritable(*path)));
  }
  RETURN_IF_ERROR(AtOption("--dump", CheckCreatable(options.dump)));
  if (options.dump.empty() || options.is_dry) return absl::OkStatus();
  return AtOption("--dump", CreateFolder(options.dump));
}

// Of all states, each once.
uint64_t StateBytes(const planner::Plan& plan) {
  uint64_t num_bytes = 0;
  for (const planner::StatePlan& state : plan.states) num_bytes += state.type.num_bytes();
  return num_bytes;
}

// What the copies of states for checkpoints take in the processes whose devices begin in a range.
uint64_t CopyBytes(const Job& job, const planner::Plan& plan, uint32_t first, uint32_t count) {
  if (job.checkpoint.path.empty()) return 0;
  const auto num_devices = static_cast<int64_t>(plan.devices.size());
  const int64_t num_processes = std::min(job.cluster.processes, num_devices);
  const std::vector<uint32_t> devices =
      ProcessDevicesOf(job, num_processes).value_or(std::vector<uint32_t>());
  uint64_t num_bytes = 0;
  for (int64_t rank = 0; rank < num_processes; ++rank) {
    const actors::DeviceRange range =
        actors::DevicesOfRank(rank, num_processes, num_devices, devices);
    if (range.first - first >= count) continue;
    num_bytes += actors::KeptTiles::BytesOfAll(plan, range.first, range.count);
  }
  return num_bytes;
}

std::string CopyNote(const Job& job, const planner::Plan& plan) {
  if (job.checkpoint.path.empty()) return "";
  return StrCat("      ", FormatBytes(CopyBytes(job, plan, 0, UINT32_MAX)),
                " for the copies of states that go into checkpoints\n");
}

// A run of a program: its session, what it measured, and what follows the training steps.
class JobRun {
 public:
  // `recorded` is the environment with a stream for messages that keeps the notes among them.
  JobRun(const Environment& environment, const Environment& recorded, RecordedLines& lines,
         const Options& options, const Job& job, Program program, StepFeeds feeds,
         ResumePoint start, std::unique_ptr<Checkpoints> checkpoints)
      : process_environment_(environment),
        environment_(recorded),
        lines_(lines),
        options_(options),
        job_(job),
        plan_(std::move(program.plan)),
        model_(std::move(program.model)),
        estimate_(std::move(program.estimate)),
        page_(std::move(program.page)),
        feeds_(std::move(feeds)),
        start_(std::move(start)),
        checkpoints_(std::move(checkpoints)),
        interrupts_(environment.err),
        monitor_(plan_, job.train.steps, start_.info.step) {
    threads_ = job.cluster.threads.value_or(plan_.threads_per_device);
    summary_.strategy = plan_.strategy;
    summary_.tokens_per_step = feeds_.batch() * feeds_.context();
    summary_.images_per_step = feeds_.examples() != nullptr ? feeds_.batch() : 0;
    summary_.validation_loss = kNotMeasured;
    summary_.unigram_entropy =
        feeds_.corpus() != nullptr ? feeds_.corpus()->unigram_entropy : kNotMeasured;
    session_options_.threads_per_device = static_cast<int>(threads_);
    session_options_.seed = static_cast<uint64_t>(job.train.seed);
    session_options_.kernels = &environment.registries.kernels;
    session_options_.policies = &environment.registries.policies;
    session_options_.first_step = start_.info.step;
    session_options_.reserves_state_copy = !job.checkpoint.path.empty();
    session_options_.states = start_.states;
    session_options_.trace_every = options.trace_every;
    session_options_.trace =
        !options.trace.empty() || !options.svg.empty() || !options.report.empty();
  }
  ~JobRun() { interrupts_.SetAbort(nullptr); }

  absl::Status Run() {
    const auto num_devices = static_cast<int64_t>(plan_.devices.size());
    monitor_.Open(environment_);
    RETURN_IF_ERROR(
        AtKey(job_, {"metrics.listen"}, monitor_.ServeMetrics(environment_, job_.metrics.listen)));
    if (checkpoints_ != nullptr) {
      checkpoints_->SetOnResult(
          [this](const actors::CheckpointResult& result) { monitor_.OnCheckpoint(result); });
    }
    ASSIGN_OR_RETURN(cluster_, StartCluster(process_environment_, environment_.err, options_, job_,
                                            plan_, monitor_, interrupts_));
    if (cluster_ != nullptr) session_options_.start_engine = cluster_->engine_factory();
    if (cluster_ != nullptr) nodes_ = cluster_->nodes();
    cores_ = CoresOfDevices(nodes_, num_devices, threads_);
    summary_.cores_note = CrowdingNote(nodes_, num_devices, threads_);
    if (!summary_.cores_note.empty()) {
      environment_.err << "note: " << summary_.cores_note << std::endl;
    }
    const absl::Status status = Train();
    const absl::Status ended = cluster_ != nullptr ? cluster_->Stop(status) : absl::OkStatus();
    if (status.ok() && !ended.ok()) {
      environment_.err << "note: the job is done, but some of its processes did not end cleanly: "
                       << ToStd(ended.message()) << std::endl;
    }
    const absl::Status written = WriteResults(status);
    if (!status.ok()) return status;
    return written.ok() ? LastCheckpoint() : written;
  }

 private:
  // What ends the job at once ends these sessions too.
  void AbortByStopping(actors::Session* running, actors::Session* other = nullptr) {
    interrupts_.SetAbort([this, running, other] {
      if (cluster_ != nullptr) cluster_->Kill();
      for (actors::Session* session : {running, other}) {
        if (session != nullptr) session->Stop();
      }
    });
  }

  absl::Status Train() {
    ASSIGN_OR_RETURN(std::unique_ptr<actors::Session> session,
                     actors::Session::Start(plan_, session_options_));
    AbortByStopping(session.get());
    monitor_.Follow(session->inspector());
    const auto end_sessions = absl::MakeCleanup([this] {
      interrupts_.SetAbort(nullptr);
      monitor_.Follow(nullptr);
      validator_ = nullptr;
      running_ = nullptr;
      EndCheckpoints();
    });
    RETURN_IF_ERROR(DumpStates(options_.dump, *session));
    TrainerOptions trainer_options;
    trainer_options.is_json = options_.is_json;
    trainer_options.dump = options_.dump;
    trainer_options.start = {start_.info.step, start_.states};
    trainer_options.checkpoints = checkpoints_.get();
    if (CanValidate() && job_.train.validation_every > 0) {
      running_ = session.get();  // which waits while another one validates
      trainer_options.validate = [this](const actors::Session& trained) {
        monitor_.SetActivity("validating");
        const auto training = absl::MakeCleanup([this] { monitor_.SetActivity("training"); });
        return validator().LossOf(trained);
      };
      trainer_options.release_memory = [this] { return validator().Release(); };
    }
    if (job_.train.stops_on_nonfinite &&
        StateBytes(plan_) <= MachineMemoryBytes() / kSnapshotMemoryShare) {
      trainer_options.snapshot_seconds = kSnapshotSeconds;
    }
    trainer_options.on_step = [this](int64_t steps_done, double loss, double step_s) {
      monitor_.OnStep(steps_done, loss, step_s, summary_.tokens_per_step);
    };
    Trainer trainer(environment_, trainer_options, job_, *session, feeds_, interrupts_);
    const absl::Status trained = trainer.Run(&summary_);
    is_done_before_ = trained.ok() && summary_.steps == 0;
    last_step_ = LastTraced(trainer);
    events_ = session->TakeTrace();
    if (!trained.ok() && session_options_.trace && events_.empty()) {
      // The job was aborted: what devices of this process have recorded is still there.
      session->Stop();
      events_ = session->TakeTrace();
      if (events_.empty()) NoteLostTrace();
    }
    summary_.has_trace = !events_.empty();
    summary_.traced = actors::FindTracedSteps(plan_, events_);
    summary_.trace_capacity = session_options_.trace_capacity;
    summary_.trace_every = session_options_.trace_every;
    step_windows_ = trainer.step_windows();
    const std::optional<actors::StepWindow> step =
        actors::MedianTracedStep(plan_, events_, trainer.step_windows());
    if (step.has_value()) {
      summary_.path = actors::FindCriticalPath(plan_, events_, *step, &cores_);
      summary_.mean_path = actors::MeanCriticalPath(plan_, events_, trainer.step_windows(),
                                                    /*max_steps=*/100, &cores_);
      summary_.replayed_step_s = ReplayStep();
    }
    Parameters parameters;
    if (trained.ok() && model_.model != nullptr && HasHeldOut()) {
      ASSIGN_OR_RETURN(parameters, validator().KeepParameters(*session));
    }
    EndCheckpoints();
    session->Stop();
    running_ = nullptr;
    if (trainer.has_nonfinite_loss() && absl::IsAborted(trained)) {
      validator_ = nullptr;
      return Explain(trained, trainer.num_steps(), trainer.snapshot());
    }
    RETURN_IF_ERROR(trained);
    if (parameters == nullptr) return absl::OkStatus();
    if (trainer.has_nonfinite_loss()) {
      NoteUnused();
      return absl::OkStatus();
    }
    const absl::Status used = UseParameters(parameters);
    if (absl::IsCancelled(used) && interrupts_.count() > 0) {
      return interrupts_.ToStatus("while the trained model was evaluated");
    }
    return used;
  }

  // While the actors of the session are there.
  void EndCheckpoints() {
    if (checkpoints_ == nullptr) return;
    checkpoints_->Report();
    last_checkpoint_ = checkpoints_->last_status();
    page_.checkpoints = checkpoints_->reported();
    if (checkpoints_->is_stuck()) {
      environment_.err << "penstock: the disk does not answer; leaving the checkpoint" << std::endl;
      if (cluster_ != nullptr) cluster_->Kill();
      _exit(1);
    }
    checkpoints_ = nullptr;
  }

  absl::Status LastCheckpoint() const {
    if (last_checkpoint_.ok()) return absl::OkStatus();
    return absl::UnavailableError(
        StrCat("the run is done, but its last checkpoint was not written: ",
               ToStd(last_checkpoint_.message())));
  }

  // What the last step took that may be in the trace; nothing without a step.
  actors::StepWindow LastTraced(const Trainer& trainer) const {
    const std::vector<actors::StepWindow>& windows = trainer.step_windows();
    const auto num_skipped = static_cast<int64_t>(windows.size()) - 1;
    return windows.empty()
               ? trainer.last_step()
               : windows[static_cast<size_t>(num_skipped - num_skipped % options_.trace_every)];
  }

  actors::TraceContext MakeTraceContext() const {
    actors::TraceContext context;
    context.steps = step_windows_;
    if (summary_.path.has_value()) context.path = &*summary_.path;
    if (cluster_ == nullptr) return context;
    for (const actors::NodeDescription& node : cluster_->nodes()) {
      context.processes.push_back({actors::NameOf(node), node.first_device, node.num_devices});
    }
    return context;
  }

  void NoteLostTrace() {
    std::vector<std::string_view> files;
    for (const std::string* file : {&options_.trace, &options_.svg}) {
      if (!file->empty()) files.push_back(*file);
    }
    environment_.err << "note: the job was aborted, so the trace of its processes is lost";
    if (!files.empty()) environment_.err << "; not written: " << StrJoin(files, ", ");
    environment_.err << std::endl;
  }

  // Seconds of a step at the median times of the kernels in the trace; NaN: it cannot be replayed.
  double ReplayStep() const {
    const std::vector<std::vector<double>> times =
        actors::MedianComputeSeconds(plan_, WithoutCoreSharing(plan_, events_, cores_));
    planner::ReplayOptions options;
    options.core_of_device = CoreOfDevice(cores_);
    options.compute_s = [&](uint32_t device, uint32_t actor) { return times[device][actor]; };
    options.process_of_device.assign(plan_.devices.size(), 0);
    if (cluster_ != nullptr) {
      for (const actors::NodeDescription& node : cluster_->nodes()) {
        std::fill_n(options.process_of_device.begin() + node.first_device, node.num_devices,
                    node.rank);
      }
    }
    planner::LinkRates between_processes;
    if (job_.cluster.link_gbit_per_s.has_value()) {
      between_processes.bytes_per_s = *job_.cluster.link_gbit_per_s * 1e9 / 8;
    }
    const std::optional<double> latency =
        job_.cluster.link_latency_us.has_value()
            ? std::optional<double>(*job_.cluster.link_latency_us * 1e-6)
            : MeasuredLatency(plan_, events_, options.process_of_device,
                              between_processes.bytes_per_s);
    between_processes.latency_s = latency.value_or(between_processes.latency_s);
    options.link = [&](uint32_t from, uint32_t to) {
      return from == to ? planner::LinkRates() : between_processes;
    };
    return planner::ReplayStepSeconds(plan_, environment_.registries.policies, options)
        .value_or(kNotMeasured);
  }

  bool HasHeldOut() const { return feeds_.corpus() != nullptr || feeds_.examples() != nullptr; }

  // The default number is for sequences; examples are small.
  HeldOut HeldOutData() const {
    if (feeds_.examples() != nullptr) {
      const bool is_limited = job_.locations.contains("train.validation_sequences");
      return HeldOutExamples(*feeds_.examples(),
                             is_limited ? job_.train.validation_sequences : INT64_MAX);
    }
    return HeldOutText(feeds_.corpus()->validation_tokens(), model_.config.context,
                       job_.train.validation_sequences);
  }

  // Models of token files do not make bytes.
  bool CanSample() const {
    return job_.sample.bytes > 0 && feeds_.corpus() != nullptr && feeds_.corpus()->file == nullptr;
  }

  bool CanValidate() const {
    return model_.model != nullptr && HasHeldOut() && job_.train.validation_sequences > 0;
  }

  // Laid out as it was trained, on the job's processes.
  ForwardLayout TrainedLayout() {
    ForwardLayout layout;
    const auto strategy = planner::ParseStrategy(summary_.strategy);
    if (strategy.ok()) layout.strategy = strategy->value_or(planner::Strategy());
    // A wrong one moves parameters between devices, no more.
    const absl::StatusOr<planner::PolicyRegistry> policies =
        PoliciesOf(environment_.registries, job_);
    const planner::Policy* policy = policies.ok() ? policies->Find(plan_.policy) : nullptr;
    if (policy != nullptr) {
      layout.placement = policy->needs().placement.value_or(planner::Placement::kLoop);
    }
    layout.sequences_per_step = feeds_.batch() / static_cast<int64_t>(plan_.num_microbatches);
    layout.num_threads = threads_;
    layout.host_devices =
        HostDevicesOf(job_, static_cast<int64_t>(plan_.devices.size())).value_or(HostDevices());
    if (cluster_ != nullptr) layout.start_engine = cluster_->engine_factory();
    return layout;
  }

  Validator& validator() {
    if (validator_ == nullptr) {
      ForwardLayout layout = TrainedLayout();
      layout.on_session = [this](actors::Session* evaluating) {
        AbortByStopping(running_, evaluating);
      };
      validator_ =
          std::make_unique<Validator>(environment_, model_, HeldOutData(), std::move(layout));
    }
    return *validator_;
  }

  // Validation loss and sample of the trained parameters.
  absl::Status UseParameters(const Parameters& parameters) {
    if (job_.train.validation_sequences > 0) {
      ASSIGN_OR_RETURN(summary_.validation_loss, validator().Loss(parameters));
      summary_.validation_accuracy = validator().accuracy();
    }
    validator_ = nullptr;
    if (!CanSample()) return absl::OkStatus();
    ForwardLayout layout = TrainedLayout();
    layout.on_session = [this](actors::Session* running) { AbortByStopping(running); };
    const std::vector<uint8_t>& text = feeds_.corpus()->validation;
    const std::string prompt(text.begin(),
                             text.begin() + static_cast<std::ptrdiff_t>(model_.config.context));
    SampleOptions options;
    options.num_tokens = job_.sample.bytes;
    options.temperature = job_.sample.temperature;
    options.seed = static_cast<uint64_t>(job_.train.seed);
    ASSIGN_OR_RETURN(summary_.sample, GenerateText(environment_.registries, model_, parameters,
                                                   prompt, options, layout));
    return absl::OkStatus();
  }

  // A model whose loss is not finite would give no number and no text.
  void NoteUnused() {
    std::vector<std::string_view> skipped;
    if (job_.train.validation_sequences > 0) skipped.push_back("validation");
    if (CanSample()) skipped.push_back("sampling");
    if (skipped.empty()) return;
    environment_.err << "note: no " << StrJoin(skipped, " and no ") << ": the loss is not finite"
                     << std::endl;
  }

  // What made the loss of the last of `num_steps` steps not finite.
  absl::Status Explain(const absl::Status& status, int64_t num_steps, const Snapshot& snapshot) {
    const std::string loss(ToStd(status.message()));
    double replayed_s = 0;
    for (int64_t step = snapshot.step; step < num_steps; ++step) {
      replayed_s += summary_.step_times_s[static_cast<size_t>(step - start_.info.step)];
    }
    const std::string going_on = "; train.on_nonfinite = \"continue\" continues the training";
    const int64_t first = snapshot.step + 1;
    environment_.err << loss << "; running "
                     << (first == num_steps ? StrCat("step ", first)
                                            : StrCat("steps ", first, " to ", num_steps))
                     << " again to find the first result that is not finite";
    if (replayed_s > kLongReplaySeconds) {
      environment_.err << fmt::format(" (about {:.0f} minutes; Ctrl-C ends the search)",
                                      replayed_s / 60);
    }
    environment_.err << std::endl;
    const absl::Status found =
        FindNonFinite(plan_, session_options_, feeds_, snapshot, num_steps - 1,
                      [this](actors::Session* running) { AbortByStopping(running); });
    if (absl::IsCancelled(found) && interrupts_.count() > 0) {
      return interrupts_.ToStatus("while the origin of the loss was searched");
    }
    std::string origin(ToStd(found.message()));
    if (found.ok()) {
      origin = StrCat("no kernel computed it from finite operands",
                      plan_.collectives.empty() ? "" : "; a sum over devices may have");
    }
    // The first step has seen no update, and an input none at all.
    const bool may_be_rate = num_steps > 1 && !absl::IsInvalidArgument(found);
    return absl::AbortedError(StrCat(loss, ": ", origin,
                                     may_be_rate ? "; a smaller train.learning_rate may help" : "",
                                     going_on));
  }

  // Of the steps that ran, however the run ended.
  absl::Status WriteResults(const absl::Status& status) {
    if (summary_.steps == 0 && !is_done_before_) return absl::OkStatus();
    RETURN_IF_ERROR(WriteTraces(options_, plan_, last_step_, events_, MakeTraceContext()));
    if (IsPage(options_.report)) {
      RETURN_IF_ERROR(WriteTextFile(options_.report, MakePage(status)));
    } else if (!options_.report.empty() && summary_.steps > 0) {
      RETURN_IF_ERROR(WriteTextFile(options_.report, RunReport(plan_, summary_, events_)));
    }
    environment_.out << (options_.is_json ? SummaryJson(summary_) + "\n" : SummaryText(summary_))
                     << std::flush;
    return absl::OkStatus();
  }

  std::string MakePage(const absl::Status& status) {
    page_.warnings = lines_.lines();
    page_.omitted_warnings = lines_.num_left_out();
    if (!status.ok()) {
      page_.warnings.insert(page_.warnings.begin(),
                            StrCat("The run ended early: ", ToStd(status.message())));
    }
    page_.checkpoint_path = job_.checkpoint.path;
    DescribeRun({.job = job_,
                 .plan = plan_,
                 .file = options_.file,
                 .plan_file = options_.plan,
                 .arguments = environment_.arguments,
                 .nodes = nodes_,
                 .threads = threads_,
                 .batch = feeds_.batch(),
                 .tokens_per_step = summary_.tokens_per_step,
                 .first_step = start_.info.step,
                 .steps = summary_.steps,
                 .resumed_from = start_.path,
                 .begin = begin_,
                 .end = absl::Now()},
                &page_);
    CollectReport({plan_, summary_, events_, environment_.registries.ops, &estimate_}, &page_);
    return RenderReport(page_);
  }

  const Environment& process_environment_;
  const Environment& environment_;
  const RecordedLines& lines_;
  const Options& options_;
  const Job& job_;
  const planner::Plan plan_;
  const JobModel model_;
  const planner::StepEstimate estimate_;
  Report page_;
  const absl::Time begin_ = absl::Now();
  const StepFeeds feeds_;
  const ResumePoint start_;
  std::unique_ptr<Checkpoints> checkpoints_;  // null: none are written, or no more
  int64_t threads_ = 1;                       // of each device
  actors::SessionOptions session_options_;
  Interrupts interrupts_;
  JobMonitor monitor_;  // its threads have the signals blocked
  std::unique_ptr<actors::Cluster> cluster_;
  std::vector<actors::NodeDescription> nodes_;
  absl::Status last_checkpoint_;
  bool is_done_before_ = false;  // nothing was left to be trained
  RunSummary summary_;
  actors::StepWindow last_step_;
  std::vector<actors::TraceEvent> events_;
  std::vector<actors::StepWindow> step_windows_;
  actors::SharedCores cores_;
  actors::Session* running_ = nullptr;    // the session that trains, if others run beside it
  std::unique_ptr<Validator> validator_;  // null: not used yet, or no more
};

// What would run, and whether the devices of each host fit into a machine like this one.
absl::Status ReportDryRun(const Environment& environment, const Options& options, const Job& job,
                          const planner::Plan& plan) {
  ASSIGN_OR_RETURN(const HostDevices hosts,
                   HostDevicesOf(job, static_cast<int64_t>(plan.devices.size())));
  uint64_t most_used = 0;  // by the devices of a host
  uint32_t first = 0;
  for (const uint32_t count : hosts) {
    uint64_t used = CopyBytes(job, plan, first, count);
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

// A job that says nothing of hosts has those that it is launched on.
absl::Status PlaceOnHosts(const Environment& environment, const Options& options, Job* job) {
  if (environment.places.empty()) return absl::OkStatus();
  if (options.listen.has_value()) {
    return absl::InvalidArgumentError("--listen of `run` does not go with `launch`");
  }
  if (environment.places.size() != static_cast<size_t>(job->cluster.processes)) {
    return absl::InvalidArgumentError(StrCat("--procs ", job->cluster.processes, ": there are ",
                                             environment.places.size(),
                                             " slots on the hosts, a process each"));
  }
  std::map<std::string_view, int64_t> slots;  // of each host
  for (const actors::NodePlace& place : environment.places) ++slots[place.host];
  const bool is_even = std::all_of(slots.begin(), slots.end(), [&](const auto& host) {
    return host.second == slots.begin()->second;
  });
  if (is_even && job->cluster.hosts == 1 && job->cluster.host.empty()) {
    job->cluster.hosts = static_cast<int64_t>(slots.size());
  }
  return absl::OkStatus();
}

absl::Status Run(const Environment& given, const Options& options) {
  RecordedLines lines(given.err);
  const Environment environment = WithErr(given, lines.stream());
  ASSIGN_OR_RETURN(Job job, ReadOptions(options));
  RETURN_IF_ERROR(PlaceOnHosts(environment, options, &job));
  RETURN_IF_ERROR(CheckOutputs(options));
  ASSIGN_OR_RETURN(Program program, GetProgram(environment.registries, options, job));
  RETURN_IF_ERROR(CheckTrains(program.plan));
  RETURN_IF_ERROR(CheckProcesses(options, job, program.plan));
  ASSIGN_OR_RETURN(StepFeeds feeds, StepFeeds::Create(program.plan, job));
  // Nobody else writes into the folder from here on.
  std::unique_ptr<Checkpoints> checkpoints;
  if (!job.checkpoint.path.empty() && !options.is_dry) {
    ASSIGN_OR_RETURN(checkpoints,
                     Checkpoints::Create(environment, job, program.plan, options.is_json));
  }
  ASSIGN_OR_RETURN(ResumePoint start, FindResumePoint(job, options.resumes, program.plan));
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
  if (checkpoints != nullptr) checkpoints->set_data(data);
  if (!start.info.data.empty() && start.info.data != data) {
    StrAppend(&start.note,
              "note: the training data is not that of the checkpoint; the run goes on at the same "
              "position of other data\n");
  }
  const auto num_devices = static_cast<int64_t>(program.plan.devices.size());
  environment.err << ProcessNote(job, std::min(job.cluster.processes, num_devices)) << program.text
                  << SummarizePlan(program.plan) << CopyNote(job, program.plan) << start.note
                  << std::flush;
  if (options.is_dry) return ReportDryRun(environment, options, job, program.plan);
  return JobRun(given, environment, lines, options, job, std::move(program), std::move(feeds),
                std::move(start), std::move(checkpoints))
      .Run();
}

}  // namespace

void AddRunCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("run", "Train the model of a job, or run a compiled plan.");
  const std::string footer = StrCat(
      "A plan runs as it was compiled, without validation and sampling. --set can override ",
      StrJoin(kKeysOfPlans, ", "), ", ", StrJoin(kMoreKeysOfPlans, ", "),
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
                   "Listen at HOST:PORT or unix:PATH, print the command that starts a node, and "
                   "wait up to 10 minutes for all nodes, instead of starting them on this host")
      ->option_text("ADDRESS");
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
                   "Record the first step and every N-th step after it (1)")
      ->check(CLI::PositiveNumber)
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
