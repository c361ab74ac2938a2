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

#include "actors/cluster/cluster.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

constexpr int kStepGraceMs = 600'000;  // for the steps under way, as long as a step may take
constexpr int kCancelGraceMs = 6000;   // for what was being started
constexpr int kAbortGraceMs = 4500;    // for the end of everything
constexpr int kLateGraceMs = 60'000;   // for the steps under way at the end of the time limit

// For poll; -1: for ever.
int MillisecondsUntil(absl::Time time) {
  if (time == absl::InfiniteFuture()) return -1;
  const absl::Duration left = absl::Ceil(time - absl::Now(), absl::Milliseconds(1));
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(left), 0, INT_MAX));
}

void ExitBySignal(int signal) { _exit(128 + signal); }

}  // namespace

Interrupts::Interrupts(std::ostream& err) : err_(err) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  struct sigaction on_hangup {};
  sigaction(SIGHUP, nullptr, &on_hangup);
  if (on_hangup.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);  // not under nohup
  pthread_sigmask(SIG_BLOCK, &signals, &before_);
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  thread_ = std::thread([this] { Main(); });
}

Interrupts::~Interrupts() {
  is_stopping_ = true;
  (void)eventfd_write(wake_fd_, 1);
  thread_.join();
  close(signal_fd_);
  close(wake_fd_);
  // A second signal may arrive while the process ends after the first one. With the default
  // disposition it would kill the process, which could then not exit with its status.
  if (count_ > 0) {
    (void)signal(SIGINT, ExitBySignal);
    (void)signal(SIGTERM, ExitBySignal);
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void Interrupts::SetTimeLimit(absl::Duration time_limit) {
  {
    const absl::MutexLock lock(&limit_mutex_);
    time_limit_ = time_limit;
  }
  (void)eventfd_write(wake_fd_, 1);
}

absl::Duration Interrupts::time_limit() const {
  const absl::MutexLock lock(&limit_mutex_);
  return time_limit_;
}

void Interrupts::SetActivity(std::string where) {
  const absl::MutexLock lock(&mutex_);
  where_ = std::move(where);
}

void Interrupts::SetStart(std::optional<Start> start) {
  const absl::MutexLock lock(&start_mutex_);
  start_ = std::move(start);
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
                                                 absl::FormatDuration(time_limit()), " ", where)
                                        : StrCat("interrupted (", strsignal(signal_), ") ", where));
  status.SetPayload(actors::kShellStatusPayload, absl::Cord(StrCat(ExitStatus())));
  return status;
}

bool Interrupts::HasAbort() {
  const absl::MutexLock lock(&mutex_);
  return abort_ != nullptr;
}

bool Interrupts::HasStart() {
  const absl::MutexLock lock(&start_mutex_);
  return start_.has_value();
}

void Interrupts::Cancel() {
  const absl::MutexLock lock(&start_mutex_);
  if (!start_.has_value()) return;  // it is done
  start_->cancel(ToStatus(StrCat(start_->where, start_->describe_missing())));
}

void Interrupts::Abort() {
  {
    const absl::MutexLock lock(&start_mutex_);
    if (start_.has_value()) return start_->kill();
  }
  const absl::MutexLock lock(&mutex_);
  if (abort_) {
    abort_();
    return;
  }
  const std::string message = StrCat("penstock: ", ToStd(ToStatus(where_).message()), "\n");
  (void)!write(STDERR_FILENO, message.data(), message.size());
  for (const std::string& file : files_) unlink(file.c_str());
  _exit(ExitStatus());
}

// The nodes of a job that runs say that they have lost this process.
void Interrupts::EndByHangup() {
  {
    const absl::MutexLock lock(&mutex_);
    for (const std::string& file : files_) unlink(file.c_str());
  }
  (void)signal(SIGHUP, SIG_DFL);
  sigset_t hangup;
  sigemptyset(&hangup);
  sigaddset(&hangup, SIGHUP);
  pthread_sigmask(SIG_UNBLOCK, &hangup, nullptr);
  (void)raise(SIGHUP);
  _exit(ExitStatus());
}

// Of several bounds, the nearest is waited for.
void Interrupts::Main() {
  absl::Time bound = absl::InfiniteFuture();  // of what has begun
  bool is_late = false;
  Stage stage = Stage::kNone;
  std::vector<std::thread> calls;
  const auto begin = [&](Stage next, int bound_ms) {
    stage = next;
    bound = absl::Now() + absl::Milliseconds(bound_ms);
  };
  while (true) {
    pollfd fds[2] = {{signal_fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
    const absl::Time deadline = begin_ + time_limit();
    const int num_ready =
        poll(fds, 2, MillisecondsUntil(is_late ? bound : std::min(bound, deadline)));
    eventfd_t ignored = 0;
    (void)eventfd_read(wake_fd_, &ignored);
    if (is_stopping_) break;
    const absl::Time now = absl::Now();
    const bool is_out_of_time = num_ready == 0 && now >= bound;
    if (is_out_of_time && stage == Stage::kAborting) {
      const char message[] = "penstock: the job does not end; leaving it\n";
      (void)!write(STDERR_FILENO, message, sizeof(message) - 1);
      _exit(ExitStatus());
    }
    signalfd_siginfo info;
    const bool has_signal = read(signal_fd_, &info, sizeof(info)) == sizeof(info);
    if (has_signal) signal_ = static_cast<int>(info.ssi_signo);
    const bool becomes_late = !has_signal && !is_late && now >= deadline;
    is_late = is_late || becomes_late;
    if (becomes_late && count_ > 0) continue;  // the job ends already
    if (!has_signal && !becomes_late && !is_out_of_time) continue;
    // A call of the abort function holds its mutex, and has a bound of its own.
    const bool is_hangup = has_signal && info.ssi_signo == SIGHUP;
    if (is_hangup && stage != Stage::kAborting && HasAbort()) EndByHangup();
    if (has_signal || becomes_late) ++count_;
    const bool is_first = count_ == 1 && !is_out_of_time;
    const bool is_gentle = becomes_late || (has_signal && info.ssi_signo == SIGINT);
    const std::string what =
        becomes_late ? StrCat("the time limit of ", absl::FormatDuration(time_limit()), " is over")
                     : std::string("interrupted");
    if (is_first && HasStart()) {
      err_ << StrCat("\npenstock: ", what, "; ending what was started (again: at once)\n")
           << std::flush;
      calls.emplace_back([this] { Cancel(); });
      begin(Stage::kCancelling, kCancelGraceMs);
    } else if (is_first && is_gentle && HasAbort()) {
      err_ << StrCat("\npenstock: ", what, "; ending after the steps under way (again: at once)\n")
           << std::flush;
      begin(Stage::kEndingSteps, becomes_late ? kLateGraceMs : kStepGraceMs);
    } else if (stage != Stage::kAborting) {
      calls.emplace_back([this] { Abort(); });
      begin(Stage::kAborting, kAbortGraceMs);
    }
  }
  for (std::thread& call : calls) call.join();
}

}  // namespace penstock::cli
