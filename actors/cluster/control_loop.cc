#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include <kj/debug.h>

#include "actors/cluster/control_loop_internal.h"
#include "base/await.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/time_slice.h"

namespace penstock::actors::control {
namespace {

// An expensive event is one of a handshake, of which there may be many (turn_queue_internal.h):
// what has come meanwhile waits for a few.
constexpr kj::uint kEventsPerPoll = 32;
// Limit of the text of a peer's error.
constexpr size_t kMaxErrorBytes = size_t{16} << 10;
// How long Await waits beyond its timeout, because the loop may be busy.
constexpr absl::Duration kSlack = absl::Seconds(5);

}  // namespace

absl::StatusOr<std::unique_ptr<ControlLoop>> ControlLoop::Start() {
  std::unique_ptr<ControlLoop> loop(new ControlLoop);
  loop->event_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (loop->event_fd_ < 0) {
    return absl::ResourceExhaustedError(StrCat("eventfd: ", strerror(errno)));
  }
  ASSIGN_OR_RETURN(loop->thread_,
                   StartThread("the control plane", [self = loop.get()] { self->Main(); }));
  return loop;
}

ControlLoop::~ControlLoop() {
  Stop();
  if (event_fd_ >= 0) close(event_fd_);
}

void ControlLoop::Stop() {
  if (!thread_.joinable()) return;
  {
    const absl::MutexLock lock(&mutex_);
    is_stopping_ = true;
  }
  (void)eventfd_write(event_fd_, 1);
  thread_.join();
}

bool ControlLoop::TryPost(std::function<void()> work) {
  {
    const absl::MutexLock lock(&mutex_);
    if (is_stopping_) return false;
    posted_.push_back(std::move(work));
    if (posted_.size() > 1) return true;  // the loop has been woken already
  }
  (void)eventfd_write(event_fd_, 1);
  return true;
}

absl::Status ControlLoop::AwaitStatus(std::function<StatusPromise()> begin, absl::Duration timeout,
                                      std::string_view what) {
  timeout = std::min(timeout, absl::Hours(24 * 365));  // within the range of kj's clock
  struct Shared {
    absl::Mutex mutex;
    bool is_done ABSL_GUARDED_BY(mutex) = false;
    absl::Status status ABSL_GUARDED_BY(mutex);
    bool IsDone() {
      const absl::MutexLock lock(&mutex);
      return is_done;
    }
    void Set(absl::Status result) {
      const absl::MutexLock lock(&mutex);
      if (is_done) return;
      is_done = true;
      status = std::move(result);
    }
  };
  const auto shared = std::make_shared<Shared>();
  const auto deadline_exceeded = [what, timeout] {
    return absl::DeadlineExceededError(
        StrCat(what, " did not come to an end in ", absl::FormatDuration(timeout)));
  };
  const auto run = [this, shared, begin = std::move(begin), timeout, late = deadline_exceeded()] {
    // The caller has given up, and objects that `begin` refers to may have been destroyed.
    if (shared->IsDone()) return;
    StatusPromise work = kj::evalNow([&begin] { return begin(); });
    const kj::Duration bound = absl::ToInt64Milliseconds(timeout) * kj::MILLISECONDS;
    // A join destroys the promise that lost before it continues with the other. Work that times out
    // is therefore cancelled before the caller learns of it and destroys what the work refers to.
    work.then([shared](absl::Status&& status) { shared->Set(std::move(status)); })
        .exclusiveJoin(timer().afterDelay(bound).then([shared, late] { shared->Set(late); }))
        .detach(
            [shared](const kj::Exception& exception) { shared->Set(FromException(exception)); });
  };
  if (!TryPost(run)) {
    return absl::CancelledError(StrCat(what, ": the loop of the control plane has ended"));
  }
  Shared& state = *shared;
  const absl::MutexLock lock(&state.mutex);
  const absl::Condition is_done(&state.is_done);
  // The second wait is for a process that was suspended during the first: its loop can still run.
  if (AwaitFor(is_done, timeout + kSlack, &state.mutex) ||
      AwaitFor(is_done, kSlack, &state.mutex)) {
    return state.status;
  }
  state.is_done = true;
  return deadline_exceeded();
}

void ControlLoop::RunPosted() {
  std::vector<std::function<void()>> work;
  {
    const absl::MutexLock lock(&mutex_);
    work.swap(posted_);
  }
  for (const std::function<void()>& run : work) {
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&run] { run(); })) {
      KJ_LOG(ERROR, "the control loop", *exception);
    }
  }
}

void ControlLoop::Main() {
  pthread_setname_np(pthread_self(), "control");  // for `top`, and bench/tls_cost
  // The devices of a step wait for its submission, on the cores that this thread wants.
  RequestShortSlices();
  // Writing to a closed connection must fail with an error and not raise a signal.
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  kj::AsyncIoContext io = kj::setupAsyncIo();
  // A peer that sends without pause must not starve the others.
  io.waitScope.setBusyPollInterval(kEventsPerPoll);
  io_ = &io;
  kj::UnixEventPort::FdObserver observer(io.unixEventPort, event_fd_,
                                         kj::UnixEventPort::FdObserver::OBSERVE_READ);
  while (true) {
    eventfd_t ignored = 0;
    (void)eventfd_read(event_fd_, &ignored);
    RunPosted();
    {
      const absl::MutexLock lock(&mutex_);
      if (is_stopping_ && posted_.empty()) break;
    }
    observer.whenBecomesReadable().wait(io.waitScope);
  }
  io_ = nullptr;
}

kj::Duration ToKj(absl::Duration duration) {
  return std::clamp<int64_t>(absl::ToInt64Milliseconds(duration), 0, int64_t{1} << 40) *
         kj::MILLISECONDS;
}

std::string SystemReason(const kj::Exception& exception) {
  const std::string_view text(exception.getDescription().begin(),
                              std::min(exception.getDescription().size(), kMaxErrorBytes));
  // Extracts "Connection refused" from "connect(fd, addr, size): Connection refused; toString() =
  // 127.0.0.1:99".
  const size_t call_end = text.find("): ");
  std::string_view reason = call_end == std::string_view::npos ? text : text.substr(call_end + 3);
  reason = reason.substr(0, reason.find("; "));
  // Some messages are sentences.
  if (!reason.empty() && reason.back() == '.') reason.remove_suffix(1);
  return std::string(reason);
}

}  // namespace penstock::actors::control
