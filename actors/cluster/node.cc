#include "actors/cluster/node.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/job_key.h"
#include "actors/cluster/network_interface.h"
#include "actors/cluster/node_agent_internal.h"
#include "actors/cluster/secure_channel_internal.h"
#include "actors/cluster/socket_address.h"
#include "actors/cluster/status_port.h"
#include "actors/engine/error_origin.h"
#include "base/await.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using control::ControlLoop;

// A coordinator answers within a few seconds, also where nodes do not answer it.
constexpr absl::Duration kStatusTimeout = absl::Seconds(4);
// Between attempts to connect.
constexpr absl::Duration kConnectPause = absl::Milliseconds(100);
// Of a node whose connections are closed before it has joined: 4.5 s at least, for jobs of
// thousands of nodes.
constexpr int kMaxTries = 6;

// Between the tries of a node, so that nodes that were refused together do not come back together.
kj::Duration PauseAfter(int num_tries) {
  std::minstd_rand random(static_cast<unsigned>(getpid()) + static_cast<unsigned>(num_tries));
  const int64_t base_ms = int64_t{150} << (num_tries - 1);
  return (base_ms + static_cast<int64_t>(random()) % base_ms) * kj::MILLISECONDS;
}

// A node whose coordinator is gone has nothing to finish. It names what it has lost within 4 s, of
// which it takes 3.7 s to be sure of a silence.
constexpr absl::Duration kOrphanExitTimeout = absl::Milliseconds(150);

// Exits the process if it is not destroyed within a time after Start.
class Watchdog {
 public:
  ~Watchdog() {
    {
      const absl::MutexLock lock(&mutex_);
      is_done_ = true;
    }
    if (thread_.joinable()) thread_.join();
  }

  // `reason` is why the node ends. Again: nothing.
  void Start(absl::Duration timeout, const absl::Status& reason) {
    const absl::MutexLock lock(&mutex_);
    if (thread_.joinable() || is_done_) return;
    // Nobody else tells it where the process exits.
    const std::string message =
        reason.ok() ? "" : StrCat("penstock: ", ToStd(reason.message()), "\n");
    absl::StatusOr<std::thread> thread = StartThread("the watchdog", [this, timeout, message] {
      const absl::MutexLock thread_lock(&mutex_);
      if (AwaitFor(absl::Condition(&is_done_), timeout, &mutex_)) return;
      (void)!write(STDERR_FILENO, message.data(), message.size());
      _exit(1);
    });
    if (thread.ok()) thread_ = *std::move(thread);
  }

 private:
  absl::Mutex mutex_;
  bool is_done_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // set by Start, under mutex_
};

// Connects, and where nobody listens, again until `deadline`.
kj::Promise<kj::Own<kj::AsyncIoStream>> Connect(ControlLoop& loop, std::string coordinator,
                                                absl::Time deadline) {
  auto connected = loop.io()
                       .provider->getNetwork()
                       .parseAddress(coordinator.c_str())
                       .then([](kj::Own<kj::NetworkAddress> address) {
                         auto stream = address->connect();
                         return stream.attach(kj::mv(address));
                       });
  return connected.catch_(
      [&loop, coordinator,
       deadline](kj::Exception&& exception) -> kj::Promise<kj::Own<kj::AsyncIoStream>> {
        if (absl::Now() + kConnectPause > deadline) return kj::mv(exception);
        return loop.timer()
            .afterDelay(absl::ToInt64Milliseconds(kConnectPause) * kj::MILLISECONDS)
            .then([&loop, coordinator, deadline] { return Connect(loop, coordinator, deadline); });
      });
}

// A coordinator that thousands of nodes reach at once closes connections that it has no time for.
control::StatusPromise Greet(ControlLoop& loop, const NodeOptions& options, const std::string& key,
                             NodeAgent& agent, int num_tries) {
  return Connect(loop, options.coordinator, absl::Now() + options.connect_timeout)
      .then(
          [&loop, &options, key, &agent, num_tries](kj::Own<kj::AsyncIoStream> stream) {
            auto try_again = [&loop, &options, key, &agent,
                              num_tries](absl::Status&& joined) -> control::StatusPromise {
              if (!absl::IsAborted(joined)) return std::move(joined);
              if (num_tries == kMaxTries) return absl::PermissionDeniedError(joined.message());
              return loop.timer()
                  .afterDelay(PauseAfter(num_tries))
                  .then([&loop, &options, key, &agent, num_tries] {
                    return Greet(loop, options, key, agent, num_tries + 1);
                  });
            };
            return agent.Join(kj::mv(stream), key)
                .then(kj::mv(try_again));  // kj keeps a reference to what is not moved
          },
          [](kj::Exception&& exception) -> control::StatusPromise {
            return absl::UnavailableError(StrCat("no coordinator answers (",
                                                 control::SystemReason(exception),
                                                 "): rank 0, `penstock launch` or `penstock run "
                                                 "--listen` has to run at this address"));
          });
}

