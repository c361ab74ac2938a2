#include "cli/trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/json.h"
#include "cli/npy.h"
#include "fmt/format.h"

#include "actors/engine/step_name.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

// Steps handed in and not yet reported: the devices need not wait for the text or the terminal.
constexpr int64_t kStepsAhead = 3;

// Writes step_S.NAME.npy of every feed of step S, counted from 1 as everywhere in the output.
absl::Status DumpFeeds(const std::string& folder, int64_t step, const actors::Feeds& feeds) {
  if (folder.empty()) return absl::OkStatus();
  for (const auto& [name, tensor] : feeds) {
    const std::string file = StrCat(folder, "/step_", actors::StepNumber(step), ".", name, ".npy");
    RETURN_IF_ERROR(WriteNpy(file, tensor));
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

}  // namespace

Trainer::Trainer(const Environment& environment, const TrainerOptions& options, const Job& job,
                 actors::Session& session, const StepFeeds& feeds, const Interrupts& interrupts)
    : environment_(environment),
      options_(options),
      job_(job),
      session_(session),
      feeds_(feeds),
      interrupts_(interrupts),
      progress_(environment.err, environment.err_is_terminal,
                job.locations.contains("train.log_every") ? job.train.log_every : 0,
                options.start.step),
      last_snapshot_step_(options.start.step),
      snapshot_(options.start) {}

absl::Status Trainer::Run(RunSummary* summary) {
  begin_ns_ = last_ns_ = last_snapshot_ns_ = clock_.NowNs();
  summary_ = summary;
  summary->first_step = options_.start.step;
  summary->final_loss = std::numeric_limits<double>::quiet_NaN();
  absl::Status status = RunSteps();
  if (options_.checkpoints != nullptr) {
    const bool is_interrupted = interrupts_.count() > 0 && absl::IsCancelled(status);
    if (status.ok() || is_interrupted) {
      // The states that the run began with are not needed again: their checkpoint may go.
      if (snapshot_.step == options_.start.step) snapshot_.states = nullptr;
      const absl::Status saved = SaveCheckpoint();
      if (status.ok()) status = saved;
    }
    options_.checkpoints->Wait();
  }
  PrintHeldLine(std::numeric_limits<double>::quiet_NaN());
  ReportCheckpoints();
  progress_.Clear();
  summary->steps = num_steps() - options_.start.step;
  // A session that was stopped refuses what comes after.
  if (interrupts_.count() > 0 &&
      (absl::IsCancelled(status) || absl::IsFailedPrecondition(status))) {
    status = interrupts_.ToStatus(StrCat("after step ", num_steps()));
  }
  const absl::Status dumped = DumpLosses(options_.dump, losses_);
  return status.ok() ? dumped : status;
}

absl::Status Trainer::RunSteps() {
  const int64_t steps = job_.train.steps;
  while (num_steps() < steps) {
    const int64_t first = num_steps();
    const int64_t end = NextPause();
    const absl::Status status =
        actors::RunSteps(session_, end - first, kStepsAhead, *this, *this, first);
    if (wants_snapshot_.exchange(false) && absl::IsCancelled(status)) {
      RETURN_IF_ERROR(TakeSnapshot());
      continue;
    }
    RETURN_IF_ERROR(status);
    // After the last step there is a checkpoint in any case, and the caller evaluates, with all of
    // the job's processes.
    if (end == steps) break;
    if (options_.checkpoints != nullptr && options_.checkpoints->IsDueAfter(end)) {
      RETURN_IF_ERROR(SaveCheckpoint());
    }
    if (IsEvaluatedAfter(end - 1)) RETURN_IF_ERROR(Validate());
  }
  return absl::OkStatus();
}

int64_t Trainer::NextPause() const {
  int64_t end = job_.train.steps;
  const int64_t validation = options_.validate ? job_.train.validation_every : 0;
  const int64_t checkpoint = options_.checkpoints != nullptr ? job_.checkpoint.every : 0;
  for (const int64_t every : {validation, checkpoint}) {
    if (every > 0) end = std::min(end, (num_steps() / every + 1) * every);
  }
  return end;
}

bool Trainer::IsEvaluatedAfter(int64_t step) const {
  const int64_t every = options_.validate ? job_.train.validation_every : 0;
  return every > 0 && (step + 1) % every == 0 && step + 1 < job_.train.steps;
}

absl::StatusOr<std::shared_ptr<const actors::KeptStates>> Trainer::KeepStates() {
  auto states = session_.KeepStates(actors::StateSelection::kAll);
  if (absl::IsResourceExhausted(states.status()) && options_.release_memory &&
      options_.release_memory()) {
    states = session_.KeepStates(actors::StateSelection::kAll);
  }
  return states;
}

absl::Status Trainer::SaveCheckpoint() {
  Checkpoints& checkpoints = *options_.checkpoints;
  if (losses_.empty()) return absl::OkStatus();
  if (!std::isfinite(losses_.back())) {  // nothing to go on from
    progress_.Clear();
    environment_.err << "note: no checkpoint of step " << num_steps() << ": its loss is not finite"
                     << std::endl;
    return absl::OkStatus();
  }
  if (!checkpoints.IsReadyFor(session_, num_steps())) return absl::OkStatus();
  auto states = KeepStates();
  if (absl::IsResourceExhausted(states.status()) && snapshot_.states != nullptr) {
    // The copy serves as a snapshot, too.
    snapshot_.states = nullptr;
    states = session_.KeepStates(actors::StateSelection::kAll);
    if (states.ok()) snapshot_ = {num_steps(), *states};
  }
  if (states.ok()) {
    checkpoints.Save(*std::move(states), feeds_.SequenceOf(num_steps()));
  } else if (absl::IsResourceExhausted(states.status())) {
    checkpoints.AddError(num_steps(), states.status());
  } else {
    return states.status();
  }
  last_ns_ = clock_.NowNs();  // no part of the next step's time
  return absl::OkStatus();
}

void Trainer::ReportCheckpoints() {
  if (options_.checkpoints == nullptr || !options_.checkpoints->HasNews()) return;
  progress_.Clear();
  options_.checkpoints->Report();
}

absl::Status Trainer::TakeSnapshot() {
  last_snapshot_step_ = num_steps();
  if (!has_nonfinite_loss_) {
    auto states = KeepStates();
    if (states.ok()) {
      snapshot_ = {num_steps(), *std::move(states)};
    } else if (!absl::IsResourceExhausted(states.status())) {
      return states.status();
    }
  }
  last_ns_ = last_snapshot_ns_ = clock_.NowNs();  // no part of the next step's time
  return absl::OkStatus();
}

absl::Status Trainer::Validate() {
  const absl::StatusOr<double> loss = options_.validate(session_);
  PrintHeldLine(loss.value_or(std::numeric_limits<double>::quiet_NaN()));
  if (!loss.ok()) return loss.status();
  summary_->validations.push_back({num_steps(), *loss});
  progress_.Clear();
  environment_.err << fmt::format("step {}/{}  validation loss {:.4f}\n", num_steps(),
                                  job_.train.steps, *loss)
                   << std::flush;
  last_ns_ = clock_.NowNs();  // evaluation is no part of the next step's time
  return absl::OkStatus();
}

absl::StatusOr<actors::Feeds> Trainer::Get(int64_t step) {
  if (interrupts_.count() > 0) return absl::CancelledError("interrupted");
  if (options_.snapshot_seconds > 0 && step > last_snapshot_step_ &&
      1e-9 * static_cast<double>(clock_.NowNs() - last_snapshot_ns_) > options_.snapshot_seconds) {
    wants_snapshot_ = true;
    return absl::CancelledError("the states are copied first");
  }
  ASSIGN_OR_RETURN(actors::Feeds feeds, feeds_.Get(step));
  RETURN_IF_ERROR(DumpFeeds(options_.dump, step, feeds));
  return feeds;
}

absl::Status Trainer::Take(int64_t step, const actors::StepResult& result) {
  Report(step, result);
  if (!has_nonfinite_loss_ || !job_.train.stops_on_nonfinite) return absl::OkStatus();
  return absl::AbortedError(StrCat("the loss of ", actors::StepName(step), " is ",
                                   std::isnan(losses_.back()) ? "nan" : "infinite"));
}

bool Trainer::IsLogged(int64_t step) const {
  const int64_t number = actors::StepNumber(step);
  return step == options_.start.step || number == job_.train.steps ||
         number % job_.train.log_every == 0;
}

void Trainer::PrintHeldLine(double validation_loss) {
  if (held_line_.empty()) return;
  environment_.out << held_line_ << ", \"validation_loss\": " << JsonNumber(validation_loss) << "}"
                   << std::endl;
  held_line_.clear();
}

void Trainer::Report(int64_t step, const actors::StepResult& result) {
  // From the end of the step before: when this is told depends on who else wants the processor.
  const double step_s = 1e-9 * static_cast<double>(result.end_ns - last_ns_);
  last_step_ = {step, last_ns_, result.end_ns};
  step_windows_.push_back(last_step_);
  last_ns_ = result.end_ns;
  const double loss = ElementAsDouble(result.fetches[0].second, 0);
  if (!std::isfinite(loss) && !has_nonfinite_loss_) {
    has_nonfinite_loss_ = true;
    if (!job_.train.stops_on_nonfinite) {
      progress_.Clear();
      environment_.err << "warning: the loss is not finite from " << actors::StepName(step)
                       << " on; a smaller train.learning_rate may help" << std::endl;
    }
  }
  const double tokens_per_s =
      step_s > 0 ? static_cast<double>(summary_->tokens_per_step) / step_s : 0;
  summary_->final_loss = loss;
  losses_.push_back(loss);
  summary_->losses.push_back(loss);
  summary_->step_times_s.push_back(step_s);
  if (options_.on_step) options_.on_step(num_steps(), loss, step_s);
  if (options_.watch_devices) {
    if (const std::string notes = options_.watch_devices(result.devices); !notes.empty()) {
      progress_.Clear();
      environment_.err << notes << std::flush;
    }
  }
  if (options_.is_json && (IsLogged(step) || IsEvaluatedAfter(step))) {
    const std::string line =
        StrCat("{\"step\": ", actors::StepNumber(step), ", \"loss\": ", JsonNumber(loss),
               ", \"step_time_s\": ", JsonNumber(step_s),
               ", \"tokens_per_s\": ", JsonNumber(tokens_per_s));
    if (IsEvaluatedAfter(step)) {
      held_line_ = line;
    } else {
      environment_.out << line << "}" << std::endl;
    }
  }
  ReportCheckpoints();
  // Into a file the JSON lines say it all.
  if (options_.is_json && !environment_.err_is_terminal) return;
  progress_.Update({.step = actors::StepNumber(step),
                    .steps = job_.train.steps,
                    .loss = loss,
                    .tokens_per_s = tokens_per_s,
                    .elapsed_s = 1e-9 * static_cast<double>(result.end_ns - begin_ns_)});
}

}  // namespace penstock::cli
