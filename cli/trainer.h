// Runs the steps of a job on a session: feeds them, reports their losses, evaluates in between.
//
// Thread rule: Run blocks its caller; what it reports is printed from a thread of its own.

#ifndef PENSTOCK_CLI_TRAINER_H_
#define PENSTOCK_CLI_TRAINER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/checkpoints.h"
#include "cli/environment.h"
#include "cli/feeds.h"
#include "cli/interrupts.h"
#include "cli/job.h"
#include "cli/progress.h"
#include "cli/run_report.h"

#include "actors/session/run_steps.h"
#include "actors/session/session.h"
#include "actors/trace/trace.h"
#include "base/device.h"

namespace penstock::cli {

// The states of a session before a step, kept by its processes. Null: as they are at the start.
struct Snapshot {
  int64_t step = 0;
  std::shared_ptr<const actors::KeptStates> states;
};

struct TrainerOptions {
  bool is_json = false;
  Snapshot start;                      // what the session begins with
  Checkpoints* checkpoints = nullptr;  // null: none are written
  std::string dump;                    // folder for feeds and losses; empty: none
  // The loss on held-out text of the session's parameters; null: not measured between steps.
  // Called while no step is under way.
  std::function<absl::StatusOr<double>(const actors::Session&)> validate;
  // Frees memory that the steps do not need, such as that of a session that validates between them;
  // whether there was any. Null: there is none.
  std::function<bool()> release_memory;
  // Told of each step, on the thread that reports it; must not block.
  std::function<void(int64_t steps_done, double loss, double step_s)> on_step;
  // The same of what its devices report; returns what to tell the user of that. Null: nothing.
  std::function<std::string(const std::vector<actors::DeviceStepReport>& devices)> watch_devices;
  // Between two snapshots of the states, taken while no step is under way; 0: none are taken. Where
  // there is no memory for another one, the last one stays.
  double snapshot_seconds = 0;
};

class Trainer : private actors::Source, private actors::Sink {
 public:
  // The arguments outlive the trainer.
  Trainer(const Environment& environment, const TrainerOptions& options, const Job& job,
          actors::Session& session, const StepFeeds& feeds, const Interrupts& interrupts);

  // Runs the steps from options.start.step to the job's last one. Fills the summary's losses and
  // times, of the steps that ran where it ends early. kCancelled after an interrupt. Where the job
  // stops on losses that are not finite: kAborted, and has_nonfinite_loss() says so. No step is
  // under way when it returns, unless the session failed.
  absl::Status Run(RunSummary* summary);

  bool has_nonfinite_loss() const { return has_nonfinite_loss_; }
  // Steps of the training so far, with those before this run.
  int64_t num_steps() const { return options_.start.step + static_cast<int64_t>(losses_.size()); }
  // The last one taken before losses stopped being finite.
  const Snapshot& snapshot() const { return snapshot_; }
  // What the last step took; begin == end without one.
  const actors::StepWindow& last_step() const { return last_step_; }
  // What the steps took, in order, beginning with the first one of the run.
  const std::vector<actors::StepWindow>& step_windows() const { return step_windows_; }

 private:
  absl::StatusOr<actors::Feeds> Get(int64_t step) override;
  absl::Status Take(int64_t step, const actors::StepResult& result) override;
  absl::Status RunSteps();
  // The step before which the run pauses next, at the latest the end.
  int64_t NextPause() const;
  absl::Status Validate();
  // A copy of all states, if need be at the cost of memory that the steps do not need.
  absl::StatusOr<std::shared_ptr<const actors::KeptStates>> KeepStates();
  absl::Status TakeSnapshot();
  absl::Status SaveCheckpoint();
  void ReportCheckpoints();
  // Whether the loss on held-out text is measured after this step, before the next one.
  bool IsEvaluatedAfter(int64_t step) const;
  void Report(int64_t step, const actors::StepResult& result);
  bool IsLogged(int64_t step) const;
  // The JSON line of the last step, without its end.
  void PrintHeldLine(double validation_loss);

  const Environment& environment_;
  const TrainerOptions& options_;
  const Job& job_;
  actors::Session& session_;
  const StepFeeds& feeds_;
  const Interrupts& interrupts_;
  Progress progress_;
  SteadyClock clock_;
  int64_t last_snapshot_ns_ = 0;
  int64_t last_snapshot_step_;
  std::atomic<bool> wants_snapshot_{false};  // set by the source, which then ends the run of steps
  Snapshot snapshot_;
  int64_t begin_ns_ = 0;
  int64_t last_ns_ = 0;
  actors::StepWindow last_step_;
  std::vector<actors::StepWindow> step_windows_;
  bool has_nonfinite_loss_ = false;
  RunSummary* summary_ = nullptr;
  std::string held_line_;
  std::vector<double> losses_;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_TRAINER_H_
