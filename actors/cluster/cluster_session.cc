#include <algorithm>
#include <utility>

#include "actors/cluster/cluster_session_internal.h"
#include "actors/cluster/connection_internal.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

absl::Status GetStatus(control::Status::Reader reader) {
  const uint32_t code = reader.getCode();
  const auto message = reader.getMessage();
  return absl::Status(
      code > 0 && code <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated)
          ? static_cast<absl::StatusCode>(code)
          : absl::StatusCode::kUnknown,
      absl::string_view(message.begin(), std::min(message.size(), control::kMaxTextBytes)));
}

}  // namespace

DeviceRange ClusterSession::DevicesOf(uint32_t rank) const {
  const uint64_t num_devices = plan_.devices.size();
  const auto first = static_cast<uint32_t>(rank * num_devices / num_processes_);
  const auto end = static_cast<uint32_t>((uint64_t{rank} + 1) * num_devices / num_processes_);
  return {first, end - first};
}

// What a node tells. A lie is the failure of the node that tells it.
class ClusterSession::ObserverServer final : public control::Observer::Server {
 public:
  ObserverServer(std::shared_ptr<ClusterSession> session, uint32_t rank)
      : session_(std::move(session)), rank_(rank) {}

  kj::Promise<void> stepDone(StepDoneContext context) override {
    const auto params = context.getParams();
    if (IsCurrent(params.getGeneration())) Check(session_->StepDone(rank_, params));
    return kj::READY_NOW;
  }

  kj::Promise<void> error(ErrorContext context) override {
    const auto params = context.getParams();
    if (IsCurrent(params.getGeneration())) Check(session_->Error(rank_, params));
    return kj::READY_NOW;
  }

  kj::Promise<void> failure(FailureContext context) override {
    const auto params = context.getParams();
    if (IsCurrent(params.getGeneration())) {
      session_->OnFailure(rank_, GetStatus(params.getStatus()));
    }
    return kj::READY_NOW;
  }

 private:
  bool IsCurrent(uint32_t generation) const {
    return !session_->is_over() && generation == session_->generation_;
  }

  void Check(const absl::Status& status) {
    if (status.ok()) return;
    session_->OnFailure(rank_, absl::InternalError(StrCat("sent what nobody asked for: ",
                                                          ToStd(status.message()))));
  }

  const std::shared_ptr<ClusterSession> session_;
  const uint32_t rank_;
};

void ClusterSession::Begin(const Context& context, uint32_t generation) {
  context_ = std::make_unique<Context>(context);
  generation_ = generation;
}

void ClusterSession::End() {
  observer_ = nullptr;
  held_.clear();
  steps_.clear();
}

void ClusterSession::Submit(int64_t step, const std::shared_ptr<StepBuffers>& buffers) {
  last_step_ = step;
  steps_[step] = {buffers, std::vector<bool>(num_processes_, false)};
}

control::Observer::Client ClusterSession::MakeObserver(uint32_t rank) {
  return kj::heap<ObserverServer>(shared_from_this(), rank);
}

absl::Status ClusterSession::StepDone(uint32_t rank,
                                      control::Observer::StepDoneParams::Reader params) {
  const int64_t step = params.getStep();
  const auto it = steps_.find(step);
  if (it == steps_.end() || it->second.has_reported[rank]) {
    return absl::InvalidArgumentError(StrCat("a report of step ", step));
  }
  // The sizes first: a list's elements may take no bytes in the message that names them.
  const DeviceRange devices = DevicesOf(rank);
  const auto reported = params.getReports();
  const auto fetches = params.getFetches();
  if (reported.size() != devices.count) {
    return absl::InvalidArgumentError(
        StrCat("reports of ", reported.size(), " devices where it has ", devices.count));
  }
  if (fetches.size() != fetch_tiles_.NumTiles(devices.first, devices.count)) {
    return absl::InvalidArgumentError(StrCat(fetches.size(), " pieces of results"));
  }
  std::vector<DeviceStepReport> reports;
  std::vector<bool> has_device(devices.count, false);
  for (const auto report : reported) {
    const uint32_t device = report.getDevice();
    if (!devices.Has(device) || has_device[device - devices.first]) {
      return absl::InvalidArgumentError(StrCat("a report of device ", device));
    }
    has_device[device - devices.first] = true;
    reports.push_back(
        {device, step, report.getIsPoisoned(), report.getWallNs(), report.getWaitNs()});
  }
  for (const auto tile : fetches) {
    if (!devices.Has(tile.getDevice())) {
      return absl::InvalidArgumentError("a result of another's device");
    }
    RETURN_IF_ERROR(fetch_tiles_.Write(tile.getDevice(), tile.getActor(), tile.getMicrobatch(),
                                       control::AsText(tile.getBytes()),
                                       it->second.buffers->fetches));
  }
  it->second.has_reported[rank] = true;
  const std::vector<bool>& has_reported = it->second.has_reported;
  if (std::find(has_reported.begin(), has_reported.end(), false) == has_reported.end()) {
    steps_.erase(it);
  }
  Report([this, reports = std::move(reports)] {
    for (const DeviceStepReport& report : reports) observer_->OnStepDone(report);
  });
  return absl::OkStatus();
}

absl::Status ClusterSession::Error(uint32_t rank, control::Observer::ErrorParams::Reader params) {
  const uint32_t device = params.getDevice();
  const int64_t step = params.getStep();
  if (!DevicesOf(rank).Has(device) || !steps_.contains(step)) {
    return absl::InvalidArgumentError(StrCat("an error of device ", device, ", step ", step));
  }
  const absl::Status status = GetStatus(params.getStatus());
  ReportError(status, [this, device, step, status] { observer_->OnError(device, step, status); });
  return absl::OkStatus();
}

void ClusterSession::OnFailure(uint32_t rank, const absl::Status& status) {
  if (is_over()) return;
  const absl::Status named(status.code(),
                           StrCat(context_->name_of(rank), ": ", ToStd(status.message())));
  ReportError(status, [this, named] { observer_->OnFailure(named); });
}

void ClusterSession::Fail(const absl::Status& cause) {
  EngineObserver* const observer = observer_;
  End();
  if (observer != nullptr) observer->OnFailure(cause);
}

// Passes `report` on, now or after the errors that are held.
void ClusterSession::Report(std::function<void()> report) {
  if (is_holding_) {
    held_.push_back(std::move(report));
  } else {
    report();
  }
}

void ClusterSession::ReportError(const absl::Status& status, std::function<void()> report) {
  if (is_over()) return;
  if (absl::IsUnavailable(status) && !is_holding_) {
    is_holding_ = true;
    num_held_errors_ = 0;
    context_->tasks.add(context_->timer.afterDelay(kPeerGrace).then([session = shared_from_this()] {
      session->is_holding_ = false;
      for (const std::function<void()>& held : std::exchange(session->held_, {})) {
        if (!session->is_over()) held();
      }
    }));
  }
  if (is_holding_ && ++num_held_errors_ > kMaxHeldErrors) return;
  Report(std::move(report));
}

}  // namespace penstock::actors
