#include "cli/job_run.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "cli/analyse_trace.h"
#include "cli/data.h"
#include "cli/device_kinds.h"
#include "cli/failure_report.h"
#include "cli/files.h"
#include "cli/find_nonfinite.h"
#include "cli/host_layout.h"
#include "cli/host_probe.h"
#include "cli/inference.h"
#include "cli/interruptible_start.h"
#include "cli/interrupts.h"
#include "cli/job_cluster.h"
#include "cli/job_machine.h"
#include "cli/job_monitor.h"
#include "cli/job_policy.h"
#include "cli/json.h"
#include "cli/memory_samples.h"
#include "cli/metrics.h"
#include "cli/node_output.h"
#include "cli/npy.h"
#include "cli/option_checks.h"
#include "cli/other_load.h"
#include "cli/plan_summary.h"
#include "cli/processes.h"
#include "cli/report_collect.h"
#include "cli/report_page.h"
#include "cli/report_run.h"
#include "cli/run_report.h"
#include "cli/sample_text.h"
#include "cli/slowdown_detector.h"
#include "cli/trace_file.h"
#include "cli/trainer.h"
#include "fmt/format.h"

#include "actors/cluster/cluster.h"
#include "actors/engine/error_origin.h"
#include "actors/session/session.h"
#include "actors/session/stream_launches.h"
#include "actors/trace/critical_path.h"
#include "actors/trace/trace.h"
#include "base/counted.h"
#include "base/format.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/cluster/probed_hosts.h"
#include "planner/simulator/peak_step.h"

namespace penstock::cli {
namespace {

constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

// Between snapshots of the states, from which steps are run again to find where a NaN comes from.
constexpr double kSnapshotSeconds = 300;
// Between two looks at the memory of the processes, for a trace.
constexpr absl::Duration kMemoryInterval = absl::Seconds(1);
// Of the machine's memory, the part that a snapshot may take.
constexpr uint64_t kSnapshotMemoryShare = 8;
// The user is told how long it takes to run longer steps again.
constexpr double kLongReplaySeconds = 120;

// Writes NAME.npy of every state as it is before the first step.
absl::Status DumpStates(const std::string& folder, const actors::Session& session) {
  if (folder.empty()) return absl::OkStatus();
  for (const planner::StatePlan& state : session.plan().states) {
    ASSIGN_OR_RETURN(const Tensor tensor, session.Fetch(state.name));
    RETURN_IF_ERROR(WriteNpy(StrCat(folder, "/", state.name, ".npy"), tensor));
  }
  return absl::OkStatus();
}

// Of all states, each once.
uint64_t StateBytes(const planner::Plan& plan) {
  uint64_t num_bytes = 0;
  for (const planner::StatePlan& state : plan.states) num_bytes += state.type.num_bytes();
  return num_bytes;
}

// A run of a program: its session, what it measured, and what follows the training steps.
class JobRun {
 public:
  // `recorded` is the environment with a stream for messages that keeps the notes among them.
  JobRun(const Environment& environment, const Environment& recorded, RecordedLines& lines,
         Interrupts& interrupts, const RunOptions& options, const Job& job, RunProgram program,
         StepFeeds feeds, ResumePoint start, std::unique_ptr<Checkpoints> checkpoints)
      : process_environment_(environment),
        environment_(recorded),
        lines_(lines),
        options_(options),
        job_(job),
        policies_(std::move(program.policies)),
        plan_(std::move(program.plan)),
        model_(std::move(program.model)),
        estimate_(std::move(program.estimate)),
        page_(std::move(program.page)),
        feeds_(std::move(feeds)),
        start_(std::move(start)),
        checkpoints_(std::move(checkpoints)),
        interrupts_(interrupts),
        monitor_(plan_.name, plan_.strategy, job.train.steps, start_.info.step) {
    threads_ = job.cluster.threads.value_or(plan_.threads_per_device);
    summary_.strategy = plan_.strategy;
    summary_.devices = DescribeDevices(job, static_cast<int64_t>(plan_.devices.size()), threads_);
    summary_.tokens_per_step = feeds_.batch() * feeds_.context();
    summary_.images_per_step = feeds_.examples() != nullptr ? feeds_.batch() : 0;
    summary_.validation_loss = kNotMeasured;
    summary_.unigram_entropy =
        feeds_.corpus() != nullptr ? feeds_.corpus()->unigram_entropy : kNotMeasured;
    session_options_.threads_per_device = static_cast<int>(threads_);
    session_options_.seed = static_cast<uint64_t>(job.train.seed);
    session_options_.policies = &policies_;
    session_options_.first_step = start_.info.step;
    session_options_.captures_graphs = job.cluster.captures_graphs;
    session_options_.reserves_state_copy = !job.checkpoint.path.empty();
    session_options_.states = start_.states;
    is_trace_wanted_ = !options.trace.empty() || !options.svg.empty() || !options.report.empty();
    session_options_.trace =
        is_trace_wanted_ || (IsSampled(plan_) && options.trace_every.value_or(1) > 0);
    session_options_.trace_every = is_trace_wanted_
                                       ? options.trace_every.value_or(1)
                                       : std::max(job.train.steps / kSampledSteps, int64_t{1});
  }
  ~JobRun() {
    interrupts_.SetAbort(nullptr);
    starting_.reset();
  }

