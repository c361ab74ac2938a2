#include "cli/checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "cli/files.h"
#include "cli/json.h"
#include "cli/tokenizer.h"
#include "cli/utf8.h"
#include "fmt/format.h"

#include "actors/checkpoint/checkpoint_folder.h"
#include "actors/checkpoint/durable_file.h"
#include "actors/engine/error_origin.h"
#include "actors/session/checkpoint_states.h"
#include "base/counted.h"
#include "base/format.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

using actors::CheckpointFolder;

// How long a checkpoint may take. Training waits for it when the next one is due.
constexpr absl::Duration kWriteTimeout = absl::Minutes(10);

// "train.learning_rate = 0.001, not 0.0003; ...": settings of a checkpoint that the plan differs
// in.
std::string Differences(const actors::CheckpointInfo& info, const planner::Plan& plan) {
  std::vector<std::string> differences;
  for (const auto& [name, value] : info.settings) {
    for (const planner::ProgramSetting& ours : plan.settings) {
      if (ours.name == name && ours.value != value) {
        differences.push_back(StrCat(name, " = ", value, ", not ", ours.value));
      }
    }
  }
  return PrintableUtf8(StrJoin(differences, "; "));  // what a file says
}

// Whether the learning rate depends on train.steps, as a cosine does, and the run has another one.
bool HasOtherCurve(const actors::CheckpointInfo& info, const planner::Plan& plan) {
  constexpr std::string_view kSteps = "train.steps";
  for (const auto& [name, value] : info.settings) {
    for (const planner::ProgramSetting& ours : plan.settings) {
      if (name == kSteps && ours.name == kSteps && ours.value != value) return true;
    }
  }
  return false;
}

// Where the tokenizer that a run's text is encoded with lies, so that `generate` finds it.
std::string TokenizerPath(const Job& job) {
  return StrCat(job.checkpoint.path, "/", kTokenizerFile);
}

// The parameters of checkpoints mean tokens of the tokenizer beside them.
absl::Status CheckTokenizer(const Job& job) {
  const std::string path = TokenizerPath(job);
  std::error_code error;
  if (job.data.tokenizer.empty() || !std::filesystem::exists(path, error)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string kept, ReadTextFile(path, SIZE_MAX));
  ASSIGN_OR_RETURN(const std::string given, ReadTextFile(job.data.tokenizer, SIZE_MAX));
  if (kept == given) return absl::OkStatus();
  return AtKey(job, {"data.tokenizer"},
               absl::InvalidArgumentError(
                   StrCat(job.data.tokenizer, " differs from ", path,
                          ", whose tokens the checkpoints beside it were trained on; set "
                          "data.tokenizer to that file, or remove it if they mean the same")));
}

// A run writes beside its checkpoints, not into one.
absl::Status CheckIsNoCheckpoint(const Job& job) {
  const std::string& path = job.checkpoint.path;
  if (!CheckpointFolder::IsCheckpoint(path)) return absl::OkStatus();
  std::filesystem::path folder = std::filesystem::path(path).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  const std::string parent = folder.parent_path().string();
  return AtKey(job, {"checkpoint.path"},
               absl::InvalidArgumentError(
                   StrCat(path, ": this is a checkpoint; set checkpoint.path to its parent, ",
                          parent.empty() ? "." : parent)));
}

// What to do about a damaged checkpoint where an earlier one is there: "; w/step-00000006 is
// complete: ...".
std::string AdviceOnDamage(const std::string& folder, const std::string& damaged) {
  const absl::StatusOr<std::vector<int64_t>> steps = CheckpointFolder::Steps(folder);
  if (!steps.ok()) return "";
  for (auto step = steps->rbegin(); step != steps->rend(); ++step) {
    const std::string path = CheckpointFolder::PathOf(folder, *step);
    if (path == damaged || !actors::Checkpoint::Open(path).ok()) continue;
    const std::filesystem::path from(damaged);
    const std::string to =
        (from.parent_path() / StrCat("damaged-", from.filename().string())).string();
    return StrCat("; ", path, " is complete: to continue from it, rename the damaged one (mv ",
                  damaged, " ", to, ") and resume again");
  }
  return "; there is no other checkpoint to continue from";
}

// The checkpoint is of another model, optimiser or type.
absl::Status DoesNotFit(const Job& job, const absl::Status& status,
                        const std::string& differences) {
  std::string message(ToStd(status.message()));
  if (!differences.empty()) StrAppend(&message, "; the checkpoint was made with ", differences);
  return AtKey(job, {"checkpoint.path"}, absl::Status(status.code(), message));
}

}  // namespace

