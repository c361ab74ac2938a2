#include <utility>

#include "actors/cluster/cluster_session_internal.h"
#include "actors/cluster/connection_internal.h"
#include "actors/cluster/node_calls_internal.h"
#include "actors/engine/error_origin.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

constexpr kj::Duration kCallPollInterval = 10 * kj::MILLISECONDS;
constexpr size_t kMaxAddressBytes = size_t{1} << 20;

}  // namespace

control::StatusPromise NodeCalls::ForAll(const CallNode& call) const {
  auto calls = kj::heapArrayBuilder<control::StatusPromise>(num_processes_);
  for (uint32_t rank = 0; rank < num_processes_; ++rank) {
    KJ_IF_MAYBE (node, supervisor_.NodeOf(rank)) {
      calls.add(
          call(rank, *node)
              .catch_([](kj::Exception&& exception) { return control::FromException(exception); })
              .then([this, rank](absl::Status&& status) {
                if (status.ok()) return std::move(status);
                absl::Status named = WithPrefix(StrCat(supervisor_.NameOf(rank), ": "), status);
                SetOrigin({.rank = static_cast<int32_t>(rank)}, &named);
                return named;
              }));
    } else {
      calls.add(absl::UnavailableError(StrCat(supervisor_.NameOf(rank), " is gone")));
    }
  }
  return control::JoinStatuses(calls.finish());
}

absl::Status NodeCalls::CallAll(const CallNode& call, std::string_view what,
                                absl::Duration timeout) const {
  absl::Status status = loop_.Await([&] { return ForAll(call); }, timeout, what);
  if (!absl::IsUnavailable(status)) return status;
  (void)loop_.Await(
      [&] { return AwaitLoss(loop_.timer().now() + ClusterSession::kPeerGrace, &status); },
      absl::Seconds(5), "the cause");
  return status;
}

// Sets `status` to the loss of one of the nodes, if there is one by `deadline`.
kj::Promise<void> NodeCalls::AwaitLoss(kj::TimePoint deadline, absl::Status* status) const {
  if (absl::Status loss = supervisor_.LossAmong(num_processes_); !loss.ok()) {
    *status = std::move(loss);
    return kj::READY_NOW;
  }
  if (loop_.timer().now() >= deadline) return kj::READY_NOW;
  return loop_.timer().afterDelay(kCallPollInterval).then([this, deadline, status] {
    return AwaitLoss(deadline, status);
  });
}

absl::Status TakeAddress(capnp::Data::Reader answer, std::string* address) {
  if (answer.size() > kMaxAddressBytes) {
    return absl::InternalError(StrCat("sent an address of ", answer.size(), " bytes"));
  }
  *address = control::AsText(answer);
  return absl::OkStatus();
}

control::StatusPromise OpenExchange(const NodeSupervisor& supervisor, control::Node::Client& node,
                                    uint32_t number, uint32_t rank, uint32_t num_ranks,
                                    absl::Span<const uint32_t> peers, absl::Duration timeout,
                                    std::string* address) {
  auto call = node.openExchangeRequest();
  call.setExchange(number);
  call.setRank(rank);
  call.setNumRanks(num_ranks);
  call.setPeers(kj::ArrayPtr<const uint32_t>(peers.data(), peers.size()));
  call.setTimeoutMs(static_cast<uint64_t>(absl::ToInt64Milliseconds(timeout)));
  call.setLinkTimeoutMs(supervisor.LinkTimeoutMs());
  return control::StatusOf(call.send(), [address](auto&& response) {
    return TakeAddress(response.getAddress(), address);
  });
}

}  // namespace penstock::actors
