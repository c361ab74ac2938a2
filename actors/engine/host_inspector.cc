#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/time/clock.h"

#include "actors/engine/host_inspector_internal.h"
#include "actors/engine/host_messages_internal.h"
#include "base/machine.h"
#include "base/status_macros.h"

namespace penstock::actors {
namespace {

class HostInspection final : public Inspection {
 public:
  explicit HostInspection(size_t num_devices)
      : replies_(std::make_shared<ReplyCollector<DeviceSnapshot>>(num_devices)) {}

  const std::shared_ptr<ReplyCollector<DeviceSnapshot>>& replies() const { return replies_; }
  void Add(DeviceSnapshot snapshot) { first_.push_back(std::move(snapshot)); }

  bool IsComplete() override { return replies_->IsComplete(); }

  std::vector<DeviceSnapshot> Take(absl::Duration timeout) override {
    std::vector<DeviceSnapshot> snapshots = first_;
    std::vector<std::optional<DeviceSnapshot>> received = replies_->Wait(timeout);
    for (size_t i = 0; i < received.size(); ++i) {
      if (received[i].has_value()) snapshots[i] = *std::move(received[i]);
    }
    return snapshots;
  }

 private:
  std::vector<DeviceSnapshot> first_;
  const std::shared_ptr<ReplyCollector<DeviceSnapshot>> replies_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Inspection>> HostInspector::Begin() {
  const absl::MutexLock lock(&mutex_);
  if (activity_ == nullptr) return absl::FailedPreconditionError("the session has ended");
  auto inspection = std::make_shared<HostInspection>(executors_.size());
  for (size_t i = 0; i < executors_.size(); ++i) {
    DeviceSnapshot snapshot = activity_->executors[i]->Snapshot();
    if (snapshot.state == DeviceSnapshot::State::kWaiting) {
      caf::anon_send(executors_[i], InspectMessage{inspection->replies()});
    } else {
      inspection->replies()->Set(i, snapshot);
    }
    inspection->Add(std::move(snapshot));
  }
  return inspection;
}

absl::StatusOr<EngineSnapshot> HostInspector::Inspect(absl::Duration timeout) {
  // A device that was asked while it waited may have begun a long kernel before it could answer:
  // asked again, it is seen to compute.
  absl::Duration patience = absl::Milliseconds(100);  // longer each time, for slow devices
  const absl::Time deadline = absl::Now() + timeout;
  EngineSnapshot snapshot;
  for (bool is_complete = false; !is_complete;) {
    ASSIGN_OR_RETURN(const std::shared_ptr<Inspection> inspection, Begin());
    const absl::Duration left = deadline - absl::Now();
    snapshot.devices = inspection->Take(std::clamp(left, absl::ZeroDuration(), patience));
    is_complete = inspection->IsComplete() || left <= patience;
    patience *= 2;
  }
  snapshot.processes.push_back({.pid = getpid(),
                                .host = HostName(),
                                .resident_bytes = ResidentBytes(),
                                .first_device = first_device_,
                                .num_devices = static_cast<uint32_t>(snapshot.devices.size())});
  return snapshot;
}

void HostInspector::Close() {
  const absl::MutexLock lock(&mutex_);
  activity_ = nullptr;
  executors_.clear();
}

}  // namespace penstock::actors
