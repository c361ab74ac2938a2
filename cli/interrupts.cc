#include "cli/interrupts.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/time/clock.h"

#include "actors/cluster/cluster.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

constexpr int kStepGraceMs = 600'000;  // for the steps under way, as long as a step may take
constexpr int kAbortGraceMs = 4500;    // for the end of everything
constexpr int kLateGraceMs = 60'000;   // for the steps under way at the end of the time limit

// For poll; -1: for ever.
int MillisecondsUntil(absl::Time time) {
  if (time == absl::InfiniteFuture()) return -1;
  const absl::Duration left = absl::Ceil(time - absl::Now(), absl::Milliseconds(1));
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(left), 0, INT_MAX));
}

}  // namespace

Interrupts::Interrupts(std::ostream& err, absl::Duration time_limit)
    : err_(err), time_limit_(time_limit), deadline_(absl::Now() + time_limit) {
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
      absl::CancelledError(signal_ == 0 ? StrCat("ended at its time limit of ",
                                                 absl::FormatDuration(time_limit_), " ", where)
                                        : StrCat("interrupted (", strsignal(signal_), ") ", where));
  status.SetPayload(actors::kShellStatusPayload, absl::Cord(StrCat(ExitStatus())));
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
  const char interrupted[] = "penstock: interrupted; no step was running\n";
  const char late[] = "penstock: the time limit is over; no step was running\n";
  const std::string_view message = signal_ == 0 ? late : interrupted;
  (void)!write(STDERR_FILENO, message.data(), message.size());
  for (const std::string& file : files_) unlink(file.c_str());
  _exit(ExitStatus());
}

// Of several bounds, the nearest is waited for.
void Interrupts::Main() {
  absl::Time bound = absl::InfiniteFuture();  // of what has begun
  bool is_late = false;
  std::thread aborting;
  const auto set_bound = [&bound](int milliseconds) {
    bound = absl::Now() + absl::Milliseconds(milliseconds);
  };
  while (true) {
    pollfd fds[2] = {{signal_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    const int num_ready =
        poll(fds, 2, MillisecondsUntil(is_late ? bound : std::min(bound, deadline_)));
    if (fds[1].revents != 0) break;
    const absl::Time now = absl::Now();
    const bool is_out_of_time = num_ready == 0 && now >= bound;
    if (is_out_of_time && aborting.joinable()) {
      const char message[] = "penstock: the job does not end; leaving it\n";
      (void)!write(STDERR_FILENO, message, sizeof(message) - 1);
      _exit(ExitStatus());
    }
    signalfd_siginfo info;
    const bool has_signal = read(signal_fd_, &info, sizeof(info)) == sizeof(info);
    if (has_signal) signal_ = static_cast<int>(info.ssi_signo);
    const bool becomes_late = !has_signal && !is_late && now >= deadline_;
    is_late = is_late || becomes_late;
    if (becomes_late && count_ > 0) continue;  // the job ends already
    if (!has_signal && !becomes_late && !is_out_of_time) continue;
    if (has_signal || becomes_late) ++count_;
    const bool lets_steps_end =
        count_ == 1 && (becomes_late || (has_signal && info.ssi_signo == SIGINT)) && HasAbort();
    if (lets_steps_end) {
      err_ << (becomes_late ? StrCat("\npenstock: the time limit of ",
                                     absl::FormatDuration(time_limit_), " is over")
                            : std::string("\npenstock: interrupted"))
           << "; ending after this step (again: at once)" << std::endl;
      set_bound(becomes_late ? kLateGraceMs : kStepGraceMs);
    } else if (!aborting.joinable()) {
      aborting = std::thread([this] { Abort(); });
      set_bound(kAbortGraceMs);
    }
  }
  if (aborting.joinable()) aborting.join();
}

}  // namespace penstock::cli
