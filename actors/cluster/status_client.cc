#include "actors/cluster/status_client.h"

#include <utility>

#include "actors/cluster/connection_internal.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/job_key.h"
#include "actors/cluster/secure_channel_internal.h"
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
              using Stream = kj::Own<kj::AsyncIoStream>;
              return control::Greet(kj::mv(stream), address, key)
                  .then([this, address, status](
                            absl::StatusOr<Stream>&& greeted) mutable -> control::StatusPromise {
                    if (greeted.ok()) return AskOver(kj::mv(*greeted), std::move(status));
                    return absl::IsUnauthenticated(greeted.status()) ? Closed(address)
                                                                     : greeted.status();
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
          return Closed(address);
        });
  }

  static absl::Status Closed(const std::string& address) {
    return absl::UnavailableError(StrCat("the job at ", address,
                                         " has closed the connection: it has ended, or the key is "
                                         "not its key"));
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
