#include "actors/cluster/status_port.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include <kj/debug.h>

#include "actors/cluster/connection_internal.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/peer_user_internal.h"
#include "actors/cluster/questions_internal.h"
#include "actors/cluster/wire_job_status_internal.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

constexpr kj::Duration kStatusAcceptPause = 100 * kj::MILLISECONDS;
constexpr absl::Duration kOpenTimeout = absl::Seconds(5);

class MonitorServer final : public control::Monitor::Server {
 public:
  explicit MonitorServer(control::Questions<JobStatus>& questions) : questions_(questions) {}
  kj::Promise<void> status(StatusContext context) override {
    return control::AnswerStatus(questions_.Ask(), context);
  }

 private:
  control::Questions<JobStatus>& questions_;
};

}  // namespace

class StatusPort::Impl final : public kj::TaskSet::ErrorHandler {
 public:
  Impl(std::string path, std::shared_ptr<StatusAnswers> answers)
      : path_(std::move(path)), answers_(std::move(answers)) {}

  ~Impl() {
    if (loop_ == nullptr) return;
    (void)loop_->Await(
        [this]() -> kj::Promise<void> {
          accepting_ = nullptr;
          receiver_ = nullptr;
          tasks_ = nullptr;
          connections_.clear();
          questions_ = nullptr;
          return kj::READY_NOW;
        },
        kOpenTimeout, "the end of the status socket");
    if (is_listening_) unlink(path_.c_str());
  }

  absl::Status Open() {
    // Cap'n Proto would not name the limit.
    if (path_.size() >= sizeof(sockaddr_un().sun_path)) {
      return absl::InvalidArgumentError(StrCat("the path of the status socket, ", path_,
                                               ", is longer than ",
                                               sizeof(sockaddr_un().sun_path) - 1, " bytes"));
    }
    ASSIGN_OR_RETURN(loop_, control::ControlLoop::Start());
    return loop_->Await([this] { return Listen(); }, kOpenTimeout, "opening the status socket");
  }

  const std::string& path() const { return path_; }

 private:
  struct Connection {
    kj::Own<control::RpcConnection> rpc;
    kj::Promise<void> watch = nullptr;
  };

  control::StatusPromise Listen() {
    tasks_ = kj::heap<kj::TaskSet>(*this);
    questions_ = kj::heap<control::Questions<JobStatus>>(*loop_, answers_);
    return loop_->io()
        .provider->getNetwork()
        .parseAddress(StrCat("unix:", path_).c_str())
        .then([this](kj::Own<kj::NetworkAddress> address) -> absl::Status {
          receiver_ = address->listen();
          is_listening_ = true;
          if (chmod(path_.c_str(), S_IRUSR | S_IWUSR) != 0) {
            return absl::InternalError(StrCat("chmod ", path_, ": ", strerror(errno)));
          }
          accepting_ = Accept().eagerlyEvaluate(
              [](const kj::Exception& exception) { KJ_LOG(ERROR, "status socket", exception); });
          return absl::OkStatus();
        })
        .catch_([this](kj::Exception&& exception) -> absl::Status {
          return absl::UnavailableError(StrCat("cannot open the status socket ", path_, ": ",
                                               control::SystemReason(exception)));
        });
  }

  kj::Promise<void> Accept() {
    return receiver_->accept()
        .then(
            [this](kj::Own<kj::AsyncIoStream> stream) -> kj::Promise<void> {
              KJ_IF_MAYBE (exception, kj::runCatchingExceptions([this, &stream] {
                             if (control::IsOfThisUser(*stream)) Serve(kj::mv(stream));
                           })) {
                KJ_LOG(ERROR, "status socket", *exception);
              }
              return kj::READY_NOW;
            },
            [this](const kj::Exception&) -> kj::Promise<void> {
              return loop_->timer().afterDelay(kStatusAcceptPause);
            })
        .then([this] { return Accept(); });
  }

  void Serve(kj::Own<kj::AsyncIoStream> stream) {
    if (connections_.size() >= kMaxStatusConnections) connections_.erase(connections_.begin());
    const uint64_t id = ++num_accepted_;
    auto connection = std::make_unique<Connection>();
    connection->rpc = kj::heap<control::RpcConnection>(
        kj::mv(stream), capnp::rpc::twoparty::Side::SERVER,
        capnp::Capability::Client(kj::heap<MonitorServer>(*questions_)), loop_->timer());
    // Not from inside of what it destroys.
    const auto leave = [this, id] {
      tasks_->add(kj::evalLater([this, id] { connections_.erase(id); }));
    };
    connection->watch = connection->rpc->OnDisconnect()
                            .exclusiveJoin(loop_->timer().afterDelay(kStatusSeconds * kj::SECONDS))
                            .then([leave] { leave(); })
                            .eagerlyEvaluate([leave](const kj::Exception&) { leave(); });
    connections_.emplace(id, std::move(connection));
  }

  void taskFailed(kj::Exception&& exception) override { KJ_LOG(ERROR, "status socket", exception); }

  const std::string path_;
  const std::shared_ptr<StatusAnswers> answers_;
  // The loop's thread's:
  bool is_listening_ = false;
  kj::Own<kj::TaskSet> tasks_;
  kj::Own<control::Questions<JobStatus>> questions_;
  std::map<uint64_t, std::unique_ptr<Connection>> connections_;  // by age
  uint64_t num_accepted_ = 0;
  kj::Own<kj::ConnectionReceiver> receiver_;
  kj::Promise<void> accepting_ = nullptr;

  std::unique_ptr<control::ControlLoop> loop_;  // last: its thread uses all of the above
};

StatusPort::StatusPort(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StatusPort::~StatusPort() = default;
const std::string& StatusPort::path() const { return impl_->path(); }

absl::StatusOr<std::unique_ptr<StatusPort>> StatusPort::Open(
    const std::string& path, std::shared_ptr<StatusAnswers> answers) {
  auto impl = std::make_unique<Impl>(path, std::move(answers));
  RETURN_IF_ERROR(impl->Open());
  return std::unique_ptr<StatusPort>(new StatusPort(std::move(impl)));
}

}  // namespace penstock::actors
