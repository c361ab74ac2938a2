// Measures the links between nodes, each on a host of its own, over the transport that will carry a
// job's tensors. In each of n - 1 rounds every node has another partner (one sits out if n is odd),
// so that after them each two have met: the time grows with the nodes and not with their pairs, and
// links that several pairs share are measured as pairs find them when all send.
//
//   round 0 of four nodes: 0-3, 1-2;  round 1: 1-3, 0-2;  round 2: 2-3, 0-1
//
// Of two partners the lower rank leads: it sends a word back and forth for the latency, then
// messages that grow until one takes long enough for a rate.
//
// Thread rule: one thread, which blocks.
// Invariants: Run ends with its timeout or the stopper, whatever the peers do; errors have the peer
// as origin.

#ifndef PENSTOCK_ACTORS_CLUSTER_LINK_PROBE_H_
#define PENSTOCK_ACTORS_CLUSTER_LINK_PROBE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "actors/cluster/byte_exchange.h"
#include "base/device.h"
#include "transport/transport.h"

namespace penstock::actors {

// More would take too long.
inline constexpr uint32_t kMaxProbedNodes = 64;

struct LinkFigures {
  uint32_t peer = 0;
  double bytes_per_s = 0;
  double latency_s = 0;  // of a short message
};

struct LinkProbeOptions {
  size_t max_bytes = size_t{16} << 20;  // of a message
  // A message that takes as long gives the rate.
  absl::Duration long_enough = absl::Milliseconds(30);
  absl::Duration timeout = absl::Seconds(30);
};

// Whom `rank` meets in a round, of 0 to NumProbeRounds - 1; nullopt: nobody.
std::optional<uint32_t> PartnerIn(uint32_t round, uint32_t rank, uint32_t num_ranks);
uint32_t NumProbeRounds(uint32_t num_ranks);

class LinkProbe {
 public:
  // `endpoint` is driven by `exchange`. The arguments outlive the probe, and its requests have
  // ended, or are not driven any more, when it goes.
  LinkProbe(ByteExchange& exchange, transport::Transport& transport, transport::Endpoint& endpoint,
            const ByteExchange::Stopper& stopper, const LinkProbeOptions& options)
      : exchange_(exchange),
        transport_(transport),
        endpoint_(endpoint),
        stopper_(stopper),
        options_(options) {}

  // The links that `rank` leads.
  absl::StatusOr<std::vector<LinkFigures>> Run(uint32_t rank, uint32_t num_ranks);

 private:
  // What a message has in memory that stays until the transport is done with it.
  struct Buffers {
    uint64_t sent_word = 0;
    uint64_t received_word = 0;
    transport::Request sending;
    transport::Request receiving;
    std::unique_ptr<std::byte[]> bytes;
  };

  absl::StatusOr<LinkFigures> Lead(uint32_t peer);
  absl::Status Follow(uint32_t peer);
  absl::Status Send(uint32_t peer, const void* data, size_t num_bytes);
  absl::Status Receive(uint32_t peer, void* data, size_t num_bytes);
  absl::Status SendWord(uint32_t peer, uint64_t word);
  absl::StatusOr<uint64_t> ReceiveWord(uint32_t peer);
  absl::Status Await(const transport::Request& request);

  ByteExchange& exchange_;
  transport::Transport& transport_;
  transport::Endpoint& endpoint_;
  const ByteExchange::Stopper& stopper_;
  const LinkProbeOptions options_;
  const SteadyClock clock_;
  int64_t begin_ns_ = 0;
  std::shared_ptr<Buffers> buffers_;
  // Messages so far, by peer.
  std::map<uint32_t, uint64_t> num_sent_;
  std::map<uint32_t, uint64_t> num_received_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_LINK_PROBE_H_