  absl::Status Run() {
    const auto num_devices = static_cast<int64_t>(plan_.devices.size());
    ASSIGN_OR_RETURN(device_list_, DeviceListOf(job_, num_devices));
    session_options_.kernels = &environment_.registries.kernels;
    ASSIGN_OR_RETURN(session_options_.kernels_by_kind,
                     KernelsOf(environment_.registries, device_list_));
    monitor_.Open(environment_, /*is_announced=*/true);
    RETURN_IF_ERROR(
        AtKey(job_, {"metrics.listen"}, monitor_.ServeMetrics(environment_, job_.metrics.listen)));
    if (checkpoints_ != nullptr) {
      checkpoints_->SetOnResult(
          [this](const actors::CheckpointResult& result) { monitor_.OnCheckpoint(result); });
    }
    if (options_.listen.has_value()) {
      ASSIGN_OR_RETURN(key_file_, JobKeyFile::Create());
      interrupts_.RemoveAtExit(key_file_->path());
    }
    interrupts_.SetActivity("before the first step");
    starting_.emplace(interrupts_, "while the processes of the job were started",
                      process_environment_.launch.places);
    absl::StatusOr<std::unique_ptr<actors::Cluster>> cluster =
        StartJobCluster(process_environment_, environment_.err, options_, job_, plan_,
                        {.devices = device_list_,
                         .status_answers = monitor_.answers(),
                         .key_file = key_file_.get(),
                         .output = output_,
                         .on_collectives =
                             [this](const auto& how, const std::string& why_not_messages) {
                               NoteCollectives(how, why_not_messages);
                             },
                         .interrupts = &interrupts_,
                         .start = starting_->cluster_start()});
    if (!cluster.ok()) {
      absl::Status failure = starting_->WithInterrupt(cluster.status());
      starting_.reset();
      EndNodes(failure);
      ReportFailure(&failure);
      return failure;
    }
    cluster_ = *std::move(cluster);
    if (cluster_ != nullptr) {
      starting_->SetCluster(*cluster_);
      session_options_.start_engine = cluster_->engine_factory();
      // Nodes tell what their GPUs can do as the session starts: see NoteCollectives.
    } else {
      starting_.reset();
      const auto devices = FindDevices(device_list_, plan_.devices.size());
      if (!devices.ok()) {
        return AtKey(job_, {"cluster.device_kind", "cluster.host"}, devices.status());
      }
      session_options_.create_device = devices->create;
      session_options_.create_communicator = devices->create_communicator;
      session_options_.max_memory_bytes = devices->max_memory_bytes;
      if (devices->communicators_name.has_value()) {
        NoteCommunicators(*devices->communicators_name);
      }
    }
    if (cluster_ != nullptr) nodes_ = cluster_->nodes();
    cores_ = CoresOfDevices(nodes_, num_devices, threads_);
    if (device_list_.IsAll("cpu")) {
      if (cluster_ != nullptr) NameSlowHosts(environment_, *cluster_);
      summary_.cores_note = OversubscriptionNote(nodes_, num_devices, threads_);
    }
    if (!summary_.cores_note.empty()) {
      environment_.err << "note: " << summary_.cores_note << std::endl;
    }
    absl::Status status = Train();
    interrupts_.SetActivity("while the run ended");
    const absl::Status ended = cluster_ != nullptr ? cluster_->Stop(status) : absl::OkStatus();
    if (status.ok() && !ended.ok()) {
      environment_.err << "note: the job is done, but some of its processes did not end cleanly: "
                       << ToStd(ended.message()) << std::endl;
    }
    EndNodes(status);
    const absl::Status written = WriteResults(status);
    ReportFailure(&status);
    if (!status.ok()) return status;
    return written.ok() ? LastCheckpoint() : written;
  }

