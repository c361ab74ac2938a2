#include "cli/termination_grace.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <utility>

namespace penstock::cli {
namespace {

sigset_t Termination() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  return signals;
}

}  // namespace

TerminationGrace::TerminationGrace(absl::Duration grace, std::function<void()> on_signal)
    : grace_(grace), on_signal_(std::move(on_signal)) {
  const sigset_t signals = Termination();
  stop_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  if (stop_fd_ < 0 || signal_fd_ < 0) return;  // it ends at once, then
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  thread_ = std::thread([this] { Main(); });
}

TerminationGrace::~TerminationGrace() {
  if (thread_.joinable()) {
    (void)eventfd_write(stop_fd_, 1);
    thread_.join();
    const sigset_t signals = Termination();
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  }
  if (signal_fd_ >= 0) close(signal_fd_);
  if (stop_fd_ >= 0) close(stop_fd_);
}

void TerminationGrace::Main() {
  pollfd fds[2] = {{stop_fd_, POLLIN, 0}, {signal_fd_, POLLIN, 0}};
  while (poll(fds, 2, -1) < 0) {
  }
  if (fds[0].revents != 0) return;
  signalfd_siginfo info = {};
  (void)!read(signal_fd_, &info, sizeof(info));
  on_signal_();
  if (poll(fds, 1, static_cast<int>(absl::ToInt64Milliseconds(grace_))) > 0) return;
  const sigset_t signals = Termination();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  kill(getpid(), SIGTERM);
}

}  // namespace penstock::cli