control::StatusPromise Join(ControlLoop& loop, const NodeOptions& options, const std::string& key,
                            NodeAgent& agent) {
  ASSIGN_OR_RETURN(std::shared_ptr<control::SecureChannel> channel,
                   control::NodeChannel(options.coordinator, key, EncryptionOf(options)));
  agent.SetChannel(std::move(channel));
  return Greet(loop, options, key, agent, 1);
}

// Null: there is none.
std::unique_ptr<StatusPort> OpenStatusPort(const NodeOptions& options, ControlLoop& loop,
                                           NodeAgent& agent) {
  if (options.status_socket.empty()) return nullptr;
  auto answers = std::make_shared<StatusAnswers>(
      [&loop, &agent, coordinator = agent.CoordinatorName()]() -> absl::StatusOr<JobStatus> {
        const auto status = std::make_shared<JobStatus>();
        const absl::Status asked = loop.Await([&agent, status] { return agent.AskStatus(status); },
                                              kStatusTimeout, "the answer of the coordinator");
        // Whoever asks sees by the code that it is not this process that does not answer.
        if (absl::IsDeadlineExceeded(asked)) {
          return absl::AbortedError(
              StrCat(coordinator, " has not answered this node of the job (pid ", getpid(),
                     ") for ", absl::FormatDuration(kStatusTimeout),
                     ": look whether it is stopped (kill -CONT PID continues it), "
                     "and at its host and network"));
        }
        RETURN_IF_ERROR(asked);
        return std::move(*status);
      });
  absl::StatusOr<std::unique_ptr<StatusPort>> port =
      StatusPort::Open(options.status_socket, std::move(answers));
  if (port.ok()) return *std::move(port);
  if (options.on_no_status_socket) options.on_no_status_socket(port.status());
  return nullptr;
}

// A host that has not started has no name yet in some networks.
absl::StatusOr<std::string> AwaitRoute(const NodeOptions& options) {
  const absl::Time deadline = absl::Now() + options.connect_timeout;
  while (true) {
    absl::StatusOr<std::string> interface = InterfaceOfRoute(options.coordinator);
    if (interface.ok() || absl::Now() + kConnectPause > deadline) return interface;
    absl::SleepFor(kConnectPause);
  }
}

}  // namespace

absl::Status RunNode(const NodeOptions& given_options) {
  NodeOptions options = given_options;
  if (options.kernels == nullptr || options.policies == nullptr) {
    return absl::InvalidArgumentError("a node needs kernels and policies");
  }
  if (const absl::Status address = CheckJoinAddress(options.coordinator); !address.ok()) {
    return absl::InvalidArgumentError(
        StrCat("joining the coordinator at ", ToStd(address.message()),
               "; use the address that `penstock run --listen` prints"));
  }
  if (options.insecure) RETURN_IF_ERROR(CheckIsInsecureAddress(options.coordinator));
  if (options.interfaces.empty()) {
    ASSIGN_OR_RETURN(options.interfaces, AwaitRoute(options));
  } else {
    RETURN_IF_ERROR(CheckInterfaces(options.interfaces));
  }
  ASSIGN_OR_RETURN(const std::string key, ParseJobKey(options.key));
  ASSIGN_OR_RETURN(const std::unique_ptr<ControlLoop> loop, ControlLoop::Start());
  Watchdog watchdog;
  NodeAgent agent(options, *loop, [&](const absl::Status& reason, bool is_orphan) {
    watchdog.Start(
        is_orphan ? std::min(options.exit_timeout, kOrphanExitTimeout) : options.exit_timeout,
        reason);
  });
  absl::Status status = loop->Await([&] { return Join(*loop, options, key, agent); },
                                    options.join_timeout + options.connect_timeout,
                                    StrCat("joining the coordinator at ", options.coordinator));
  if (status.ok()) {
    const std::unique_ptr<StatusPort> port = OpenStatusPort(options, *loop, agent);
    status = agent.Run();
  } else {
    status = WithPrefix(StrCat("joining the coordinator at ", options.coordinator, ": "), status);
  }
  agent.CloseSessions();
  (void)loop->Await(
      [&agent] {
        agent.Disconnect();
        return kj::Promise<void>(kj::READY_NOW);
      },
      options.exit_timeout, "the end of the connection");
  return status;
}

}  // namespace penstock::actors
