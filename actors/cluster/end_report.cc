#include "actors/cluster/end_report.h"

#include <memory>
#include <utility>

#include "actors/cluster/connection_internal.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/job_key.h"
#include "actors/cluster/secure_channel_internal.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using Stream = kj::Own<kj::AsyncIoStream>;

control::StatusPromise ReportOver(control::ControlLoop& loop, const EndReport& report,
                                  Stream stream) {
  auto connection = kj::heap<control::RpcConnection>(
      kj::mv(stream), capnp::rpc::twoparty::Side::CLIENT, nullptr, loop.timer());
  auto call = connection->Bootstrap().castAs<control::Coordinator>().reportEndRequest();
  call.setRank(report.rank);
  call.setPid(report.pid);
  call.setWaitStatus(report.wait_status);
  call.setIsOutOfMemory(report.is_out_of_memory);
  return call.send()
      .ignoreResult()
      .then([] { return absl::OkStatus(); })
      .attach(kj::mv(connection));
}

}  // namespace

absl::Status ReportEnd(const EndReport& report, absl::Duration timeout) {
  ASSIGN_OR_RETURN(const std::string key, ParseJobKey(report.key));
  ASSIGN_OR_RETURN(const std::unique_ptr<control::ControlLoop> loop, control::ControlLoop::Start());
  const auto encryption = report.insecure ? control::Encryption::kNone : control::Encryption::kTls;
  return loop->Await(
      [&]() -> control::StatusPromise {
        return loop->io()
            .provider->getNetwork()
            .parseAddress(report.coordinator.c_str())
            .then([](kj::Own<kj::NetworkAddress> address) {
              auto stream = address->connect();
              return stream.attach(kj::mv(address));
            })
            .then([&report, &key, encryption](Stream stream) {
              return control::Greet(kj::mv(stream), report.coordinator, key, nullptr, encryption);
            })
            .then([&loop, &report](absl::StatusOr<Stream>&& greeted) -> control::StatusPromise {
              if (!greeted.ok()) return greeted.status();
              return ReportOver(*loop, report, kj::mv(*greeted));
            })
            .catch_([](kj::Exception&& exception) { return control::FromException(exception); });
      },
      timeout, StrCat("the report to the coordinator at ", report.coordinator));
}

}  // namespace penstock::actors