 private:
  // Once, though there are more sessions, which do the same.
  void NoteCollectives(const absl::StatusOr<std::string>& communicators,
                       std::string_view why_not_messages) {
    if (!device_list_.Has("cuda") || has_noted_collectives_) return;
    has_noted_collectives_ = true;
    environment_.err << "note: " << CollectivesNote(communicators, why_not_messages) << std::endl;
  }

  // Of a job whose devices are all in this process.
  void NoteCommunicators(const absl::StatusOr<std::string>& communicators) {
    if (!communicators.ok()) return NoteCollectives(communicators, "");
    const absl::StatusOr<actors::StreamLaunches> launches =
        actors::PlanStreamLaunches(plan_, policies_);
    if (!launches.ok()) return NoteCollectives(launches.status(), "");
    NoteCollectives(communicators, launches->why_not_messages);
  }

  // Those that run beside the training or after it, and none when they have run. Looks at the job
  // show them, and what ends the job at once ends them, too.
  void SetSessions(absl::Span<actors::Session* const> evaluating, std::string activity) {
    std::vector<actors::Session*> sessions(evaluating.begin(), evaluating.end());
    if (running_ != nullptr) sessions.push_back(running_);
    if (evaluating.empty()) activity = running_ != nullptr ? "training" : "finishing";
    monitor_.Follow(sessions, std::move(activity));
    AbortByStopping(std::move(sessions));
  }

  // What ends the job at once ends these sessions too.
  void AbortByStopping(std::vector<actors::Session*> sessions) {
    interrupts_.SetAbort([this, sessions = std::move(sessions)] {
      if (cluster_ != nullptr) cluster_->Kill();
      for (actors::Session* session : sessions) session->Stop();
    });
  }

  absl::StatusOr<std::unique_ptr<actors::Session>> StartSession() {
    absl::StatusOr<std::unique_ptr<actors::Session>> session =
        actors::Session::Start(plan_, session_options_);
    if (!absl::IsDataLoss(session.status()) || start_.path.empty()) return session;
    is_start_damaged_ = true;
    return WithAdviceOnDamage(job_, start_.path, session.status());
  }