absl::Status WithAdviceOnDamage(const Job& job, const std::string& path,
                                const absl::Status& status) {
  absl::Status advised(status.code(),
                       StrCat(ToStd(status.message()), AdviceOnDamage(job.checkpoint.path, path)));
  status.ForEachPayload(
      [&advised](auto url, const absl::Cord& payload) { advised.SetPayload(url, payload); });
  return advised;
}

absl::StatusOr<ResumePoint> FindResumePoint(const Job& job, bool resumes,
                                            const planner::Plan& plan) {
  const std::string& folder = job.checkpoint.path;
  if (folder.empty()) {
    if (!resumes) return ResumePoint();
    return absl::InvalidArgumentError(
        "--resume: there is no folder with checkpoints to continue from; set checkpoint.path");
  }
  RETURN_IF_ERROR(CheckIsNoCheckpoint(job));
  const absl::StatusOr<std::vector<int64_t>> steps = CheckpointFolder::Steps(folder);
  if (!steps.ok()) return AtKey(job, {"checkpoint.path"}, steps.status());
  if (!resumes) {
    if (steps->empty()) return ResumePoint();
    return AtKey(job, {"checkpoint.path"},
                 absl::AlreadyExistsError(StrCat(
                     folder, " holds the checkpoints of an earlier run, of step ", steps->back(),
                     "; `run --resume` continues it; for a new run, set checkpoint.path to another "
                     "folder")));
  }
  if (steps->empty()) {
    ResumePoint begin;
    begin.note = StrCat("note: ", folder, " holds no checkpoint; the run begins with step 1\n");
    return begin;
  }
  RETURN_IF_ERROR(CheckTokenizer(job));
  ResumePoint point;
  point.path = CheckpointFolder::PathOf(folder, steps->back());
  absl::StatusOr<actors::Checkpoint> opened = actors::Checkpoint::Open(point.path);
  if (absl::IsUnimplemented(opened.status())) return opened.status();  // of a later version
  if (!opened.ok()) return WithAdviceOnDamage(job, point.path, opened.status());
  actors::Checkpoint checkpoint = *std::move(opened);
  absl::StatusOr<actors::CheckpointInfo> info = actors::InfoFromMetadata(checkpoint.metadata());
  if (!info.ok()) return actors::WithPrefix(StrCat(point.path, " "), info.status());
  point.info = *std::move(info);
  const std::string differences = Differences(point.info, plan);
  if (point.info.seed != job.train.seed) {
    return AtKey(job, {"train.seed", "checkpoint.path"},
                 absl::InvalidArgumentError(StrCat(
                     point.path, " is of a run with train.seed = ", point.info.seed, ", not ",
                     job.train.seed, ", which would draw other numbers and other text")));
  }
  const size_t num_tensors = checkpoint.tensors().size();
  absl::StatusOr<std::shared_ptr<const actors::KeptStates>> states =
      actors::CheckpointStates::Create(std::move(checkpoint), plan.states);
  if (!states.ok()) return DoesNotFit(job, states.status(), differences);
  point.states = *std::move(states);
  point.note =
      StrCat("continuing from ", point.path, ", after ", Counted(point.info.step, "step"), "\n");
  if (!differences.empty()) {
    StrAppend(&point.note, "note: the checkpoint was made with ", differences, "\n");
  }
  if (HasOtherCurve(point.info, plan)) {
    StrAppend(
        &point.note,
        "note: train.schedule = cosine falls over train.steps, so the learning rate follows "
        "another curve from here on, and the losses are not those of one uninterrupted run\n");
  }
  if (num_tensors > plan.states.size()) {
    StrAppend(&point.note, "note: of the ", num_tensors, " states of the checkpoint, this run has ",
              plan.states.size(), "; the others are not used\n");
  }
  if (point.info.step >= job.train.steps) {
    StrAppend(&point.note, "note: train.steps = ", job.train.steps,
              ": nothing is left to be trained\n");
  }
  return point;
}

absl::StatusOr<std::unique_ptr<Checkpoints>> Checkpoints::Create(const Environment& environment,
                                                                 const Job& job,
                                                                 const planner::Plan& plan,
                                                                 bool is_json) {
  RETURN_IF_ERROR(CheckIsNoCheckpoint(job));
  std::unique_ptr<Checkpoints> checkpoints(new Checkpoints(environment, job, is_json));
  checkpoints->info_.seed = job.train.seed;
  checkpoints->info_.strategy = plan.strategy;
  for (const planner::ProgramSetting& setting : plan.settings) {
    checkpoints->info_.settings.emplace_back(setting.name, setting.value);
  }
  if (!job.data.tokenizer.empty()) {
    checkpoints->info_.settings.emplace_back("data.tokenizer", job.data.tokenizer);
    ASSIGN_OR_RETURN(checkpoints->tokenizer_, ReadTextFile(job.data.tokenizer, SIZE_MAX));
  }
  if (!job.data.tokens.empty()) {  // which no bytes of a prompt mean
    checkpoints->info_.settings.emplace_back("data.tokens", job.data.tokens);
  }
  const absl::Status opened = checkpoints->Open();
  if (absl::IsAlreadyExists(opened)) return AtKey(job, {"checkpoint.path"}, opened);
  if (!opened.ok()) {
    environment.err << "error: " << ToStd(opened.message())
                    << "; the run goes on, and tries again with each checkpoint" << std::endl;
  }
  return checkpoints;
}

