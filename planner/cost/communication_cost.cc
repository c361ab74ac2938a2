#include "planner/cost/communication_cost.h"

#include <algorithm>

namespace penstock::planner {
namespace {

// The time of one group's messages.
class GroupCost {
 public:
  GroupCost(const CollectiveSpec& spec, const LinkRates& rates)
      : spec_(spec), rates_(rates), n_(static_cast<int>(spec.devices.size())) {}

  double Seconds() const {
    if (n_ < 2) return 0;
    switch (spec_.kind) {
      case CollectiveKind::kAllReduce:
        return Reduce() + Gather();
      case CollectiveKind::kReduceScatter:
        return Reduce();
      case CollectiveKind::kAllGather:
        return Gather();
      case CollectiveKind::kAllToAll:
        return Exchange();
      case CollectiveKind::kBroadcast:
        // The root sends it to everybody; along a chain all are busy at once.
        return spec_.algorithm == CollectiveAlgorithm::kRing
                   ? Piece(spec_.counts[0]) + (n_ - 2) * Piece(ChunkCount())
                   : (n_ - 1) * Piece(spec_.counts[0]);
      case CollectiveKind::kPermute:
        return Permute();
    }
    return 0;
  }

 private:
  // One piece on its way, in chunks.
  double Piece(int64_t count) const {
    if (count == 0) return 0;
    const auto bytes = static_cast<double>(count) * static_cast<double>(ByteSize(spec_.dtype));
    const int64_t num_bytes = count * static_cast<int64_t>(ByteSize(spec_.dtype));
    const int64_t chunk = std::max<int64_t>(spec_.chunk_bytes, 1);
    const int64_t num_chunks = (num_bytes + chunk - 1) / chunk;
    return static_cast<double>(num_chunks) * rates_.latency_s + bytes / rates_.bytes_per_s;
  }

  // The elements of a broadcast's chunk.
  int64_t ChunkCount() const {
    return std::min(spec_.counts[0],
                    spec_.chunk_bytes / static_cast<int64_t>(ByteSize(spec_.dtype)));
  }

  double LargestPiece() const {
    return Piece(*std::max_element(spec_.counts.begin(), spec_.counts.end()));
  }

  // Every rank's piece to everybody else. Along a ring in n - 1 rounds, each as long as its largest
  // piece; otherwise a rank is sent the pieces of the others, one after another.
  double Gather() const {
    switch (spec_.algorithm) {
      case CollectiveAlgorithm::kRing:
        return (n_ - 1) * LargestPiece();
      default: {
        double all = 0;
        for (int64_t count : spec_.counts) all += Piece(count);
        // The slowest is the rank that brings least, or the one that sends its piece to all.
        const int64_t least = *std::min_element(spec_.counts.begin(), spec_.counts.end());
        return std::max(all - Piece(least), (n_ - 1) * LargestPiece());
      }
    }
  }

  // Every rank's terms of piece r to rank r: the messages of a gather the other way round.
  double Reduce() const { return Gather(); }

  double Exchange() const {
    double slowest = 0;
    for (int rank = 0; rank < n_; ++rank) {
      double sent = 0;
      double received = 0;
      for (int peer = 0; peer < n_; ++peer) {
        if (peer == rank) continue;
        sent += Piece(spec_.counts[rank * n_ + peer]);
        received += Piece(spec_.counts[peer * n_ + rank]);
      }
      slowest = std::max({slowest, sent, received});
    }
    return slowest;
  }

  double Permute() const {
    double slowest = 0;
    for (int rank = 0; rank < n_; ++rank) {
      if (spec_.peers[rank] != static_cast<uint32_t>(rank)) {
        slowest = std::max(slowest, Piece(spec_.counts[rank]));
      }
    }
    return slowest;
  }

  const CollectiveSpec& spec_;
  const LinkRates& rates_;
  const int n_;
};

}  // namespace

double TransferSeconds(uint64_t num_bytes, const LinkRates& rates) {
  return rates.latency_s + static_cast<double>(num_bytes) / rates.bytes_per_s;
}

double CollectiveSeconds(const CollectiveSpec& spec, const LinkRates& rates) {
  return GroupCost(spec, rates).Seconds();
}

}  // namespace penstock::planner
