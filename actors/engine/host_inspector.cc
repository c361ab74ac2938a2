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

// How often a device that has not answered is looked at.
constexpr absl::Duration kLookInterval = absl::Milliseconds(10);

// Looks again at devices that do not answer: one that was asked while it waited may have begun a
// long kernel before it could answer.
class HostInspection final : public Inspection {
 public:
  HostInspection(std::shared_ptr<HostInspector> inspector, size_t num_devices)
      : inspector_(std::move(inspector)),
        replies_(std::make_shared<ReplyCollector<DeviceSnapshot>>(num_devices)) {}

  const std::shared_ptr<ReplyCollector<DeviceSnapshot>>& replies() const { return replies_; }
  void Add(DeviceSnapshot snapshot) { seen_.push_back(std::move(snapshot)); }

  bool IsComplete() override {
    LookAgain(replies_->Wait(absl::ZeroDuration()));
    return has_ended_ || replies_->IsComplete();
  }

  std::vector<DeviceSnapshot> Take(absl::Duration timeout) override {
    const absl::Time deadline = absl::Now() + timeout;
    while (!IsComplete() && absl::Now() < deadline) {
      (void)replies_->Wait(std::min(deadline - absl::Now(), kLookInterval));
    }
    std::vector<DeviceSnapshot> snapshots = seen_;
    std::vector<std::optional<DeviceSnapshot>> received = replies_->Wait(absl::ZeroDuration());
    for (size_t i = 0; i < received.size(); ++i) {
      if (received[i].has_value()) snapshots[i] = *std::move(received[i]);
    }
    return snapshots;
  }

 private:
  void LookAgain(const std::vector<std::optional<DeviceSnapshot>>& received) {
    for (size_t i = 0; i < received.size(); ++i) {
      if (received[i].has_value()) continue;
      std::optional<DeviceSnapshot> snapshot = inspector_->Look(i);
      if (!snapshot.has_value()) {
        has_ended_ = true;
        return;
      }
      seen_[i] = *snapshot;
      if (snapshot->state != DeviceSnapshot::State::kWaiting) {
        replies_->Set(i, *std::move(snapshot));
      }
    }
  }

  const std::shared_ptr<HostInspector> inspector_;
  const std::shared_ptr<ReplyCollector<DeviceSnapshot>> replies_;
  std::vector<DeviceSnapshot> seen_;  // the last time that each was looked at
  bool has_ended_ = false;            // the session: nobody answers any more
};

}  // namespace

std::optional<DeviceSnapshot> HostInspector::Look(size_t index) {
  const absl::MutexLock lock(&mutex_);
  if (executors_.empty()) return std::nullopt;
  return executors_[index]->Snapshot();
}

absl::StatusOr<std::shared_ptr<Inspection>> HostInspector::Begin() {
  const absl::MutexLock lock(&mutex_);
  if (executors_.empty()) return absl::FailedPreconditionError("the session has ended");
  auto inspection = std::make_shared<HostInspection>(shared_from_this(), executors_.size());
  for (size_t i = 0; i < executors_.size(); ++i) {
    DeviceSnapshot snapshot = executors_[i]->Snapshot();
    if (snapshot.state == DeviceSnapshot::State::kWaiting) {
      caf::anon_send(actors_[i], InspectMessage{inspection->replies()});
    } else {
      inspection->replies()->Set(i, snapshot);
    }
    inspection->Add(std::move(snapshot));
  }
  return inspection;
}

absl::StatusOr<EngineSnapshot> HostInspector::Inspect(absl::Duration timeout) {
  const uint64_t resident_bytes = ResidentBytes();  // before what may take long
  ASSIGN_OR_RETURN(const std::shared_ptr<Inspection> inspection, Begin());
  EngineSnapshot snapshot;
  snapshot.devices = inspection->Take(timeout);
  snapshot.processes.push_back({.pid = getpid(),
                                .host = HostName(),
                                .resident_bytes = resident_bytes,
                                .first_device = first_device_,
                                .num_devices = static_cast<uint32_t>(snapshot.devices.size())});
  return snapshot;
}

void HostInspector::Close() {
  const absl::MutexLock lock(&mutex_);
  actors_.clear();
  executors_.clear();
}

}  // namespace penstock::actors
