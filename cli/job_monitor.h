// What a running job tells of itself: to `penstock stack` and `penstock top` through its status
// socket, and to the nodes that pass their questions on.
//
// Thread rule: thread-safe.

#ifndef PENSTOCK_CLI_JOB_MONITOR_H_
#define PENSTOCK_CLI_JOB_MONITOR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cli/environment.h"
#include "cli/metrics.h"

#include "actors/cluster/job_status.h"
#include "actors/cluster/status_port.h"
#include "actors/engine/inspector.h"
#include "planner/plan/plan.h"

namespace penstock::cli {

class JobMonitor {
 public:
  // How long a look at the devices waits for those that do not answer.
  static constexpr absl::Duration kLookTimeout = absl::Milliseconds(300);

  // `plan` outlives the result. `steps` are those of the job, `steps_done` those before this run.
  JobMonitor(const planner::Plan& plan, int64_t steps, int64_t steps_done);
  ~JobMonitor();

  // Opens the status socket. Where that fails the job runs without, and the user is told.
  void Open(const Environment& environment);
  // Serves metrics from now on; `listen` is the job's metrics.listen, and may be empty.
  absl::Status ServeMetrics(const Environment& environment, const std::string& listen);

  // The devices of the session that trains; null: it is over.
  void Follow(std::shared_ptr<actors::Inspector> inspector);
  // What a user reads: "training".
  void SetActivity(std::string activity);
  void OnStep(int64_t steps_done, double loss, double step_s, int64_t tokens);
  void OnCheckpoint(const actors::CheckpointResult& result);

  // Looks at the job.
  absl::StatusOr<actors::JobStatus> Look();

  // For the cluster of the job.
  const std::shared_ptr<actors::StatusAnswers>& answers() const { return answers_; }

 private:
  const planner::Plan& plan_;
  const absl::Time begin_;
  absl::Mutex mutex_;
  actors::JobStatus status_ ABSL_GUARDED_BY(mutex_);  // without devices
  std::shared_ptr<actors::Inspector> inspector_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<actors::StatusAnswers> answers_;
  std::unique_ptr<actors::StatusPort> port_;
  std::unique_ptr<Metrics> metrics_;  // null: none are served
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_JOB_MONITOR_H_
