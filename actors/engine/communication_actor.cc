#include <pthread.h>

#include <chrono>
#include <utility>

#include "actors/engine/communication_actor_internal.h"
#include "base/time_slice.h"

namespace penstock::actors {

namespace {

// A sleep ends after this even if nobody calls, so that a lost wake-up costs time and not progress.
constexpr int kCommunicationSleepMs = 100;
// Without a sleep: see Transport::Wait.
constexpr std::chrono::seconds kLongestWork{1};

}  // namespace

CommunicationActor::CommunicationActor(caf::actor_config& config,
                                       std::vector<DeviceCommunication*> devices,
                                       transport::Transport* transport, Waker* waker)
    : caf::blocking_actor(config),
      devices_(std::move(devices)),
      transport_(transport),
      waker_(waker) {}

void CommunicationActor::enqueue(caf::mailbox_element_ptr element, caf::execution_unit* unit) {
  caf::blocking_actor::enqueue(std::move(element), unit);
  waker_->Notify();
}

void CommunicationActor::act() {
  pthread_setname_np(pthread_self(), name());  // for `top`, and bench/overlap
  RequestShortSlices();
  caf::behavior commands{
      [this](const caf::exit_msg& message) {
        is_stopping_ = true;
        fail_state(message.reason);
      },
  };
  auto last_wait = std::chrono::steady_clock::now();
  while (!is_stopping_) {
    if (Work(commands)) {
      // The transport counts the time limits of requests while somebody waits.
      if (const auto now = std::chrono::steady_clock::now(); now - last_wait >= kLongestWork) {
        last_wait = now;
        transport_->Wait(waker_->fd(), 0);
      }
      continue;
    }
    if (is_stopping_) continue;
    waker_->PrepareSleep();
    for (DeviceCommunication* device : devices_) device->PrepareServerSleep();
    if (Work(commands) || is_stopping_) {
      waker_->CancelSleep();
    } else {
      transport_->Wait(waker_->fd(), waker_->fd() < 0 ? 1 : kCommunicationSleepMs);
      last_wait = std::chrono::steady_clock::now();
      waker_->EndSleep();
    }
  }
}

bool CommunicationActor::Work(caf::behavior& commands) {
  bool has_moved = false;
  while (has_next_message() && !is_stopping_) {
    const caf::mailbox_element_ptr element = next_message();
    commands(element->content());
    has_moved = true;
  }
  for (DeviceCommunication* device : devices_) has_moved |= device->Serve();
  return has_moved;
}

}  // namespace penstock::actors
