#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include <capnp/message.h>
#include <kj/debug.h>

#include "actors/cluster/control_loop_internal.h"
#include "base/strings.h"

namespace penstock::actors::control {
namespace {

constexpr std::string_view kMagic = "PENSTCK1";
constexpr std::string_view kStatusMark = "penstock status ";
// Beyond its own timeout, for a loop that is busy.
constexpr absl::Duration kSlack = absl::Seconds(5);

capnp::ReaderOptions Limits() {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = kMaxMessageWords;
  options.nestingLimit = 16;
  return options;
}

// In a time that does not tell how much of it was right.
bool IsSame(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

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

absl::Status ControlLoop::Await(std::function<kj::Promise<void>()> begin, absl::Duration timeout,
                                std::string_view what) {
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
    kj::Promise<void> work = kj::evalNow([&begin] { return begin(); });
    const kj::Duration bound = absl::ToInt64Milliseconds(timeout) * kj::MILLISECONDS;
    work.then([shared] { shared->Set(absl::OkStatus()); })
        .exclusiveJoin(timer().afterDelay(bound).then([shared, late] { shared->Set(late); }))
        .detach(
            [shared](const kj::Exception& exception) { shared->Set(FromException(exception)); });
  });
  std::unique_lock lock(shared->mutex);
  if (!shared->changed.wait_for(lock, absl::ToChronoNanoseconds(timeout + kSlack),
                                [&shared] { return shared->is_done; })) {
    shared->is_done = true;
    return too_late();
  }
  return shared->status;
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

kj::Exception ToException(const absl::Status& status) {
  const std::string text =
      StrCat(kStatusMark, static_cast<int>(status.code()), ": ", ToStd(status.message()));
  return kj::Exception(kj::Exception::Type::FAILED, __FILE__, __LINE__,
                       kj::heapString(text.data(), text.size()));
}

absl::Status FromException(const kj::Exception& exception) {
  const std::string_view text(exception.getDescription().begin(),
                              exception.getDescription().size());
  const size_t mark = text.find(kStatusMark);
  if (mark != std::string_view::npos) {
    const std::string_view rest = text.substr(mark + kStatusMark.size());
    const size_t colon = rest.find(": ");
    int code = 0;
    if (colon != std::string_view::npos && absl::SimpleAtoi(ToAbsl(rest.substr(0, colon)), &code) &&
        code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated)) {
      return {static_cast<absl::StatusCode>(code), ToAbsl(rest.substr(colon + 2))};
    }
  }
  return exception.getType() == kj::Exception::Type::DISCONNECTED
             ? absl::UnavailableError(ToAbsl(text))
             : absl::InternalError(ToAbsl(text));
}

kj::Promise<void> SayHello(kj::AsyncIoStream& stream, std::string_view key) {
  KJ_REQUIRE(key.size() == kKeyBytes);
  auto hello = kj::heapArray<char>(kMagic.size() + kKeyBytes);
  memcpy(hello.begin(), kMagic.data(), kMagic.size());
  memcpy(hello.begin() + kMagic.size(), key.data(), kKeyBytes);
  auto answer = kj::heapArray<char>(kMagic.size());
  return stream.write(hello.begin(), hello.size())
      .attach(kj::mv(hello))
      .then([&stream, answer = answer.begin()] { return stream.read(answer, kMagic.size()); })
      .then([answer = kj::mv(answer)] {
        if (std::string_view(answer.begin(), answer.size()) != kMagic) {
          kj::throwFatalException(ToException(
              absl::PermissionDeniedError("the other side is no coordinator of this version")));
        }
      });
}

kj::Promise<bool> ReceiveHello(kj::AsyncIoStream& stream, std::string_view key) {
  auto hello = kj::heapArray<char>(kMagic.size() + kKeyBytes);
  char* bytes = hello.begin();
  return stream.read(bytes, hello.size())
      .then([&stream, key = std::string(key), hello = kj::mv(hello)]() -> kj::Promise<bool> {
        const std::string_view text(hello.begin(), hello.size());
        if (text.substr(0, kMagic.size()) != kMagic || !IsSame(text.substr(kMagic.size()), key)) {
          return false;
        }
        return stream.write(kMagic.data(), kMagic.size()).then([] { return true; });
      });
}

RpcConnection::RpcConnection(kj::Own<kj::AsyncIoStream> stream, capnp::rpc::twoparty::Side side,
                             capnp::Capability::Client bootstrap)
    : stream_(kj::mv(stream)),
      network_(*stream_, side, Limits()),
      system_(capnp::makeRpcServer(network_, kj::mv(bootstrap))),
      peer_side_(side == capnp::rpc::twoparty::Side::SERVER ? capnp::rpc::twoparty::Side::CLIENT
                                                            : capnp::rpc::twoparty::Side::SERVER) {
  system_.setFlowLimit(kFlowLimitWords);
}

capnp::Capability::Client RpcConnection::Bootstrap() {
  capnp::MallocMessageBuilder message(8);
  auto id = message.initRoot<capnp::rpc::twoparty::VatId>();
  id.setSide(peer_side_);
  return system_.bootstrap(id);
}

}  // namespace penstock::actors::control