  absl::Status Train() {
    absl::StatusOr<std::unique_ptr<actors::Session>> started = StartSession();
    absl::Status start_status = started.status();
    if (!start_status.ok() && starting_.has_value()) {
      start_status = starting_->WithInterrupt(std::move(start_status));
    }
    starting_.reset();
    RETURN_IF_ERROR(start_status);
    const std::unique_ptr<actors::Session> session = *std::move(started);
    session_options_.states = nullptr;
    running_ = session.get();
    SetSessions({}, "");
    const auto end_sessions = absl::MakeCleanup([this] {
      interrupts_.SetAbort(nullptr);
      monitor_.Follow({}, "finishing");
      validator_ = nullptr;
      running_ = nullptr;
      EndCheckpoints();
    });
    RETURN_IF_ERROR(DumpStates(options_.dump, *session));
    TrainerOptions trainer_options;
    trainer_options.is_json = options_.is_json;
    trainer_options.dump = options_.dump;
    trainer_options.start = {start_.info.step, std::move(start_.states)};
    trainer_options.checkpoints = checkpoints_.get();
    if (CanValidate() && job_.train.validation_every > 0) {
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
    std::vector<uint32_t> first_ranks;  // of hosts
    SlowdownDetector slowdowns(HostsOfDevices(nodes_, &first_ranks));
    // The times of GPUs are not those of their hosts' processors.
    if (device_list_.IsAll("cpu") && slowdowns.has_several_hosts() &&
        process_environment_.launch.probes_links.value_or(true)) {
      trainer_options.watch_devices = [&](const std::vector<actors::DeviceStepReport>& devices) {
        std::string notes;
        for (const planner::SlowHost& slow : slowdowns.Add(devices)) {
          const uint32_t rank = first_ranks[static_cast<size_t>(slow.host)];
          StrAppend(&notes, SlowdownNote(actors::ShownHost(nodes_[rank]), slow));
        }
        return notes;
      };
    }
    // Only a search for what was not finite first would begin again with them.
    if (!job_.train.stops_on_nonfinite) trainer_options.start.states = nullptr;
    Trainer trainer(environment_, trainer_options, job_, *session, feeds_, interrupts_);
    trainer_options.start.states = nullptr;  // which its snapshot holds, until there is another one
    std::optional<MemorySampler> memory;
    if (!options_.trace.empty()) memory.emplace(session->inspector(), kMemoryInterval);
    const OtherLoad other_load(ProcessesOnThisHost());
    const absl::Status trained = trainer.Run(&summary_);
    summary_.other_cores = other_load.Cores();
    summary_.num_cores = other_load.num_cores();
    if (memory.has_value()) memory_ = memory->Finish();
    memory.reset();
    is_done_before_ = trained.ok() && summary_.steps == 0;
    last_step_ = LastTraced(trainer);
    if (trained.ok()) {
      AddGraphs(*session);
      AddPeak();
    }
    events_ = session->TakeTrace();
    if (!trained.ok() && is_trace_wanted_ && events_.empty()) {
      // The job was aborted: what devices of this process have recorded is still there.
      session->Stop();
      events_ = session->TakeTrace();
      if (events_.empty()) NoteLostTrace();
    }
    summary_.has_trace = is_trace_wanted_ && !events_.empty();
    summary_.trace_capacity = session_options_.trace_capacity;
    summary_.trace_every = session_options_.trace_every;
    step_windows_ = trainer.step_windows();
    AddTraceAnalysis();
    if (const std::string load = OtherLoadNote(summary_); !load.empty()) {
      environment_.err << "note: " << load << std::endl;
    }
    Parameters parameters;
    if (trained.ok() && model_.model != nullptr && HasHeldOut()) {
      ASSIGN_OR_RETURN(parameters, validator().KeepParameters(*session));
    }
    EndCheckpoints();
    running_ = nullptr;
    monitor_.Follow({}, "finishing");
    session->Stop();
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

  // Prints the error of a job that has failed after what helps beside it. The end of the run.
  void ReportFailure(absl::Status* status) {
    if (status->ok()) return;
    DescribeFailure(*status);
    TellError(environment_.err, status);
  }

  // Ends what is left of the nodes: all that they have printed comes out before the summary and
  // before the report of a failure.
  void EndNodes(const absl::Status& status) {
    cluster_ = nullptr;
    if (output_ == nullptr) return;
    const int32_t rank = actors::OriginOf(status).rank;
    if (rank >= 0) last_lines_ = output_->LastLines(static_cast<uint32_t>(rank));
    output_ = nullptr;
  }

  // What the node that has failed has printed, and how the job goes on.
  void DescribeFailure(const absl::Status& status) {
    const int32_t rank = actors::OriginOf(status).rank;
    if (rank >= 0) {
      const auto node = static_cast<size_t>(rank);
      const std::vector<actors::NodePlace>& places = process_environment_.launch.places;
      const bool is_remote = node < places.size() && !places[node].through.empty();
      // srun and mpirun tell in no way of their own whether a node has begun before it joined.
      const bool has_log = !is_remote || !nodes_.empty() ||
                           (places[node].joins_arguments && MayHaveBegun(ExitStatus(status)));
      FailedNode failed = {.rank = static_cast<uint32_t>(rank),
                           .log_folder = has_log ? options_.log_folder : "",
                           .last_lines = last_lines_};
      if (node < nodes_.size()) {
        failed.host = actors::ShownHost(nodes_[node]);
        failed.host_in_log = nodes_[node].host;
      } else if (places.empty()) {
        failed.host = HostName();
      }
      environment_.err << DescribeLog(failed) << std::flush;
    }
    if (is_start_damaged_) return;  // the same command would fail again
    if (const std::string hint = ResumeHintNow(process_environment_, job_); !hint.empty()) {
      environment_.err << "note: " << hint << std::endl;
    }
  }

  // Beside this one.
  std::vector<int64_t> ProcessesOnThisHost() const {
    std::vector<int64_t> processes;
    for (const actors::NodeDescription& node : nodes_) {
      if (node.host == HostName() && node.pid != getpid()) processes.push_back(node.pid);
    }
    return processes;
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
    return windows.empty() ? trainer.last_step()
                           : windows[static_cast<size_t>(
                                 num_skipped - num_skipped % session_options_.trace_every)];
  }

  actors::TraceContext MakeTraceContext() const {
    actors::TraceContext context;
    context.steps = step_windows_;
    if (summary_.path.has_value()) context.path = &*summary_.path;
    const auto memory_of = [this](uint32_t rank) {
      const auto found = memory_.find(rank);
      return found != memory_.end() ? found->second : std::vector<actors::UseSample>();
    };
    if (nodes_.empty()) {
      context.processes.push_back(
          {"penstock", 0, static_cast<uint32_t>(plan_.devices.size()), memory_of(0)});
      return context;
    }
    for (const actors::NodeDescription& node : nodes_) {
      context.processes.push_back(
          {actors::NameOf(node), node.first_device, node.num_devices, memory_of(node.rank)});
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

  // Where the peak rates are known: those of a core of this machine are not.
  void AddPeak() {
    if (!device_list_.IsAll("cuda") && job_.cluster.file.empty()) return;
    const absl::StatusOr<planner::Machine> machine =
        MachineOf(job_, static_cast<int64_t>(plan_.devices.size()));
    if (!machine.ok()) return;  // a plan may be for other devices than the job
    summary_.peak_step_s = planner::PeakStepSeconds(plan_, environment_.registries.ops, *machine);
    summary_.peak_of = machine->cluster.KindOf(0).name;
  }

  // What the GPUs of the session launch as graphs.
  void AddGraphs(const actors::Session& session) {
    if (device_list_.IsAll("cpu")) return;
    constexpr absl::Duration kTimeout = absl::Seconds(5);  // a summary without it is good, too
    const absl::StatusOr<actors::EngineSnapshot> snapshot = session.inspector()->Inspect(kTimeout);
    if (!snapshot.ok()) return;
    std::map<std::string, std::set<uint32_t>> devices_of;
    for (const actors::DeviceSnapshot& device : snapshot->devices) {
      if (!device.graphs.empty()) devices_of[device.graphs].insert(device.device);
    }
    for (const auto& [text, devices] : devices_of) {
      const std::string of =
          plan_.devices.size() == 1 ? std::string() : StrCat("devices ", RankRanges(devices), ": ");
      summary_.graphs.push_back(StrCat(of, text));
    }
  }

  void AddTraceAnalysis() {
    TraceAnalysis analysis = AnalyseTrace({.plan = plan_,
                                           .events = events_,
                                           .steps = step_windows_,
                                           .every = session_options_.trace_every,
                                           .nodes = nodes_,
                                           .cores = cores_},
                                          job_, policies_);
    if (is_trace_wanted_) summary_.traced = analysis.steps;
    summary_.path = std::move(analysis.path);
    summary_.mean_path = analysis.mean_path;
    summary_.replayed_step_s = analysis.replayed_step_s;
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

  // What the tokens of a token file mean is not known.
  bool CanSample() const {
    return job_.sample.bytes > 0 && feeds_.corpus() != nullptr && feeds_.corpus()->is_text();
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
    const planner::Policy* policy = policies_.Find(plan_.policy);
    if (policy != nullptr) {
      layout.placement = policy->needs().placement.value_or(planner::Placement::kLoop);
    }
    layout.sequences_per_step = feeds_.batch() / static_cast<int64_t>(plan_.num_microbatches);
    if (layout.placement == planner::Placement::kBidirectional) {
      layout.placement = planner::Placement::kLoop;  // each stage on one of its two groups
      layout.sequences_per_step /= 2;                // so many micro-batches enter at each end
    }
    layout.devices = device_list_;
    layout.num_threads = threads_;
    layout.host_devices =
        HostDevicesOf(job_, static_cast<int64_t>(plan_.devices.size())).value_or(HostDevices());
    if (cluster_ != nullptr) layout.start_engine = cluster_->engine_factory();
    return layout;
  }

  Validator& validator() {
    if (validator_ == nullptr) {
      ForwardLayout layout = TrainedLayout();
      layout.on_sessions = [this](absl::Span<actors::Session* const> evaluating) {
        SetSessions(evaluating, "validating");
      };
      validator_ =
          std::make_unique<Validator>(environment_, model_, HeldOutData(), std::move(layout));
    }
    return *validator_;
  }

  // Validation loss and sample of the trained parameters.
  absl::Status UseParameters(const Parameters& parameters) {
    if (job_.train.validation_sequences > 0) {
      monitor_.SetActivity("validating");
      ASSIGN_OR_RETURN(summary_.validation_loss, validator().Loss(parameters));
      summary_.validation_accuracy = validator().accuracy();
    }
    validator_ = nullptr;
    if (!CanSample()) return absl::OkStatus();
    ForwardLayout layout = TrainedLayout();
    layout.on_sessions = [this](absl::Span<actors::Session* const> sampling) {
      SetSessions(sampling, "sampling");
    };
    monitor_.SetActivity("loading the model for a sample");
    const Corpus& corpus = *feeds_.corpus();
    SampleOptions options;
    options.temperature = job_.sample.temperature;
    options.seed = static_cast<uint64_t>(job_.train.seed);
    ASSIGN_OR_RETURN(summary_.sample,
                     SampleText(environment_.registries, model_, parameters,
                                corpus.validation_tokens().subspan(0, model_.config.context),
                                corpus.tokenizer.get(), job_.sample.bytes, options, layout));
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
    const absl::Status found = FindNonFinite(
        plan_, session_options_, feeds_, snapshot, num_steps - 1, [this](actors::Session* running) {
          SetSessions(absl::MakeConstSpan(&running, running != nullptr ? 1 : 0),
                      "searching for what was not finite first");
        });
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

  // Of the steps that ran, however the run ended. One file that cannot be written keeps back
  // neither the others nor the summary.
  absl::Status WriteResults(const absl::Status& status) {
    if (summary_.steps == 0 && !is_done_before_) return absl::OkStatus();
    bool is_complete = true;
    const auto tell = [&](std::string_view option, const absl::Status& written) {
      if (written.ok()) return;
      is_complete = false;
      environment_.err << "error: " << ToStd(AtOption(option, written).message()) << std::endl;
    };
    // Without events, files that are there stay as they are.
    if (!options_.trace.empty() && !events_.empty()) {
      tell("--trace", WriteTraceFile(options_.trace, plan_, events_, MakeTraceContext()));
    }
    if (!options_.svg.empty() && !events_.empty()) {
      std::ostringstream text;
      actors::WriteTimelineSvg(plan_, events_, last_step_, text);
      tell("--svg", WriteTextFile(options_.svg, text.str()));
    }
    if (IsPage(options_.report)) {
      tell("--report", WriteTextFile(options_.report, MakePage(status)));
    } else if (!options_.report.empty() && summary_.steps > 0) {
      tell("--report", WriteTextFile(options_.report, RunReport(plan_, summary_, events_)));
    }
    environment_.out << (options_.is_json ? SummaryJson(summary_) + "\n" : SummaryText(summary_))
                     << std::flush;
    if (is_complete) return absl::OkStatus();
    return absl::UnavailableError("the run is done, but not all of its files were written");
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
  const RunOptions& options_;
  const Job& job_;
  const planner::PolicyRegistry policies_;
  const planner::Plan plan_;
  const JobModel model_;
  const planner::StepEstimate estimate_;
  Report page_;
  const absl::Time begin_ = absl::Now();
  const StepFeeds feeds_;
  ResumePoint start_;                         // without its states once training has them
  std::unique_ptr<Checkpoints> checkpoints_;  // null: none are written, or no more
  int64_t threads_ = 1;                       // of each device
  DeviceList device_list_;                    // its kinds
  actors::SessionOptions session_options_;
  bool is_trace_wanted_ = false;  // by the user; else steps are sampled for the critical path alone
  Interrupts& interrupts_;
  JobMonitor monitor_;                    // its threads have the signals blocked
  std::unique_ptr<JobKeyFile> key_file_;  // where others start the nodes
  std::shared_ptr<NodeOutput> output_ = PrintNodeOutput(process_environment_);
  std::vector<std::string> last_lines_;  // of the node that has failed
  std::unique_ptr<actors::Cluster> cluster_;
  // Until steps run; ends before the cluster.
  std::optional<InterruptibleStart> starting_;
  std::vector<actors::NodeDescription> nodes_;
  absl::Status last_checkpoint_;
  bool has_noted_collectives_ = false;
  bool is_start_damaged_ = false;  // the checkpoint that the run was to continue from
  bool is_done_before_ = false;    // nothing was left to be trained
  RunSummary summary_;
  actors::StepWindow last_step_;
  std::vector<actors::TraceEvent> events_;
  std::vector<actors::StepWindow> step_windows_;
  MemorySamples memory_;  // while steps ran that are traced
  actors::SharedCores cores_;
  actors::Session* running_ = nullptr;    // the session that trains; null: not yet, or no more
  std::unique_ptr<Validator> validator_;  // null: not used yet, or no more
};

}  // namespace

absl::Status RunJob(const Environment& environment, const Environment& recorded,
                    RecordedLines& lines, Interrupts& interrupts, const RunOptions& options,
                    const Job& job, RunProgram program, StepFeeds feeds, ResumePoint start,
                    std::unique_ptr<Checkpoints> checkpoints) {
  return JobRun(environment, recorded, lines, interrupts, options, job, std::move(program),
                std::move(feeds), std::move(start), std::move(checkpoints))
      .Run();
}

}  // namespace penstock::cli
