#include "actors/engine/waker.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>

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

void Waker::Sleep(int64_t timeout_ms, int other_fd) {
  if (event_fd_ < 0) timeout_ms = std::min<int64_t>(timeout_ms, 1);
  // Negative descriptors are passed over.
  std::array<pollfd, 2> entries = {{{event_fd_, POLLIN, 0}, {other_fd, POLLIN, 0}}};
  poll(entries.data(), entries.size(),
       static_cast<int>(std::clamp<int64_t>(timeout_ms, 0, 1 << 30)));
  is_sleeping_.exchange(false, std::memory_order_acq_rel);
  if (entries[0].revents != 0) Drain();
}

void Waker::EndSleep() {
  is_sleeping_.exchange(false, std::memory_order_acq_rel);
  Drain();
}

}  // namespace penstock::actors
