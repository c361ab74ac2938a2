#include "cli/job_monitor.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "cli/status_sockets.h"

#include "actors/cluster/job_key.h"
#include "base/device.h"
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
  metrics_ = std::make_unique<Metrics>([this] { return LookForMetrics(); });
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
    std::vector<Followed> next;
    for (const actors::Session* session : sessions) {
      std::shared_ptr<actors::Inspector> inspector = session->inspector();
      const uint64_t number = NumberOf(inspector);
      next.push_back({number, &session->plan(), std::move(inspector)});
    }
    for (const Followed& followed : followed_) {
      const bool goes_on = std::any_of(next.begin(), next.end(), [&](const Followed& other) {
        return other.number == followed.number;
      });
      // What it did since the last look would be lost. Only metrics tell of it.
      if (!goes_on && metrics_ != nullptr) (void)Inspect(followed);
    }
    followed_ = std::move(next);
  }
  SetActivity(std::move(activity));
}

uint64_t JobMonitor::NumberOf(const std::shared_ptr<actors::Inspector>& inspector) {
  std::erase_if(known_, [this](const Known& known) {
    if (!known.inspector.expired()) return false;
    const absl::MutexLock lock(&totals_mutex_);
    totals_.End(known.number);
    return true;
  });
  for (const Known& known : known_) {
    if (known.inspector.lock() == inspector) return known.number;
  }
  known_.push_back({++num_sessions_, inspector});
  return num_sessions_;
}

absl::StatusOr<actors::EngineSnapshot> JobMonitor::Inspect(const Followed& followed) {
  absl::StatusOr<actors::EngineSnapshot> snapshot = followed.inspector->Inspect(kLookTimeout);
  if (!snapshot.ok()) return snapshot;
  const absl::MutexLock lock(&totals_mutex_);
  totals_.Add(followed.number, *followed.plan, snapshot->devices, SteadyClock().NowNs());
  return snapshot;
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

absl::StatusOr<JobMetrics> JobMonitor::LookForMetrics() {
  JobMetrics metrics;
  bool is_idle = false;
  metrics.status = LookOnce(&is_idle);
  const absl::MutexLock lock(&totals_mutex_);
  metrics.devices = totals_.Read(SteadyClock().NowNs(), is_idle);
  return metrics;
}

absl::StatusOr<actors::JobStatus> JobMonitor::Look() {
  bool is_idle = false;
  return LookOnce(&is_idle);
}

actors::JobStatus JobMonitor::LookOnce(bool* is_idle) {
  actors::JobStatus status;
  const absl::ReaderMutexLock sessions_lock(&sessions_mutex_);
  {
    const absl::MutexLock lock(&mutex_);
    status = status_;
  }
  status.age_s = absl::ToDoubleSeconds(absl::Now() - begin_);
  *is_idle = followed_.empty();
  if (*is_idle) {
    status.note = StrCat("the job is ", status.activity, ": no devices run its steps now");
    return status;
  }
  const Followed* chosen = nullptr;
  actors::EngineSnapshot shown;
  for (const Followed& followed : followed_) {
    absl::StatusOr<actors::EngineSnapshot> snapshot = Inspect(followed);
    if (!snapshot.ok()) {
      status.note = std::string(ToStd(snapshot.status().message()));
    } else if (chosen == nullptr || NumBusy(*snapshot) > NumBusy(shown)) {
      chosen = &followed;
      shown = *std::move(snapshot);
    }
  }
  if (chosen == nullptr) return status;
  status.note.clear();
  status.session = chosen->number;
  actors::AddDevices(*chosen->plan, std::move(shown), &status);
  return status;
}

}  // namespace penstock::cli
