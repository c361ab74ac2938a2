// What a running job tells of itself: to `penstock stack` and `penstock top` through its status
// socket, and to the nodes that pass their questions on.
//
// Thread rule: thread-safe.

#ifndef PENSTOCK_CLI_JOB_MONITOR_H_
#define PENSTOCK_CLI_JOB_MONITOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cli/device_totals.h"
#include "cli/environment.h"
#include "cli/metrics.h"
#include "cli/recent_steps.h"

#include "actors/cluster/job_status.h"
#include "actors/cluster/status_port.h"
#include "actors/engine/inspector.h"
#include "actors/session/session.h"
#include "planner/plan/plan.h"

namespace penstock::cli {

class JobMonitor {
 public:
  // How long a look at the devices waits for those that do not answer.
  static constexpr absl::Duration kLookTimeout = absl::Milliseconds(300);

  // What a user reads of the job. `steps` are all of it, `steps_done` those before this run.
  JobMonitor(std::string name, std::string strategy, int64_t steps, int64_t steps_done);
  ~JobMonitor();

  // Opens the status socket, and says how to ask the job if `is_announced`. Where it cannot be
  // opened the job runs without, and the user is told.
  void Open(const Environment& environment, bool is_announced);
  // Serves metrics from now on; `listen` is the job's metrics.listen, and may be empty.
  absl::Status ServeMetrics(const Environment& environment, const std::string& listen);

  // The sessions whose devices work for the job now, until the next call, and what they do:
  // "training". A look shows the one with the most devices that run or wait; without sessions,
  // none. Waits for looks under way, so that a session may end afterwards.
  void Follow(absl::Span<actors::Session* const> sessions, std::string activity);
  // What a user reads, of the same sessions.
  void SetActivity(std::string activity);
  // `step_s`: since the completion of the step before. Rates are means of the last steps.
  void OnStep(int64_t steps_done, double loss, double step_s, int64_t tokens);
  // The same of steps that have no loss and are not counted in metrics.
  void SetRate(int64_t steps_done, double step_s, double tokens_per_s);
  void OnCheckpoint(const actors::CheckpointResult& result);

  // Looks at the job.
  absl::StatusOr<actors::JobStatus> Look();
  // The same for metrics.
  absl::StatusOr<JobMetrics> LookForMetrics();

  // For the cluster of the job.
  const std::shared_ptr<actors::StatusAnswers>& answers() const { return answers_; }

 private:
  // A session that has been followed. It keeps its number until it ends, also while others are
  // followed.
  struct Known {
    uint64_t number;
    std::weak_ptr<actors::Inspector> inspector;
  };
  struct Followed {
    uint64_t number;
    const planner::Plan* plan;
    std::shared_ptr<actors::Inspector> inspector;
  };

  uint64_t NumberOf(const std::shared_ptr<actors::Inspector>& inspector)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(sessions_mutex_);
  // `is_idle`: whether no session is followed. One that does not answer is not idle: what its
  // devices do meanwhile is counted once they answer again.
  actors::JobStatus LookOnce(bool* is_idle);
  // Adds what the devices of a session have done to the totals.
  absl::StatusOr<actors::EngineSnapshot> Inspect(const Followed& followed)
      ABSL_SHARED_LOCKS_REQUIRED(sessions_mutex_);

  const absl::Time begin_;
  // Held while the devices of sessions are looked at, which keeps their plans there.
  absl::Mutex sessions_mutex_;
  std::vector<Followed> followed_ ABSL_GUARDED_BY(sessions_mutex_);
  std::vector<Known> known_ ABSL_GUARDED_BY(sessions_mutex_);
  uint64_t num_sessions_ ABSL_GUARDED_BY(sessions_mutex_) = 0;  // that were followed so far
  absl::Mutex totals_mutex_;
  DeviceTotals totals_ ABSL_GUARDED_BY(totals_mutex_);
  absl::Mutex mutex_;
  actors::JobStatus status_ ABSL_GUARDED_BY(mutex_);  // without devices
  RecentSteps recent_steps_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<actors::StatusAnswers> answers_;
  std::unique_ptr<actors::StatusPort> port_;
  std::unique_ptr<Metrics> metrics_;  // null: none are served
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_JOB_MONITOR_H_
