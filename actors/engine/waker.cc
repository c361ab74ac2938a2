#include "actors/engine/waker.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

namespace penstock::actors {

Waker::Waker() : event_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Waker::~Waker() {
  if (event_fd_ >= 0) close(event_fd_);
}

void Waker::Signal() {
  const uint64_t one = 1;
  if (event_fd_ < 0) return;
  // Cannot fail: the counter holds one signal a sleep.
  [[maybe_unused]] const ssize_t written = write(event_fd_, &one, sizeof(one));
}

void Waker::Drain() {
  uint64_t count = 0;
  if (event_fd_ < 0) return;
  // Fails only where there is nothing to drain.
  [[maybe_unused]] const ssize_t got = read(event_fd_, &count, sizeof(count));
}

void Waker::CancelSleep() {
  // A producer that was faster signals: where its signal is still to come, one later Sleep returns
  // early.
  if (!is_sleeping_.exchange(false, std::memory_order_acq_rel)) Drain();
}

void Waker::Sleep(int64_t timeout_ms) {
  if (event_fd_ < 0) timeout_ms = std::min<int64_t>(timeout_ms, 1);
  pollfd entry = {event_fd_, POLLIN, 0};
  poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(timeout_ms, 0, 1 << 30)));
  EndSleep();
}

void Waker::EndSleep() {
  is_sleeping_.exchange(false, std::memory_order_acq_rel);
  Drain();
}

}  // namespace penstock::actors
