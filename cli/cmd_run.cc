// penstock run: trains the model of a job, or runs a plan, and tells how it went.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/cleanup/cleanup.h"
#include "cli/data.h"
#include "cli/environment.h"
#include "cli/feeds.h"
#include "cli/files.h"
#include "cli/inference.h"
#include "cli/interrupts.h"
#include "cli/job.h"
#include "cli/job_graph.h"
#include "cli/json.h"
#include "cli/npy.h"
#include "cli/plan_summary.h"
#include "cli/processes.h"
#include "cli/progress.h"
#include "cli/run_report.h"

#include "actors/cluster/cluster.h"
#include "actors/run_steps.h"
#include "actors/session.h"
#include "actors/trace.h"
#include "base/counted.h"
#include "base/device.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/compile.h"
#include "planner/plan_io.h"

namespace penstock::cli {
namespace {

constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

// Steps handed in and not yet reported: the devices need not wait for the text or the terminal.
constexpr int64_t kStepsAhead = 3;

struct Options {
  std::string file;
  std::vector<std::string> overrides;
  std::optional<int64_t> devices;
  std::optional<int64_t> processes;
  std::string plan;  // that the job runs by
  std::string trace;
  std::string svg;
  std::string report;
  std::string dump;
  std::string listen;
  bool is_json = false;
};

// What is to be run: the plan as it was read back, and of a job its model.
struct Program {
  planner::Plan plan;
  JobModel model;    // without a model where a plan file or a graph file is run
  std::string text;  // the summary before the run
};

// What a plan leaves open.
constexpr std::string_view kKeysOfPlans[] = {"train.steps", "train.seed", "data.text",
                                             "cluster.threads"};

absl::Status CheckKeyOfPlan(std::string_view assignment) {
  const std::string_view key = assignment.substr(0, assignment.find('='));
  if (std::find(std::begin(kKeysOfPlans), std::end(kKeysOfPlans), key) != std::end(kKeysOfPlans)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(StrCat("--set ", assignment,
                                           ": a plan runs as it was compiled; only ",
                                           StrJoin(kKeysOfPlans, ", "), " can be set"));
}

absl::StatusOr<Job> ReadOptions(const Options& options) {
  Job job;
  if (HasSuffix(options.file, ".plan")) {
    if (!options.plan.empty()) {
      return absl::InvalidArgumentError("--plan goes with a job, not with another plan");
    }
    for (const std::string& assignment : options.overrides) {
      RETURN_IF_ERROR(ApplyOverride(assignment, job));
      RETURN_IF_ERROR(CheckKeyOfPlan(assignment));
    }
  } else {
    ASSIGN_OR_RETURN(job, ReadJob(options.file, options.overrides));
  }
  if (options.devices.has_value()) {
    job.cluster.devices = *options.devices;
    job.locations["cluster.devices"] = StrCat("--devices ", *options.devices);
  }
  if (options.processes.has_value()) {
    job.cluster.processes = *options.processes;
    job.locations["cluster.processes"] = StrCat("--procs ", *options.processes);
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
  return program;
}

absl::StatusOr<Program> CompileJob(const Registries& registries, const Job& job) {
  Program program;
  ASSIGN_OR_RETURN(JobGraph graph, BuildJobGraph(registries, job));
  program.model = graph.model;
  program.text = SummarizeJob(graph);
  ASSIGN_OR_RETURN(const planner::Plan plan,
                   CompileGraph(registries, std::move(graph.graph), SettingsOf(job, graph)));
  // What runs is what a plan file would hold.
  ASSIGN_OR_RETURN(const std::string bytes, planner::PlanToBytes(plan));
  ASSIGN_OR_RETURN(program.plan, planner::PlanFromBytes(bytes));
  return program;
}

// The nodes that the job asks for; null where this process runs all.
absl::StatusOr<std::unique_ptr<actors::Cluster>> StartCluster(const Environment& environment,
                                                              const Options& options,
                                                              const Job& job, int64_t num_devices) {
  int64_t count = job.cluster.processes;
  if (count > num_devices && options.processes.has_value()) {
    return AtKey(job, {"cluster.processes"},
                 absl::InvalidArgumentError(StrCat(Counted(count, "process", "es"), " for ",
                                                   Counted(num_devices, "device"),
                                                   ": each process needs one at least")));
  }
  if (count > num_devices) {
    // The job was written for more devices than it is run on.
    environment.err << "note: of cluster.processes = " << count << ", "
                    << Counted(num_devices, "process", "es") << " with a device each are started"
                    << std::endl;
    count = num_devices;
  }
  if (count == 1 && options.listen.empty()) return nullptr;
  ASSIGN_OR_RETURN(std::unique_ptr<actors::Cluster> cluster,
                   StartProcesses(environment, count, options.listen));
  const bool is_compiled = options.plan.empty() && !HasSuffix(options.file, ".plan");
  environment.err << PlacementNotes(cluster->nodes(), is_compiled ? job.cluster.hosts : 0)
                  << std::flush;
  return cluster;
}

// What the job says of the layout has to be what the plan was compiled with.
absl::Status CheckIsPlanOf(const Job& job, const JobGraph& graph, const planner::Plan& plan,
                           const std::string& file) {
  if (plan.graph_fingerprint != planner::Fingerprint(graph.graph)) {
    return absl::InvalidArgumentError(
        StrCat(file, " is a plan for another graph: it was compiled from ", plan.name,
               " with other operators, sizes or constants than this job's"));
  }
  const auto differs = [&](std::string_view key, const auto& ours, const auto& theirs) {
    return AtKey(job, {std::string(key)},
                 absl::InvalidArgumentError(
                     StrCat(file, " was compiled with ", key, " = ", theirs, ", not ", ours)));
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
  ASSIGN_OR_RETURN(const JobGraph graph, BuildJobGraph(registries, job));
  ASSIGN_OR_RETURN(Program program, LoadPlan(options.plan, job));
  RETURN_IF_ERROR(CheckIsPlanOf(job, graph, program.plan, options.plan));
  program.model = graph.model;
  program.text = SummarizeJob(graph);
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
      program.text = StrCat("note: a plan does not hold ", StrJoin(left_open, ", "),
                            ": their defaults are taken (--set, or run the job with --plan ",
                            options.file, ")\n");
    }
    return program;
  }
  if (!options.plan.empty()) return LoadJobPlan(registries, options, job);
  return CompileJob(registries, job);
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

// Writes step_S.NAME.npy of every feed of step S, counted from 1 as everywhere in the output.
absl::Status DumpFeeds(const std::string& folder, int64_t step, const actors::Feeds& feeds) {
  if (folder.empty()) return absl::OkStatus();
  for (const auto& [name, tensor] : feeds) {
    RETURN_IF_ERROR(WriteNpy(StrCat(folder, "/step_", step + 1, ".", name, ".npy"), tensor));
  }
  return absl::OkStatus();
}

// Writes losses.npy, a double a step.
absl::Status DumpLosses(const std::string& folder, const std::vector<double>& losses) {
  if (folder.empty()) return absl::OkStatus();
  Tensor tensor({DType::kF64, {static_cast<int64_t>(losses.size())}});
  std::copy(losses.begin(), losses.end(), tensor.As<double>());
  return WriteNpy(StrCat(folder, "/losses.npy"), tensor);
}

// Runs the steps of a job on a session: its source and its sink.
class Trainer : private actors::Source, private actors::Sink {
 public:
  Trainer(const Environment& environment, const Options& options, const Job& job,
          actors::Session& session, const StepFeeds& feeds, const Interrupts& interrupts)
      : environment_(environment),
        options_(options),
        job_(job),
        session_(session),
        feeds_(feeds),
        interrupts_(interrupts),
        progress_(environment.err, environment.err_is_terminal) {}

  // Fills the summary's losses and times.
  absl::Status Run(RunSummary* summary) {
    summary->steps = job_.train.steps;
    busy_ns_.assign(session_.plan().devices.size(), 0);
    wall_ns_ = busy_ns_;
    begin_ns_ = last_ns_ = clock_.NowNs();
    summary_ = summary;
    const absl::Status status =
        actors::RunSteps(session_, job_.train.steps, kStepsAhead, *this, *this);
    progress_.Clear();
    if (absl::IsCancelled(status) && interrupts_.count() > 0) {
      return interrupts_.ToStatus(StrCat("after step ", losses_.size()));
    }
    RETURN_IF_ERROR(status);
    RETURN_IF_ERROR(DumpLosses(options_.dump, losses_));
    for (size_t i = 0; i < wall_ns_.size(); ++i) {
      summary->busy_share.push_back(wall_ns_[i] > 0 ? static_cast<double>(busy_ns_[i]) /
                                                          static_cast<double>(wall_ns_[i])
                                                    : 0);
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<actors::Feeds> Get(int64_t step) override {
    ASSIGN_OR_RETURN(actors::Feeds feeds, feeds_.Get(step));
    RETURN_IF_ERROR(DumpFeeds(options_.dump, step, feeds));
    return feeds;
  }

  absl::Status Take(int64_t step, const actors::StepResult& result) override {
    Report(step, result);
    return interrupts_.count() > 0 ? absl::CancelledError("interrupted") : absl::OkStatus();
  }

  void Report(int64_t step, const actors::StepResult& result) {
    // From the end of the step before: when this is told depends on who else wants the processor.
    const double step_s = 1e-9 * static_cast<double>(result.end_ns - last_ns_);
    last_ns_ = result.end_ns;
    for (const actors::DeviceStepReport& report : result.devices) {
      wall_ns_[report.device] += report.wall_ns;
      busy_ns_[report.device] += report.wall_ns - report.wait_ns;
    }
    const double loss = ElementAsDouble(result.fetches[0].second, 0);
    if (!std::isfinite(loss) && std::isfinite(summary_->final_loss)) {
      progress_.Clear();
      environment_.err << "warning: the loss is not finite at step " << step + 1
                       << "; a smaller train.learning_rate may help" << std::endl;
    }
    const double tokens_per_s =
        step_s > 0 ? static_cast<double>(summary_->tokens_per_step) / step_s : 0;
    summary_->final_loss = loss;
    losses_.push_back(loss);
    summary_->step_times_s.push_back(step_s);
    if (options_.is_json) {
      environment_.out << "{\"step\": " << step + 1 << ", \"loss\": " << JsonNumber(loss)
                       << ", \"step_time_s\": " << JsonNumber(step_s)
                       << ", \"tokens_per_s\": " << JsonNumber(tokens_per_s) << "}" << std::endl;
    }
    // Into a file the JSON lines say it all.
    if (options_.is_json && !environment_.err_is_terminal) return;
    progress_.Update({.step = step + 1,
                      .steps = job_.train.steps,
                      .loss = loss,
                      .tokens_per_s = tokens_per_s,
                      .elapsed_s = 1e-9 * static_cast<double>(result.end_ns - begin_ns_)});
  }

  const Environment& environment_;
  const Options& options_;
  const Job& job_;
  actors::Session& session_;
  const StepFeeds& feeds_;
  const Interrupts& interrupts_;
  Progress progress_;
  SteadyClock clock_;
  int64_t begin_ns_ = 0;
  int64_t last_ns_ = 0;
  RunSummary* summary_ = nullptr;
  std::vector<double> losses_;
  std::vector<int64_t> busy_ns_;  // of each device
  std::vector<int64_t> wall_ns_;
};

// The last step that every device has recorded in full.
int64_t LastTracedStep(size_t num_devices, int64_t steps,
                       absl::Span<const actors::TraceEvent> events) {
  std::vector<int64_t> last(num_devices, -1);
  for (const actors::TraceEvent& event : events) {
    last[event.device] = std::max(last[event.device], event.step);
  }
  const int64_t common = *std::min_element(last.begin(), last.end());
  // A trace that ran full ends in the middle of a step.
  return std::max<int64_t>(0, common == steps - 1 ? common : common - 1);
}

absl::Status WriteTraces(const Options& options, const planner::Plan& plan, int64_t steps,
                         absl::Span<const actors::TraceEvent> events) {
  if (!options.trace.empty()) {
    std::ostringstream text;
    actors::WriteTraceJson(plan, events, text);
    RETURN_IF_ERROR(WriteTextFile(options.trace, text.str()));
  }
  if (!options.svg.empty()) {
    std::ostringstream text;
    actors::WriteTimelineSvg(plan, events, LastTracedStep(plan.devices.size(), steps, events),
                             text);
    RETURN_IF_ERROR(WriteTextFile(options.svg, text.str()));
  }
  return absl::OkStatus();
}

// Validation loss and sample of the trained parameters.
absl::Status UseParameters(const Environment& environment, const Job& job, const JobModel& model,
                           const Parameters& parameters, const Corpus& corpus,
                           const ForwardLayout& layout, RunSummary* summary) {
  if (job.train.validation_sequences > 0) {
    ASSIGN_OR_RETURN(summary->validation_loss,
                     ValidationLoss(environment.registries, model, parameters, corpus.validation,
                                    job.train.validation_sequences, layout));
  }
  if (job.sample.bytes > 0) {
    const std::string prompt(
        corpus.validation.begin(),
        corpus.validation.begin() + static_cast<std::ptrdiff_t>(model.config.context));
    SampleOptions options;
    options.num_bytes = job.sample.bytes;
    options.temperature = job.sample.temperature;
    options.seed = static_cast<uint64_t>(job.train.seed);
    ASSIGN_OR_RETURN(summary->sample, GenerateText(environment.registries, model, parameters,
                                                   prompt, options, layout));
  }
  return absl::OkStatus();
}

// A run does not end in the loss of what it was for.
absl::Status CheckOutputs(const Options& options) {
  for (const auto& [name, path] :
       {std::pair("--trace", &options.trace), std::pair("--svg", &options.svg),
        std::pair("--report", &options.report)}) {
    const absl::Status status = CheckWritable(*path);
    if (!status.ok()) {
      return absl::Status(status.code(), StrCat(name, " ", ToStd(status.message())));
    }
  }
  if (options.dump.empty()) return absl::OkStatus();
  return CreateFolder(options.dump);
}

absl::Status Run(const Environment& environment, const Options& options) {
  ASSIGN_OR_RETURN(const Job job, ReadOptions(options));
  RETURN_IF_ERROR(CheckOutputs(options));
  ASSIGN_OR_RETURN(Program program, GetProgram(environment.registries, options, job));
  RETURN_IF_ERROR(CheckTrains(program.plan));
  ASSIGN_OR_RETURN(const StepFeeds::Sizes sizes, StepFeeds::TextSizes(program.plan));
  Corpus corpus;
  if (sizes.batch > 0) {
    absl::StatusOr<Corpus> loaded = LoadCorpus(job.data.text, sizes.context);
    if (!loaded.ok()) return AtKey(job, {"data.text", "model.context"}, loaded.status());
    corpus = *std::move(loaded);
  }
  const std::string before = StrCat(program.text, SummarizePlan(program.plan));
  environment.err << before << std::flush;

  RunSummary summary;
  summary.strategy = program.plan.strategy;
  summary.tokens_per_step = sizes.batch * sizes.context;
  summary.validation_loss = kNotMeasured;
  summary.unigram_entropy = sizes.batch > 0 ? corpus.unigram_entropy : kNotMeasured;

  actors::SessionOptions session_options;
  session_options.threads_per_device = static_cast<int>(job.cluster.threads);
  session_options.seed = static_cast<uint64_t>(job.train.seed);
  session_options.kernels = &environment.registries.kernels;
  session_options.policies = &environment.registries.policies;
  session_options.trace = !options.trace.empty() || !options.svg.empty() || !options.report.empty();
  Interrupts interrupts(environment.err);
  const auto num_devices = static_cast<int64_t>(program.plan.devices.size());
  ASSIGN_OR_RETURN(const std::unique_ptr<actors::Cluster> cluster,
                   StartCluster(environment, options, job, num_devices));
  if (cluster != nullptr) session_options.start_engine = cluster->engine_factory();
  ASSIGN_OR_RETURN(std::unique_ptr<actors::Session> session,
                   actors::Session::Start(std::move(program.plan), session_options));
  const auto end_abort = absl::MakeCleanup([&interrupts] { interrupts.SetAbort(nullptr); });
  const auto abort_by_stopping = [&interrupts, &cluster](actors::Session* running) {
    interrupts.SetAbort([&cluster, running] {
      if (cluster != nullptr) cluster->Kill();
      if (running != nullptr) running->Stop();
    });
  };
  abort_by_stopping(session.get());
  RETURN_IF_ERROR(DumpStates(options.dump, *session));
  const StepFeeds feeds(session->plan(), &corpus, sizes, session_options.seed);
  RETURN_IF_ERROR(Trainer(environment, options, job, *session, feeds, interrupts).Run(&summary));

  const std::vector<actors::TraceEvent> events = session->TakeTrace();
  Parameters parameters;
  if (program.model.model != nullptr && sizes.batch > 0) {
    ASSIGN_OR_RETURN(parameters, FetchParameters(*session));
  }
  session->Stop();
  RETURN_IF_ERROR(WriteTraces(options, session->plan(), job.train.steps, events));
  absl::Status used;
  if (!parameters.empty() && std::isfinite(summary.final_loss)) {
    ForwardLayout layout;
    ASSIGN_OR_RETURN(const auto strategy, planner::ParseStrategy(summary.strategy));
    layout.strategy = strategy.value_or(planner::Strategy());
    layout.sequences_per_step =
        sizes.batch / static_cast<int64_t>(session->plan().num_microbatches);
    layout.num_threads = job.cluster.threads;
    layout.num_hosts = job.cluster.hosts;
    if (cluster != nullptr) layout.start_engine = cluster->engine_factory();
    layout.on_session = abort_by_stopping;
    used = UseParameters(environment, job, program.model, parameters, corpus, layout, &summary);
    if (absl::IsCancelled(used) && interrupts.count() > 0) {
      used = interrupts.ToStatus("while the trained model was tried");
    }
  }
  if (!options.report.empty()) {
    RETURN_IF_ERROR(WriteTextFile(options.report, RunReport(session->plan(), summary, events)));
  }
  environment.out << (options.is_json ? SummaryJson(summary) + "\n" : SummaryText(summary))
                  << std::flush;
  return used;
}

}  // namespace

void AddRunCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("run", "Train the model of a job, or run a plan");
  command->footer(StrCat("A job is a TOML file; its keys, with their defaults:\n",
                         DescribeJobKeys(),
                         "A plan (.plan) is run as it was compiled, without sample and validation; "
                         "--set may give ",
                         StrJoin(kKeysOfPlans, ", "), ".\n"));
  command->add_option("FILE", options->file, "A job (.toml) or a plan (.plan)")->required();
  command
      ->add_option("--set", options->overrides,
                   "KEY=VALUE in TOML syntax, over the job's, as train.steps=5; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--devices", options->devices, "Over the job's cluster.devices")
      ->check(CLI::PositiveNumber);
  command->add_option("--procs", options->processes, "Over the job's cluster.processes")
      ->check(CLI::PositiveNumber);
  command->add_option("--listen", options->listen,
                      "Wait at HOST:PORT or unix:PATH for nodes of other hosts to join, instead of "
                      "starting them here");
  command->add_option("--plan", options->plan,
                      "Run the job by this plan, compiled from the same graph before");
  command->add_option("--trace", options->trace,
                      "Write what every device did, as a Chrome trace (JSON)");
  command->add_option("--svg", options->svg, "Write the phases of the last step as a drawing");
  command->add_option("--report", options->report,
                      "Write predicted beside measured times and memory (Markdown)");
  command->add_option("--dump", options->dump,
                      "Write the states before the first step, the feeds of every step and the "
                      "losses into a folder, as .npy: to compare with the same model elsewhere");
  command->add_flag("--json", options->is_json,
                    "Print a JSON object a step, then {\"summary\": {...}}");
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return Run(environment, *options); };
  });
}

}  // namespace penstock::cli
