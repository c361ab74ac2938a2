#include <utility>

#include "actors/cluster/node_exchanges_internal.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

// A transport takes some bytes for each pair of them.
constexpr uint32_t kMaxExchangeRanks = 4096;

}  // namespace

absl::Status NodeExchanges::CheckNew(control::Node::OpenExchangeParams::Reader params) const {
  if (has_stopped_) return absl::CancelledError("the node has ended");
  if (params.getExchange() <= last_) {
    return absl::FailedPreconditionError(StrCat("exchange ", params.getExchange(), " is over"));
  }
  if (exchanges_.size() >= kMaxExchanges) {
    return absl::ResourceExhaustedError("too many exchanges of states are under way");
  }
  const uint32_t num_ranks = params.getNumRanks();
  if (num_ranks > kMaxExchangeRanks || params.getRank() >= num_ranks ||
      params.getPeers().size() >= num_ranks) {
    return absl::InvalidArgumentError("an exchange of too many processes");
  }
  for (const uint32_t peer : params.getPeers()) {
    if (peer >= num_ranks || peer == params.getRank()) {
      return absl::InvalidArgumentError(StrCat("node ", peer, " is no peer of an exchange"));
    }
  }
  return absl::OkStatus();
}

void NodeExchanges::Add(uint32_t number, std::shared_ptr<NodeExchange> exchange) {
  last_ = number;
  exchanges_[number] = std::move(exchange);
}

std::shared_ptr<NodeExchange> NodeExchanges::Find(uint32_t number) const {
  const auto found = exchanges_.find(number);
  return found == exchanges_.end() ? nullptr : found->second;
}

void NodeExchanges::Stop() {
  has_stopped_ = true;
  for (const auto& [number, exchange] : exchanges_) exchange->Stop();
}

}  // namespace penstock::actors
