#include "transport/ucx/progress_thread.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::transport::ucx {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTickMs = 1;     // while an owner polls, or may have stopped
constexpr int kDoubtMs = 100;  // while all workers are armed

// Looks in a row that find work without being able to arm, before it sleeps for a tick.
constexpr int kMaxLooks = 1000;

}  // namespace

absl::StatusOr<std::unique_ptr<ProgressThread>> ProgressThread::Start(
    std::vector<UcxEndpoint*> endpoints) {
  std::unique_ptr<ProgressThread> thread(new ProgressThread(std::move(endpoints)));
  RETURN_IF_ERROR(thread->Open());
  return thread;
}

absl::Status ProgressThread::Open() {
  watch_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (watch_fd_ < 0) return absl::ErrnoToStatus(errno, "epoll_create1");
  stop_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_fd_ < 0) return absl::ErrnoToStatus(errno, "eventfd");
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u32 = static_cast<uint32_t>(endpoints_.size());
  if (epoll_ctl(watch_fd_, EPOLL_CTL_ADD, stop_fd_, &event) != 0) {
    return absl::ErrnoToStatus(errno, "epoll_ctl");
  }
  for (uint32_t i = 0; i < endpoints_.size(); ++i) {
    RETURN_IF_ERROR(endpoints_[i]->Watch(watch_fd_, i));
  }
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(StrCat("the progress thread: ", error.what()));
  }
  return absl::OkStatus();
}

ProgressThread::~ProgressThread() {
  is_stopping_.store(true);
  if (thread_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(stop_fd_, &one, sizeof(one));
    thread_.join();
  }
  if (stop_fd_ >= 0) close(stop_fd_);
  if (watch_fd_ >= 0) close(watch_fd_);
}

void ProgressThread::Run() {
  std::array<epoll_event, 16> events;
  auto next_second = Clock::now() + std::chrono::seconds(1);
  int looks = 0;
  while (!is_stopping_.load(std::memory_order_relaxed)) {
    bool are_armed = true;
    bool is_busy = false;
    for (UcxEndpoint* endpoint : endpoints_) {
      if (!endpoint->is_armed()) is_busy |= endpoint->Tick();
      are_armed &= endpoint->is_armed();
    }
    looks = is_busy ? looks + 1 : 0;
    const bool is_hurried = is_busy && looks % kMaxLooks != 0;
    const int timeout_ms = is_hurried ? 0 : are_armed ? kDoubtMs : kTickMs;
    const int count =
        epoll_wait(watch_fd_, events.data(), static_cast<int>(events.size()), timeout_ms);
    for (int i = 0; i < count; ++i) {
      const uint32_t index = events[i].data.u32;
      if (index < endpoints_.size()) endpoints_[index]->Event();
    }
    if (count == 0 && timeout_ms == kDoubtMs) {
      for (UcxEndpoint* endpoint : endpoints_) endpoint->Doubt();
    }
    if (const auto now = Clock::now(); now >= next_second) {
      next_second = now + std::chrono::seconds(1);
      for (UcxEndpoint* endpoint : endpoints_) endpoint->Age();
    }
  }
}

}  // namespace penstock::transport::ucx
