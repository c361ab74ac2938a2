#include "transport/ucx/arrival_watch.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/status/status.h"

#include "base/status_macros.h"

namespace penstock::transport::ucx {

using Clock = std::chrono::steady_clock;

absl::StatusOr<std::unique_ptr<ArrivalWatch>> ArrivalWatch::Create(
    std::vector<UcxEndpoint*> endpoints, const UcxOptions& options) {
  std::unique_ptr<ArrivalWatch> watch(new ArrivalWatch(std::move(endpoints), options));
  RETURN_IF_ERROR(watch->Open());
  return watch;
}

absl::Status ArrivalWatch::Open() {
  last_look_ = Clock::now();
  next_second_ = last_look_ + std::chrono::seconds(1);
  watch_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (watch_fd_ < 0) return absl::ErrnoToStatus(errno, "epoll_create1");
  for (uint32_t i = 0; i < endpoints_.size(); ++i) {
    RETURN_IF_ERROR(endpoints_[i]->Watch(watch_fd_, i));
  }
  return absl::OkStatus();
}

ArrivalWatch::~ArrivalWatch() {
  if (watch_fd_ >= 0) close(watch_fd_);
}

void ArrivalWatch::Wait(int fd, int timeout_ms) {
  if (fd != other_fd_) {
    if (other_fd_ >= 0) epoll_ctl(watch_fd_, EPOLL_CTL_DEL, other_fd_, nullptr);
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.u32 = static_cast<uint32_t>(endpoints_.size());
    if (fd >= 0) epoll_ctl(watch_fd_, EPOLL_CTL_ADD, fd, &event);
    other_fd_ = fd;
  }
  // Links are looked at in time, however long the caller would wait.
  const bool is_watching_links = options_.link_timeout != std::chrono::milliseconds(0);
  constexpr int kLookIntervalMs = Peers::kLookInterval.count();
  if (is_watching_links && (timeout_ms < 0 || timeout_ms > kLookIntervalMs)) {
    timeout_ms = kLookIntervalMs;
  }
  std::array<epoll_event, 16> events;
  const int count =
      epoll_wait(watch_fd_, events.data(), static_cast<int>(events.size()), timeout_ms);
  for (int i = 0; i < count; ++i) {
    const uint32_t index = events[i].data.u32;
    if (index < endpoints_.size()) endpoints_[index]->OnArrival();
  }
  const auto now = Clock::now();
  if (now >= next_second_) {
    next_second_ = now + std::chrono::seconds(1);
    OnSecondPassed();
  }
  if (!is_watching_links) return;
  const auto elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(now - last_look_);
  if (elapsed < Peers::kLookInterval) return;
  last_look_ = now;
  // If this process was stopped, the kernel may have been as well.
  LookAtLinks(std::min(elapsed, 2 * Peers::kLookInterval));
}

void ArrivalWatch::OnSecondPassed() {
  for (UcxEndpoint* endpoint : endpoints_) {
    const absl::Status late = endpoint->OnSecondPassed();
    if (!late.ok() && options_.on_unreleased) options_.on_unreleased(late);
  }
}

void ArrivalWatch::LookAtLinks(std::chrono::milliseconds elapsed) {
  for (UcxEndpoint* endpoint : endpoints_) {
    for (const uint32_t device : endpoint->FindCutLinks(elapsed)) {
      if (options_.on_cut_link) options_.on_cut_link(device);
    }
  }
}

}  // namespace penstock::transport::ucx
