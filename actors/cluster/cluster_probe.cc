#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "actors/cluster/cluster_probe_internal.h"
#include "actors/cluster/connection_internal.h"
#include "actors/cluster/link_probe.h"
#include "actors/cluster/node_calls_internal.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using control::AsData;

// Added for the answers of nodes, which keep the timeout themselves.
constexpr absl::Duration kProbeAnswerTime = absl::Seconds(2);

// Whether a planner can use the rate that a node reports.
bool IsRate(double value) { return std::isfinite(value) && value > 0; }

class Probe {
 public:
  Probe(control::ControlLoop& loop, NodeSupervisor& supervisor, absl::Duration timeout)
      : loop_(loop),
        supervisor_(supervisor),
        timeout_(timeout),
        num_ranks_(supervisor.num_processes()),
        calls_(loop, supervisor, num_ranks_),
        addresses_(num_ranks_) {}

  absl::StatusOr<ClusterFigures> Run() {
    if (num_ranks_ < 2 || num_ranks_ > kMaxProbedNodes) {
      return absl::InvalidArgumentError(StrCat("the links of 2 to ", kMaxProbedNodes,
                                               " nodes can be measured, not of ", num_ranks_));
    }
    absl::Status status = Open();
    if (status.ok()) status = Measure();
    Finish();
    RETURN_IF_ERROR(status);
    return std::move(figures_);
  }

 private:
  absl::Status Open() {
    return calls_.CallAll(
        [this](uint32_t rank, control::Node::Client& node) {
          // Numbers reach every node in order.
          if (number_ == 0) number_ = supervisor_.NextExchangeNumber();
          std::vector<uint32_t> peers;
          for (uint32_t peer = 0; peer < num_ranks_; ++peer) {
            if (peer != rank) peers.push_back(peer);
          }
          return OpenExchange(supervisor_, node, number_, rank, num_ranks_, peers, timeout_,
                              &addresses_[rank]);
        },
        "the opening of connections between nodes", timeout_);
  }

  absl::Status Measure() {
    figures_.flops_per_s.resize(num_ranks_);
    return calls_.CallAll(
        [this](uint32_t rank, control::Node::Client& node) {
          auto call = node.probeRequest();
          call.setExchange(number_);
          auto addresses = call.initAddresses(num_ranks_);
          for (uint32_t i = 0; i < num_ranks_; ++i) {
            addresses.set(i, AsData(addresses_[i].data(), addresses_[i].size()));
          }
          call.setTimeoutMs(static_cast<uint64_t>(absl::ToInt64Milliseconds(timeout_)));
          return control::StatusOf(call.send(),
                                   [this, rank](auto&& response) { return Take(rank, response); })
              .then([this](absl::Status&& status) {
                if (!status.ok()) TellToFinish();  // the others would wait for it
                return std::move(status);
              });
        },
        "the probe of the links", timeout_ + kProbeAnswerTime);
  }

  template <typename Response>
  absl::Status Take(uint32_t rank, Response&& response) {
    figures_.flops_per_s[rank] = response.getFlopsPerS();
    const auto links = response.getLinks();
    if (!IsRate(figures_.flops_per_s[rank]) || links.size() != num_ranks_ - 1 - rank) {
      return absl::InternalError("sent wrong figures");
    }
    std::vector<bool> seen(num_ranks_, false);
    for (const auto link : links) {
      const uint32_t peer = link.getRank();
      if (peer <= rank || peer >= num_ranks_ || seen[peer] || !IsRate(link.getBytesPerS()) ||
          !IsRate(link.getLatencyS())) {
        return absl::InternalError("sent wrong figures of a link");
      }
      seen[peer] = true;
      figures_.links.push_back({rank, peer, link.getBytesPerS(), link.getLatencyS()});
    }
    return absl::OkStatus();
  }

  // On the loop's thread; once.
  void TellToFinish() {
    if (is_finished_) return;
    is_finished_ = true;
    for (uint32_t rank = 0; rank < num_ranks_; ++rank) {
      KJ_IF_MAYBE (node, supervisor_.NodeOf(rank)) {
        auto call = node->finishExchangeRequest();
        call.setExchange(number_);
        supervisor_.tasks().add(call.send().ignoreResult().catch_([](const kj::Exception&) {}));
      }
    }
  }

  void Finish() {
    (void)loop_.Await(
        [this]() -> kj::Promise<void> {
          TellToFinish();
          return kj::READY_NOW;
        },
        timeout_, "the end of the probe");
  }

  control::ControlLoop& loop_;
  NodeSupervisor& supervisor_;
  const absl::Duration timeout_;
  const uint32_t num_ranks_;
  const NodeCalls calls_;
  std::vector<std::string> addresses_;
  ClusterFigures figures_;
  uint32_t number_ = 0;
  bool is_finished_ = false;  // used on the loop's thread
};

}  // namespace

absl::StatusOr<ClusterFigures> ProbeNodes(control::ControlLoop& loop, NodeSupervisor& supervisor,
                                          absl::Duration timeout) {
  return Probe(loop, supervisor, timeout).Run();
}

absl::StatusOr<std::vector<double>> MeasureNodes(control::ControlLoop& loop,
                                                 NodeSupervisor& supervisor,
                                                 absl::Duration timeout) {
  const uint32_t num_ranks = supervisor.num_processes();
  std::vector<double> rates(num_ranks, 0);
  const NodeCalls calls(loop, supervisor, num_ranks);
  RETURN_IF_ERROR(calls.CallAll(
      [&rates](uint32_t rank, control::Node::Client& node) {
        return control::StatusOf(node.measureComputeRequest().send(),
                                 [&rates, rank](auto&& response) -> absl::Status {
                                   rates[rank] = response.getFlopsPerS();
                                   if (IsRate(rates[rank])) return absl::OkStatus();
                                   return absl::InternalError("sent wrong figures");
                                 });
      },
      "how fast the nodes compute", timeout));
  return rates;
}

}  // namespace penstock::actors
