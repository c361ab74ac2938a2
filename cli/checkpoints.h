// The checkpoints of a run: where it continues from, and how it writes its own.
//
// A checkpoint that cannot be written does not end the training: the user is told, and the run
// fails when it is over unless a later one was written.
//
// Thread rule: one call at a time. The files are written by an actor (checkpoint_writer.h).

#ifndef PENSTOCK_CLI_CHECKPOINTS_H_
#define PENSTOCK_CLI_CHECKPOINTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "cli/environment.h"
#include "cli/job.h"

#include "actors/checkpoint/checkpoint.h"
#include "actors/session/checkpoint_writer.h"
#include "actors/session/session.h"
#include "planner/plan/plan.h"

namespace penstock::cli {

// What a run continues from.
struct ResumePoint {
  std::string path;
  actors::CheckpointInfo info;
  std::shared_ptr<const actors::KeptStates> states;
  std::string note;  // what the user is told: lines, or nothing
};

// The newest checkpoint of the job's folder; step 0 without states where the run begins anew.
// Errors: checkpoints of a run that is not to be continued, a checkpoint that is damaged or does
// not fit the plan, a folder that is itself a checkpoint.
absl::StatusOr<ResumePoint> FindResumePoint(const Job& job, bool resumes,
                                            const planner::Plan& plan);

// The error of a damaged checkpoint, at `path`, with the one that the run can continue from
// instead, and how.
absl::Status WithAdviceOnDamage(const Job& job, const std::string& path,
                                const absl::Status& status);

class Checkpoints {
 public:
  // The environment and the job outlive the result. kAlreadyExists: another run writes into the
  // folder. If it cannot be written for another reason, this is tried again with every checkpoint.
  static absl::StatusOr<std::unique_ptr<Checkpoints>> Create(const Environment& environment,
                                                             const Job& job,
                                                             const planner::Plan& plan,
                                                             bool is_json);

  // Told of each checkpoint, on a thread of the writer. Set before the first one.
  void SetOnResult(std::function<void(const actors::CheckpointResult&)> on_result) {
    const absl::MutexLock lock(&mutex_);
    on_result_ = std::move(on_result);
  }
  // What checkpoints say of the training data: StepFeeds::Fingerprint.
  void set_data(std::string data) { info_.data = std::move(data); }

  // Keeps the checkpoint that the run continues from as long as its states are used. Before the
  // first one is written.
  void KeepFor(const ResumePoint& start);

  // Whether there is to be a checkpoint when `steps` steps are done, before the last one.
  bool IsDueAfter(int64_t steps) const {
    return job_.checkpoint.every > 0 && steps % job_.checkpoint.every == 0;
  }

  // To be asked after `steps` steps, before their states are copied: waits for the checkpoint
  // before. False: there is no checkpoint of this step, for a reason that Report tells, or it is
  // there. REQUIRES: the session outlives this.
  bool IsReadyFor(const actors::Session& session, int64_t steps);
  // Has the states after those steps written. REQUIRES: IsReadyFor has returned true.
  void Save(std::shared_ptr<const actors::KeptStates> states, int64_t sequences);
  // Tells of a checkpoint that is not written.
  void AddError(int64_t step, const absl::Status& status);
  // Waits for what is being written.
  void Wait();
  // Whether it does not end: then the end of this would wait for ever.
  bool is_stuck() const { return is_stuck_; }

  // Whether Report would print anything.
  bool HasNews();
  // Prints how it went with the checkpoints since the last call.
  void Report();

  // Those that Report has told of, in order.
  const std::vector<actors::CheckpointResult>& reported() const { return reported_; }

  // An error if the last checkpoint was not written.
  const absl::Status& last_status() const { return last_status_; }

 private:
  Checkpoints(const Environment& environment, const Job& job, bool is_json)
      : environment_(environment), job_(job), is_json_(is_json) {}
  absl::Status Open();
  // Once. Before the first checkpoint: a run that is refused changes nothing in the folder.
  absl::Status WriteTokenizer();
  void Add(actors::CheckpointResult result);

  const Environment& environment_;
  const Job& job_;
  const bool is_json_;
  actors::CheckpointInfo info_;                       // what all checkpoints say
  std::optional<std::string> tokenizer_;              // that is still to be written beside them
  std::unique_ptr<actors::CheckpointFolder> folder_;  // until the writer has it
  std::weak_ptr<const actors::KeptStates> resumed_;   // of what the run continues from
  int64_t resumed_step_ = -1;
  int64_t last_steps_ = -1;  // of the last copy
  bool is_stuck_ = false;
  absl::Status last_status_;
  std::vector<actors::CheckpointResult> reported_;
  absl::Mutex mutex_;
  std::vector<actors::CheckpointResult> results_ ABSL_GUARDED_BY(mutex_);  // not reported yet
  std::function<void(const actors::CheckpointResult&)> on_result_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<actors::CheckpointWriter> writer_;  // last: it adds results
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_CHECKPOINTS_H_
