#include <algorithm>
#include <utility>

#include "actors/cluster/cluster_session_internal.h"
#include "actors/cluster/connection_internal.h"
#include "actors/cluster/node_calls_internal.h"
#include "actors/engine/error_origin.h"
#include "base/counted.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

constexpr kj::Duration kCallPollInterval = 10 * kj::MILLISECONDS;
constexpr size_t kMaxAddressBytes = size_t{1} << 20;

}  // namespace

void NodeCalls::Answers::Take(uint32_t rank, const absl::Status& status) {
  const absl::MutexLock lock(&mutex);
  have_come[rank] = true;
  if (first_error.ok() && !absl::IsCancelled(status)) first_error = status;
}

control::StatusPromise NodeCalls::ForAll(const CallNode& call) const {
  return ForAll(call, nullptr);
}

control::StatusPromise NodeCalls::ForAll(const CallNode& call,
                                         std::shared_ptr<Answers> answers) const {
  auto calls = kj::heapArrayBuilder<control::StatusPromise>(num_processes_);
  for (uint32_t rank = 0; rank < num_processes_; ++rank) {
    KJ_IF_MAYBE (node, supervisor_.NodeOf(rank)) {
      // Eagerly: what follows the answer of a node does not wait for those of all.
      calls.add(
          call(rank, *node)
              .catch_([](kj::Exception&& exception) { return control::FromException(exception); })
              .then([this, rank, answers](absl::Status&& status) {
                absl::Status named = Named(rank, status);
                if (answers != nullptr) answers->Take(rank, named);
                return named;
              })
              .eagerlyEvaluate(nullptr));
    } else {
      const absl::Status gone =
          absl::UnavailableError(StrCat(supervisor_.NameOf(rank), " is gone"));
      if (answers != nullptr) answers->Take(rank, gone);
      calls.add(absl::Status(gone));
    }
  }
  return control::JoinStatuses(calls.finish());
}

absl::Status NodeCalls::Named(uint32_t rank, const absl::Status& status) const {
  if (status.ok()) return status;
  std::string names = supervisor_.NameOf(rank);
  const auto peer = static_cast<uint32_t>(OriginOf(status).peer);  // -1: out of range
  if (peer < supervisor_.num_processes() && peer != rank) {
    StrAppend(&names, ", with ", supervisor_.NameOf(peer));
  }
  absl::Status named = WithPrefix(StrCat(names, ": "), status);
  SetOrigin({.rank = static_cast<int32_t>(rank)}, &named);
  return named;
}

absl::Status NodeCalls::CallAll(const CallNode& call, std::string_view what,
                                absl::Duration timeout) const {
  const auto answers = std::make_shared<Answers>();
  {
    const absl::MutexLock lock(&answers->mutex);
    answers->have_come.resize(num_processes_, false);
  }
  absl::Status status = loop_.Await([&] { return ForAll(call, answers); }, timeout, what);
  if (absl::IsDeadlineExceeded(status)) {
    absl::Status why = status;
    (void)loop_.Await(
        [&]() -> kj::Promise<void> {
          why = WhyLate(status, *answers);
          return kj::READY_NOW;
        },
        absl::Seconds(5), "the cause");
    status = why;
  }
  if (!absl::IsUnavailable(status)) return status;
  (void)loop_.Await(
      [&] { return AwaitLoss(loop_.timer().now() + ClusterSession::kPeerGrace, &status); },
      absl::Seconds(5), "the cause");
  return status;
}

absl::Status NodeCalls::WhyLate(const absl::Status& late, Answers& answers) const {
  const absl::MutexLock lock(&answers.mutex);
  const auto missing = std::find(answers.have_come.begin(), answers.have_come.end(), false);
  const auto num_missing = std::count(missing, answers.have_come.end(), false);
  if (num_missing == 0) return answers.first_error.ok() ? late : answers.first_error;
  const auto rank = static_cast<uint32_t>(missing - answers.have_come.begin());
  const std::string silent = StrCat(
      supervisor_.NameOf(rank),
      num_missing == 1 ? " has" : StrCat(" and ", Counted(num_missing - 1, "other node"), " have"),
      " not answered");
  absl::Status named = answers.first_error.ok()
                           ? WithPrefix(StrCat(silent, ": "), late)
                           : WithPrefix(StrCat(ToStd(answers.first_error.message()), "; ", silent),
                                        absl::Status(answers.first_error.code(), ""));
  SetOrigin({.rank = static_cast<int32_t>(rank)}, &named);
  return named;
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
