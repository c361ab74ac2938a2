#include "actors/cluster/status_client.h"

#include <utility>

#include "actors/cluster/connection_internal.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/job_key.h"
#include "actors/cluster/secure_channel_internal.h"
#include "actors/cluster/socket_address.h"
#include "actors/cluster/wire_job_status_internal.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {

class StatusClient::Impl {
 public:
  explicit Impl(std::unique_ptr<control::ControlLoop> loop) : loop_(std::move(loop)) {}

  absl::StatusOr<JobStatus> Ask(const StatusAddress& address, absl::Duration timeout) {
    std::string key;
    if (!address.key.empty()) {
      ASSIGN_OR_RETURN(key, ParseJobKey(address.key));
    }
    const auto status = std::make_shared<absl::StatusOr<JobStatus>>(JobStatus());
    RETURN_IF_ERROR(loop_->Await(
        [this, address = address.address, key, status] { return AskOnLoop(address, key, status); },
        timeout, StrCat("the answer of the job at ", address.address)));
    return std::move(*status);
  }

 private:
  control::StatusPromise AskOnLoop(const std::string& address, const std::string& key,
                                   std::shared_ptr<absl::StatusOr<JobStatus>> status) {
    return loop_->io()
        .provider->getNetwork()
        .parseAddress(address.c_str())
        .then([](kj::Own<kj::NetworkAddress> parsed) {
          auto connected = parsed->connect();
          return connected.attach(kj::mv(parsed));
        })
        .then(
            [this, address, key,
             status](kj::Own<kj::AsyncIoStream> stream) mutable -> control::StatusPromise {
              if (key.empty()) return AskOver(kj::mv(stream), std::move(status));
              ASSIGN_OR_RETURN(auto secured, Secure(address, key, kj::mv(stream)));
              return secured.then([this, key, status](kj::Own<kj::AsyncIoStream>&& to) mutable {
                kj::AsyncIoStream& greeted = *to;
                return control::SayHello(greeted, key)
                    .then([this, status, to = kj::mv(to)](absl::Status&& said) mutable {
                      if (!said.ok()) return control::StatusPromise(std::move(said));
                      return AskOver(kj::mv(to), std::move(status));
                    });
              });
            },
            [address](kj::Exception&& exception) -> control::StatusPromise {
              return absl::UnavailableError(
                  StrCat("no job answers at ", address, ": ", control::SystemReason(exception)));
            })
        .catch_([address](kj::Exception&& exception) -> absl::Status {
          if (exception.getType() != kj::Exception::Type::DISCONNECTED) {
            return control::FromException(exception);
          }
          return absl::UnavailableError(StrCat("the job at ", address,
                                               " has closed the connection: it has ended, or the "
                                               "key is not its key"));
        });
  }

  // As the control port speaks: TLS, but for unix sockets.
  static absl::StatusOr<kj::Promise<kj::Own<kj::AsyncIoStream>>> Secure(
      const std::string& address, const std::string& key, kj::Own<kj::AsyncIoStream> stream) {
    using Stream = kj::Own<kj::AsyncIoStream>;
    if (IsUnixAddress(address)) return kj::Promise<Stream>(kj::mv(stream));
    ASSIGN_OR_RETURN(std::unique_ptr<control::SecureChannel> channel,
                     control::SecureChannel::Create(key, control::ChannelSide::kNode));
    auto secured = channel->Secure(kj::mv(stream));
    return secured.attach(std::move(channel))
        .catch_([](const kj::Exception& exception) -> kj::Promise<Stream> {
          // Whoever has another key is nobody that one can talk to.
          return kj::Exception(kj::Exception::Type::DISCONNECTED, exception.getFile(),
                               exception.getLine(), kj::heapString(exception.getDescription()));
        });
  }

  control::StatusPromise AskOver(kj::Own<kj::AsyncIoStream> stream,
                                 std::shared_ptr<absl::StatusOr<JobStatus>> status) {
    auto connection = kj::heap<control::RpcConnection>(
        kj::mv(stream), capnp::rpc::twoparty::Side::CLIENT, nullptr, loop_->timer());
    auto call = connection->Bootstrap().castAs<control::Monitor>().statusRequest();
    return control::StatusOf(call.send(),
                             [status](auto&& response) {
                               *status = control::ReadJobStatus(response.getJob());
                               return status->status();
                             })
        .attach(kj::mv(connection));
  }

  const std::unique_ptr<control::ControlLoop> loop_;
};

StatusClient::StatusClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StatusClient::~StatusClient() = default;

absl::StatusOr<std::unique_ptr<StatusClient>> StatusClient::Create() {
  ASSIGN_OR_RETURN(std::unique_ptr<control::ControlLoop> loop, control::ControlLoop::Start());
  return std::unique_ptr<StatusClient>(new StatusClient(std::make_unique<Impl>(std::move(loop))));
}

absl::StatusOr<JobStatus> StatusClient::Ask(const StatusAddress& address, absl::Duration timeout) {
  return impl_->Ask(address, timeout);
}

}  // namespace penstock::actors
