#include "actors/cluster/link_probe.h"

#include <sched.h>

#include <algorithm>
#include <new>
#include <utility>

#include "actors/engine/error_origin.h"
#include "base/format.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

// The first ones make the connection and warm it up.
constexpr int kNumRoundTrips = 24;
constexpr int kNumFirstRoundTrips = 4;
constexpr size_t kFirstBytes = size_t{64} << 10;
// A round trip is not measured asleep.
constexpr int64_t kSpinNs = 200'000;

}  // namespace

uint32_t NumProbeRounds(uint32_t num_ranks) { return num_ranks + num_ranks % 2 - 1; }

std::optional<uint32_t> PartnerIn(uint32_t round, uint32_t rank, uint32_t num_ranks) {
  // The circle method, with a rank that does not exist where their number is odd: i and j meet in
  // round (i + j) / 2 modulo the rounds, and the last rank meets whoever would meet itself.
  const uint32_t rounds = NumProbeRounds(num_ranks);
  const uint32_t last = rounds;
  uint32_t partner = rank == last ? round : (2 * round + rounds - rank) % rounds;
  if (partner == rank) partner = last;
  if (partner >= num_ranks) return std::nullopt;
  return partner;
}

absl::StatusOr<std::vector<LinkFigures>> LinkProbe::Run(uint32_t rank, uint32_t num_ranks) {
  begin_ns_ = clock_.NowNs();
  buffers_ = std::make_shared<Buffers>();
  buffers_->bytes.reset(new (std::nothrow) std::byte[options_.max_bytes]());
  if (buffers_->bytes == nullptr) {
    return absl::ResourceExhaustedError(
        StrCat("no memory for ", FormatBytes(options_.max_bytes), " of buffers"));
  }
  transport_.Hold(buffers_, options_.max_bytes);
  std::vector<LinkFigures> figures;
  for (uint32_t round = 0; round < NumProbeRounds(num_ranks); ++round) {
    const std::optional<uint32_t> partner = PartnerIn(round, rank, num_ranks);
    if (!partner.has_value()) continue;
    absl::Status status;
    if (rank < *partner) {
      const absl::StatusOr<LinkFigures> link = Lead(*partner);
      status = link.status();
      if (link.ok()) figures.push_back(*link);
    } else {
      status = Follow(*partner);
    }
    if (status.ok()) continue;
    SetOrigin({.peer = static_cast<int32_t>(*partner)}, &status);
    return status;
  }
  return figures;
}

absl::StatusOr<LinkFigures> LinkProbe::Lead(uint32_t peer) {
  int64_t shortest_ns = INT64_MAX;
  for (int i = 0; i < kNumRoundTrips; ++i) {
    const int64_t begin_ns = clock_.NowNs();
    RETURN_IF_ERROR(SendWord(peer, 0));
    RETURN_IF_ERROR(ReceiveWord(peer).status());
    if (i >= kNumFirstRoundTrips) shortest_ns = std::min(shortest_ns, clock_.NowNs() - begin_ns);
  }
  size_t num_bytes = std::min(kFirstBytes, options_.max_bytes);
  while (true) {
    const int64_t begin_ns = clock_.NowNs();
    RETURN_IF_ERROR(SendWord(peer, num_bytes));
    RETURN_IF_ERROR(Send(peer, buffers_->bytes.get(), num_bytes));
    RETURN_IF_ERROR(ReceiveWord(peer).status());
    const int64_t taken_ns = std::max<int64_t>(clock_.NowNs() - begin_ns, 1);
    if (num_bytes < options_.max_bytes && absl::Nanoseconds(taken_ns) < options_.long_enough) {
      const double times =
          1.5 * absl::ToDoubleNanoseconds(options_.long_enough) / static_cast<double>(taken_ns);
      num_bytes = std::min(options_.max_bytes, static_cast<size_t>(static_cast<double>(num_bytes) *
                                                                   std::clamp(times, 2.0, 16.0)));
      continue;
    }
    RETURN_IF_ERROR(SendWord(peer, 0));
    // One round trip is not of the bytes.
    const int64_t of_bytes_ns = std::max(taken_ns - shortest_ns, taken_ns / 2);
    return LinkFigures{peer,
                       1e9 * static_cast<double>(num_bytes) / static_cast<double>(of_bytes_ns),
                       0.5e-9 * static_cast<double>(shortest_ns)};
  }
}

absl::Status LinkProbe::Follow(uint32_t peer) {
  for (int i = 0; i < kNumRoundTrips; ++i) {
    RETURN_IF_ERROR(ReceiveWord(peer).status());
    RETURN_IF_ERROR(SendWord(peer, 0));
  }
  while (true) {
    ASSIGN_OR_RETURN(const uint64_t num_bytes, ReceiveWord(peer));
    if (num_bytes == 0) return absl::OkStatus();
    if (num_bytes > options_.max_bytes) {
      return absl::InvalidArgumentError(StrCat("a message of ", num_bytes, " bytes was announced"));
    }
    RETURN_IF_ERROR(Receive(peer, buffers_->bytes.get(), num_bytes));
    RETURN_IF_ERROR(SendWord(peer, 0));
  }
}

absl::Status LinkProbe::Send(uint32_t peer, const void* data, size_t num_bytes) {
  endpoint_.Send(peer, {endpoint_.generation(), 0, num_sent_[peer]++}, data, num_bytes,
                 transport::kNoFlags, &buffers_->sending);
  return Await(buffers_->sending);
}

absl::Status LinkProbe::Receive(uint32_t peer, void* data, size_t num_bytes) {
  endpoint_.Recv(peer, {endpoint_.generation(), 0, num_received_[peer]++}, data, num_bytes,
                 &buffers_->receiving);
  return Await(buffers_->receiving);
}

absl::Status LinkProbe::SendWord(uint32_t peer, uint64_t word) {
  buffers_->sent_word = word;
  return Send(peer, &buffers_->sent_word, sizeof(word));
}

absl::StatusOr<uint64_t> LinkProbe::ReceiveWord(uint32_t peer) {
  RETURN_IF_ERROR(Receive(peer, &buffers_->received_word, sizeof(uint64_t)));
  return buffers_->received_word;
}

absl::Status LinkProbe::Await(const transport::Request& request) {
  const int64_t posted_ns = clock_.NowNs();
  while (!request.is_done()) {
    const int64_t now_ns = clock_.NowNs();
    if (stopper_.is_stopped()) return absl::CancelledError("the probe of the links was stopped");
    if (absl::Nanoseconds(now_ns - begin_ns_) > options_.timeout) {
      return absl::DeadlineExceededError("the probe of the links takes too long");
    }
    if (now_ns - posted_ns > kSpinNs) {
      exchange_.Progress();
    } else if (!endpoint_.Progress()) {
      sched_yield();
    }
  }
  return request.status;
}

}  // namespace penstock::actors
