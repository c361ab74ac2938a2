#include "cli/job_monitor.h"

#include <unistd.h>

#include <utility>

#include "cli/status_sockets.h"

#include "actors/cluster/job_key.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {

JobMonitor::JobMonitor(const planner::Plan& plan, int64_t steps, int64_t steps_done)
    : plan_(plan), begin_(absl::Now()) {
  {
    const absl::MutexLock lock(&mutex_);
    status_.id = actors::NewJobKey().value_or(StrCat(HostName(), "-", getpid())).substr(0, 16);
    status_.name = plan.name;
    status_.strategy = plan.strategy;
    status_.host = HostName();
    status_.pid = getpid();
    status_.activity = "loading";
    status_.steps = steps;
    status_.steps_done = steps_done;
  }
  answers_ = std::make_shared<actors::StatusAnswers>([this] { return Look(); });
}

JobMonitor::~JobMonitor() {
  metrics_ = nullptr;
  answers_->Stop();
}

void JobMonitor::Open(const Environment& environment) {
  absl::StatusOr<std::string> path = NewStatusSocket("run");
  absl::Status status = path.status();
  if (status.ok()) {
    absl::StatusOr<std::unique_ptr<actors::StatusPort>> port =
        actors::StatusPort::Open(*path, answers_);
    status = port.status();
    if (port.ok()) port_ = *std::move(port);
  }
  if (status.ok()) {
    environment.err << "job " << getpid() << ": `penstock top " << getpid()
                    << "` shows what it does, `penstock stack " << getpid() << "` what it waits for"
                    << std::endl;
  } else {
    environment.err << "note: `penstock stack` and `penstock top` will not find this job: "
                    << ToStd(status.message()) << std::endl;
  }
}

absl::Status JobMonitor::ServeMetrics(const Environment& environment, const std::string& listen) {
  if (listen.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const MetricsAddress address, ParseMetricsAddress(listen));
  metrics_ = std::make_unique<Metrics>([this] { return Look(); });
  ASSIGN_OR_RETURN(const std::string url, metrics_->Serve(address));
  environment.err << "metrics: " << url << std::endl;
  return absl::OkStatus();
}

void JobMonitor::SetActivity(std::string activity) {
  const absl::MutexLock lock(&mutex_);
  status_.activity = std::move(activity);
}

void JobMonitor::Follow(std::shared_ptr<actors::Inspector> inspector) {
  const absl::MutexLock lock(&mutex_);
  inspector_ = std::move(inspector);
  status_.activity = inspector_ != nullptr ? "training" : "finishing";
}

void JobMonitor::OnCheckpoint(const actors::CheckpointResult& result) {
  if (metrics_ != nullptr) metrics_->OnCheckpoint(result);
}

void JobMonitor::OnStep(int64_t steps_done, double loss, double step_s, int64_t tokens) {
  if (metrics_ != nullptr) metrics_->OnStep(loss, step_s, tokens);
  const absl::MutexLock lock(&mutex_);
  status_.steps_done = steps_done;
  status_.loss = loss;
  status_.step_time_s = step_s;
  status_.tokens_per_s = step_s > 0 ? static_cast<double>(tokens) / step_s : 0;
}

absl::StatusOr<actors::JobStatus> JobMonitor::Look() {
  actors::JobStatus status;
  std::shared_ptr<actors::Inspector> inspector;
  {
    const absl::MutexLock lock(&mutex_);
    status = status_;
    inspector = inspector_;
  }
  status.age_s = absl::ToDoubleSeconds(absl::Now() - begin_);
  if (inspector == nullptr) {
    status.note = StrCat("the job is ", status.activity, ": no devices run its steps now");
    return status;
  }
  absl::StatusOr<actors::EngineSnapshot> snapshot = inspector->Inspect(kLookTimeout);
  if (snapshot.ok()) {
    actors::AddDevices(plan_, *std::move(snapshot), &status);
  } else {
    status.note = std::string(ToStd(snapshot.status().message()));
  }
  return status;
}

}  // namespace penstock::cli
