#include "cli/job_monitor.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "cli/status_sockets.h"

#include "actors/cluster/job_key.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {

namespace {

// Devices that have something to do.
size_t NumBusy(const actors::EngineSnapshot& snapshot) {
  using State = actors::DeviceSnapshot::State;
  return static_cast<size_t>(std::count_if(
      snapshot.devices.begin(), snapshot.devices.end(), [](const actors::DeviceSnapshot& device) {
        return device.state == State::kRunning || device.state == State::kWaiting;
      }));
}

}  // namespace

JobMonitor::JobMonitor(std::string name, std::string strategy, int64_t steps, int64_t steps_done)
    : begin_(absl::Now()) {
  {
    const absl::MutexLock lock(&mutex_);
    status_.id = actors::NewJobKey().value_or(StrCat(HostName(), "-", getpid())).substr(0, 16);
    status_.name = std::move(name);
    status_.strategy = std::move(strategy);
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

void JobMonitor::Open(const Environment& environment, bool is_announced) {
  absl::StatusOr<std::string> path = NewStatusSocket("run");
  absl::Status status = path.status();
  if (status.ok()) {
    absl::StatusOr<std::unique_ptr<actors::StatusPort>> port =
        actors::StatusPort::Open(*path, answers_);
    status = port.status();
    if (port.ok()) port_ = *std::move(port);
  }
  if (status.ok() && is_announced) {
    environment.err << "job " << getpid() << ": `penstock top " << getpid()
                    << "` shows what it does, `penstock stack " << getpid() << "` what it waits for"
                    << std::endl;
  } else if (!status.ok()) {
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

void JobMonitor::Follow(absl::Span<actors::Session* const> sessions, std::string activity) {
  {
    const absl::MutexLock lock(&sessions_mutex_);
    followed_.clear();
    for (const actors::Session* session : sessions) {
      followed_.push_back({&session->plan(), session->inspector()});
    }
  }
  SetActivity(std::move(activity));
}

void JobMonitor::OnCheckpoint(const actors::CheckpointResult& result) {
  if (metrics_ != nullptr) metrics_->OnCheckpoint(result);
}

void JobMonitor::OnStep(int64_t steps_done, double loss, double step_s, int64_t tokens) {
  if (metrics_ != nullptr) metrics_->OnStep(loss, step_s, tokens);
  const absl::MutexLock lock(&mutex_);
  recent_steps_.Add(step_s, tokens);
  status_.steps_done = steps_done;
  status_.step_time_s = recent_steps_.step_s();
  status_.tokens_per_s = recent_steps_.tokens_per_s();
  status_.loss = loss;
}

void JobMonitor::SetRate(int64_t steps_done, double step_s, double tokens_per_s) {
  const absl::MutexLock lock(&mutex_);
  status_.steps_done = steps_done;
  status_.step_time_s = step_s;
  status_.tokens_per_s = tokens_per_s;
}

absl::StatusOr<actors::JobStatus> JobMonitor::Look() {
  actors::JobStatus status;
  const absl::ReaderMutexLock sessions_lock(&sessions_mutex_);
  {
    const absl::MutexLock lock(&mutex_);
    status = status_;
  }
  status.age_s = absl::ToDoubleSeconds(absl::Now() - begin_);
  if (followed_.empty()) {
    status.note = StrCat("the job is ", status.activity, ": no devices run its steps now");
    return status;
  }
  const planner::Plan* plan = nullptr;
  actors::EngineSnapshot shown;
  for (const Followed& followed : followed_) {
    absl::StatusOr<actors::EngineSnapshot> snapshot = followed.inspector->Inspect(kLookTimeout);
    if (!snapshot.ok()) {
      status.note = std::string(ToStd(snapshot.status().message()));
    } else if (plan == nullptr || NumBusy(*snapshot) > NumBusy(shown)) {
      plan = followed.plan;
      shown = *std::move(snapshot);
    }
  }
  if (plan == nullptr) return status;
  status.note.clear();
  actors::AddDevices(*plan, std::move(shown), &status);
  return status;
}

}  // namespace penstock::cli
