#include "cli/interrupts.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/cord.h"

#include "actors/cluster/cluster.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

constexpr int kStepGraceMs = 600'000;  // for the steps under way, as long as a step may take
constexpr int kAbortGraceMs = 4500;    // for the end of everything

}  // namespace

Interrupts::Interrupts(std::ostream& err) : err_(err) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, &before_);
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  stop_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  thread_ = std::thread([this] { Main(); });
}

Interrupts::~Interrupts() {
  (void)eventfd_write(stop_fd_, 1);
  thread_.join();
  close(signal_fd_);
  close(stop_fd_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void Interrupts::SetAbort(std::function<void()> abort) {
  const absl::MutexLock lock(&mutex_);
  abort_ = std::move(abort);
}

void Interrupts::RemoveAtExit(std::string path) {
  const absl::MutexLock lock(&mutex_);
  files_.push_back(std::move(path));
}

absl::Status Interrupts::ToStatus(std::string_view where) const {
  absl::Status status =
      absl::CancelledError(StrCat("interrupted (", strsignal(signal_), ") ", where));
  status.SetPayload(actors::kShellStatusPayload, absl::Cord(StrCat(128 + signal_)));
  return status;
}

bool Interrupts::HasAbort() {
  const absl::MutexLock lock(&mutex_);
  return abort_ != nullptr;
}

void Interrupts::Abort() {
  const absl::MutexLock lock(&mutex_);
  if (abort_) {
    abort_();
    return;
  }
  // Nothing runs yet, or no more: nodes end when this process does.
  const char message[] = "penstock: interrupted; no step was running\n";
  (void)!write(STDERR_FILENO, message, sizeof(message) - 1);
  for (const std::string& file : files_) unlink(file.c_str());
  _exit(128 + signal_);
}

void Interrupts::Main() {
  int timeout_ms = -1;
  std::thread aborting;
  while (true) {
    pollfd fds[2] = {{signal_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    const int num_ready = poll(fds, 2, timeout_ms);
    if (fds[1].revents != 0) break;
    if (num_ready == 0 && aborting.joinable()) {
      const char message[] = "penstock: the job does not end; leaving it\n";
      (void)!write(STDERR_FILENO, message, sizeof(message) - 1);
      _exit(128 + signal_);
    }
    signalfd_siginfo info;
    const bool has_signal = read(signal_fd_, &info, sizeof(info)) == sizeof(info);
    if (num_ready > 0 && !has_signal) continue;
    if (has_signal) {
      signal_ = static_cast<int>(info.ssi_signo);
      ++count_;
    }
    if (has_signal && count_ == 1 && info.ssi_signo == SIGINT && HasAbort()) {
      err_ << "\npenstock: interrupted; ending after this step (again: at once)" << std::endl;
      timeout_ms = kStepGraceMs;
    } else if (!aborting.joinable()) {
      aborting = std::thread([this] { Abort(); });
      timeout_ms = kAbortGraceMs;
    }
  }
  if (aborting.joinable()) aborting.join();
}

}  // namespace penstock::cli
