#include "actors/engine/device_communication.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"

namespace penstock::actors {

DeviceCommunication::DeviceCommunication(transport::Endpoint* endpoint, Waker* device_waker,
                                         Waker* communication_waker)
    : endpoint_(endpoint), device_waker_(device_waker), communication_waker_(communication_waker) {
  Load({}, 0, nullptr);
}

void DeviceCommunication::Load(std::vector<Comm> comms, uint32_t generation, const Clock* clock) {
  comms_ = std::move(comms);
  generation_ = generation;
  clock_ = clock;
  running_.reserve(comms_.size());
  starts_ = std::make_unique<SpscRing<CommStart>>(comms_.size() + 1);
  completions_ = std::make_unique<SpscRing<uint32_t>>(comms_.size() + 1);
}

bool DeviceCommunication::TryOwn() {
  if (!is_owned_by_device_ && !is_about_to_sleep_) is_owned_by_device_ = TryOwn(Owner::kDevice);
  return is_owned_by_device_;
}

void DeviceCommunication::Disown() {
  owner_.store(Owner::kLeavingDevice);
  has_arrival_.store(false);
  bool has_work = false;
  if (endpoint_ != nullptr && communication_waker_ != nullptr) {
    // From here on an arrival wakes the communication executor; what came before is looked at here.
    endpoint_->PrepareSleep();
    has_work = Advance();
  }
  is_owned_by_device_ = false;
  owner_.store(Owner::kNobody);
  if (communication_waker_ != nullptr && (has_work || has_arrival_.load())) {
    communication_waker_->Notify();
  }
}

void DeviceCommunication::Start(const CommStart& start) {
  if (!TryOwn()) {
    HandOver(start);
    return;
  }
  ++num_active_;
  while (const CommStart* earlier = starts_->Front()) {
    Begin(*earlier);
    starts_->Pop();
  }
  Begin(start);
}

void DeviceCommunication::HandOver(const CommStart& start) {
  ++num_active_;
  starts_->TryPush(start);
  is_flush_due_ = true;
}

void DeviceCommunication::WakeForStarts() {
  is_flush_due_ = false;
  if (communication_waker_ != nullptr) communication_waker_->Notify();
}

void DeviceCommunication::Begin(const CommStart& start) {
  Comm& comm = comms_[start.comm];
  if (clock_ != nullptr) comm.begin_ns = clock_->NowNs();
  const transport::Tag tag = {generation_, comm.channel, start.sequence};
  switch (comm.kind) {
    case planner::ActorKind::kSend:
      endpoint_->Send(comm.peer, tag, start.inputs[0], comm.tensors[0].input_bytes, start.flags,
                      &comm.request);
      break;
    case planner::ActorKind::kRecv:
      endpoint_->Recv(comm.peer, tag, start.outputs[0], comm.tensors[0].output_bytes,
                      &comm.request);
      break;
    default:
      comm.collective->StartTensors(start.inputs, start.outputs, start.sequence, start.flags);
  }
  running_.push_back(start.comm);
}

bool DeviceCommunication::IsDone(Comm& comm) const {
  if (comm.collective == nullptr) return comm.request.is_done();
  return comm.collective->Poll() && comm.collective->Settle();
}

bool DeviceCommunication::Advance() {
  if (endpoint_ == nullptr) return false;
  has_completed_ = false;
  bool has_moved = false;
  while (const CommStart* start = starts_->Front()) {
    Begin(*start);
    starts_->Pop();
    has_moved = true;
  }
  has_moved |= endpoint_->Progress();
  for (size_t i = 0; i < running_.size();) {
    Comm& comm = comms_[running_[i]];
    if (!IsDone(comm)) {
      ++i;
      continue;
    }
    if (clock_ != nullptr) comm.end_ns = clock_->NowNs();
    completions_->TryPush(running_[i]);
    has_completed_ = true;
    running_[i] = running_.back();
    running_.pop_back();
    has_moved = true;
  }
  return has_moved;
}

bool DeviceCommunication::Serve() {
  if (!TryOwn(Owner::kCommunication)) return false;
  bool has_completed = false;
  bool has_moved = false;
  {
    const absl::Cleanup disown = [this] { owner_.store(Owner::kNobody); };
    has_moved = Advance();
    has_completed = has_completed_;
  }
  if (has_completed) device_waker_->Notify();
  return has_moved;
}

void DeviceCommunication::PrepareServerSleep() {
  if (endpoint_ == nullptr || !TryOwn(Owner::kCommunication)) return;
  const absl::Cleanup disown = [this] { owner_.store(Owner::kNobody); };
  endpoint_->PrepareSleep();
}

int DeviceCommunication::PrepareSleep() {
  is_about_to_sleep_ = true;
  if (!is_owned_by_device_) return -1;
  if (num_active_ > 0) return endpoint_->PrepareSleepOnArrivals();
  Disown();
  return -1;
}

// The arrival comes before the load, see Endpoint::SetWakeup. A device executor that is the owner
// looks once more after it has begun to leave.
void DeviceCommunication::OnArrival() {
  if (owner_.load() == Owner::kDevice) {
    device_waker_->NotifyOrdered();
    return;
  }
  has_arrival_.store(true);
  if (communication_waker_ != nullptr) communication_waker_->NotifyOrdered();
}

void DeviceCommunication::Cancel() {
  is_about_to_sleep_ = false;
  // Has no bound of its own. The communication executor is the owner within Serve and
  // PrepareServerSleep only, also where these throw, and never waits there: one Advance takes as
  // long as the messages and reductions that have just become possible.
  while (!TryOwn()) std::this_thread::yield();
  // Not running_ alone: one that had just begun may have ended with an exception.
  for (Comm& comm : comms_) {
    if (comm.collective != nullptr) {
      comm.collective->Cancel();
    } else if (comm.request.state == transport::Request::State::kPending) {
      endpoint_->Cancel(&comm.request);
    }
  }
  running_.clear();
  while (starts_->Front() != nullptr) starts_->Pop();
  num_active_ = 0;
}

}  // namespace penstock::actors