absl::Status Checkpoints::Open() {
  ASSIGN_OR_RETURN(folder_, CheckpointFolder::Open(job_.checkpoint.path, job_.checkpoint.keep));
  return absl::OkStatus();
}

void Checkpoints::KeepFor(const ResumePoint& start) {
  resumed_ = start.states;
  resumed_step_ = start.info.step;
}

absl::Status Checkpoints::WriteTokenizer() {
  if (!tokenizer_.has_value()) return absl::OkStatus();
  const std::string path = TokenizerPath(job_);
  if (ReadTextFile(path, tokenizer_->size()).value_or("") != *tokenizer_) {
    RETURN_IF_ERROR(actors::ReplaceDurably(path, *tokenizer_));
  }
  tokenizer_.reset();
  return absl::OkStatus();
}

bool Checkpoints::IsReadyFor(const actors::Session& session, int64_t steps) {
  if (steps == last_steps_) return false;
  last_steps_ = steps;
  absl::Status ready;
  if (writer_ != nullptr) {
    ready = writer_->Wait(kWriteTimeout);
  } else if (folder_ == nullptr) {
    ready = Open();
  }
  if (ready.ok()) ready = WriteTokenizer();
  if (!ready.ok()) {
    AddError(steps, ready);
    return false;
  }
  if (writer_ == nullptr) {
    folder_->KeepFor(resumed_, resumed_step_);
    writer_ = std::make_unique<actors::CheckpointWriter>(
        session, std::move(folder_),
        [this](const actors::CheckpointResult& result) { Add(result); });
  }
  return true;
}

void Checkpoints::Save(std::shared_ptr<const actors::KeptStates> states, int64_t sequences) {
  actors::CheckpointInfo info = info_;
  info.step = last_steps_;
  info.sequences = sequences;
  writer_->Write(std::move(info), std::move(states));
}

void Checkpoints::Wait() {
  if (writer_ == nullptr) return;
  const absl::Status status = writer_->Wait(kWriteTimeout);
  is_stuck_ = absl::IsDeadlineExceeded(status);
  if (!status.ok()) AddError(last_steps_, status);
}

void Checkpoints::AddError(int64_t step, const absl::Status& status) {
  actors::CheckpointResult result;
  result.step = step;
  result.status = status;
  Add(std::move(result));
}

void Checkpoints::Add(actors::CheckpointResult result) {
  const absl::MutexLock lock(&mutex_);
  if (on_result_) on_result_(result);
  results_.push_back(std::move(result));
}

bool Checkpoints::HasNews() {
  const absl::MutexLock lock(&mutex_);
  return !results_.empty();
}

void Checkpoints::Report() {
  std::vector<actors::CheckpointResult> results;
  {
    const absl::MutexLock lock(&mutex_);
    results.swap(results_);
  }
  for (const actors::CheckpointResult& result : results) {
    last_status_ = result.status;
    if (absl::IsOutOfRange(result.status) && !job_.train.stops_on_nonfinite) {
      // Such training goes on, and ends, with what it has.
      last_status_ = absl::OkStatus();
      environment_.err << "note: no checkpoint of step " << result.step << ": "
                       << ToStd(result.status.message()) << std::endl;
    } else if (!result.status.ok()) {
      environment_.err << "error: no checkpoint of step " << result.step << ": "
                       << ToStd(result.status.message()) << std::endl;
    } else if (is_json_) {
      environment_.out << "{\"checkpoint\": {\"step\": " << result.step
                       << ", \"path\": " << JsonString(result.path)
                       << ", \"bytes\": " << result.num_bytes
                       << ", \"seconds\": " << JsonNumber(result.seconds) << "}}" << std::endl;
    } else {
      environment_.err << fmt::format("step {}/{}  checkpoint {} ({}, {})\n", result.step,
                                      job_.train.steps, result.path, FormatBytes(result.num_bytes),
                                      FormatSeconds(result.seconds))
                       << std::flush;
    }
    reported_.push_back(result);
  }
}

}  // namespace penstock::cli
