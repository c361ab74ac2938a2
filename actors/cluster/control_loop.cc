#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <utility>

#include <kj/debug.h>

#include "actors/cluster/control_loop_internal.h"
#include "base/strings.h"

namespace penstock::actors::control {
namespace {

constexpr kj::uint kEventsPerPoll = 256;
// Longest text of an error that is taken over from a peer.
constexpr size_t kMaxErrorBytes = size_t{16} << 10;
// Beyond its own timeout, for a loop that is busy.
constexpr absl::Duration kSlack = absl::Seconds(5);

}  // namespace

absl::StatusOr<std::unique_ptr<ControlLoop>> ControlLoop::Start() {
  std::unique_ptr<ControlLoop> loop(new ControlLoop);
  loop->event_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (loop->event_fd_ < 0) {
    return absl::ResourceExhaustedError(StrCat("eventfd: ", strerror(errno)));
  }
  loop->thread_ = std::thread([self = loop.get()] { self->Main(); });
  return loop;
}

ControlLoop::~ControlLoop() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    (void)eventfd_write(event_fd_, 1);
    thread_.join();
  }
  if (event_fd_ >= 0) close(event_fd_);
}

void ControlLoop::Post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (is_stopping_) return;
    posted_.push_back(std::move(work));
    if (posted_.size() > 1) return;  // the loop was called already
  }
  (void)eventfd_write(event_fd_, 1);
}

absl::Status ControlLoop::AwaitStatus(std::function<StatusPromise()> begin, absl::Duration timeout,
                                      std::string_view what) {
  timeout = std::min(timeout, absl::Hours(24 * 365));  // what clocks can count
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_done = false;
    absl::Status status;
    bool IsDone() {
      const std::lock_guard lock(mutex);
      return is_done;
    }
    void Set(absl::Status result) {
      const std::lock_guard lock(mutex);
      if (is_done) return;
      is_done = true;
      status = std::move(result);
      changed.notify_all();
    }
  };
  const auto shared = std::make_shared<Shared>();
  const auto too_late = [what, timeout] {
    return absl::DeadlineExceededError(
        StrCat(what, " did not come to an end in ", absl::FormatDuration(timeout)));
  };
  Post([this, shared, begin = std::move(begin), timeout, late = too_late()] {
    if (shared->IsDone()) return;  // nobody waits any more, what it refers to may be gone
    StatusPromise work = kj::evalNow([&begin] { return begin(); });
    const kj::Duration bound = absl::ToInt64Milliseconds(timeout) * kj::MILLISECONDS;
    // The loser of a join goes before what follows the winner is done: work that is too late has
    // gone when whoever waits is told, and so may what it refers to.
    work.then([shared](absl::Status&& status) { shared->Set(std::move(status)); })
        .exclusiveJoin(timer().afterDelay(bound).then([shared, late] { shared->Set(late); }))
        .detach(
            [shared](const kj::Exception& exception) { shared->Set(FromException(exception)); });
  });
  std::unique_lock lock(shared->mutex);
  const auto wait_for = [&](absl::Duration bound) {
    return shared->changed.wait_for(lock, absl::ToChronoNanoseconds(bound),
                                    [&shared] { return shared->is_done; });
  };
  // Twice: a process that was stopped meanwhile gives its loop a chance.
  if (wait_for(timeout + kSlack) || wait_for(kSlack)) return shared->status;
  shared->is_done = true;
  return too_late();
}

void ControlLoop::RunPosted() {
  std::vector<std::function<void()>> work;
  {
    const std::lock_guard lock(mutex_);
    work.swap(posted_);
  }
  for (const std::function<void()>& run : work) {
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&run] { run(); })) {
      KJ_LOG(ERROR, "the control loop", *exception);
    }
  }
}

void ControlLoop::Main() {
  // Writing to a peer that is gone is an error, not a signal.
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  kj::AsyncIoContext io = kj::setupAsyncIo();
  // A peer that always has something to say does not keep the others from being heard.
  io.waitScope.setBusyPollInterval(kEventsPerPoll);
  io_ = &io;
  kj::UnixEventPort::FdObserver observer(io.unixEventPort, event_fd_,
                                         kj::UnixEventPort::FdObserver::OBSERVE_READ);
  while (true) {
    eventfd_t ignored = 0;
    (void)eventfd_read(event_fd_, &ignored);
    RunPosted();
    {
      const std::lock_guard lock(mutex_);
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
  // "connect(fd, addr, size): Connection refused; toString() = 127.0.0.1:99": the part between.
  const size_t call_end = text.find("): ");
  std::string_view reason = call_end == std::string_view::npos ? text : text.substr(call_end + 3);
  reason = reason.substr(0, reason.find("; "));
  // A few of them are sentences.
  if (!reason.empty() && reason.back() == '.') reason.remove_suffix(1);
  return std::string(reason);
}

}  // namespace penstock::actors::control
