// How long data travel over the control plane: their owner offers them, and whoever wants them
// reads them, a few pieces at a time.
//
//   owner                                              reader
//   Offer(feeds, call.initFeeds())    -- submit -->
//                                   <-- read(0, 1 MiB), read(1 MiB, 1 MiB) --    ReadPieces
//                                     -- bytes -->     into the place of the first piece
//                                   <-- read(2 MiB, 1 MiB) --
//
// What is at most a piece long is in the call itself.
//
// The reader names every range that it is sent, and has room for all of it: what a peer that lies
// can do is to send a piece of another length, which is refused.
//
// Thread rule: the loop's thread.
// Invariants: no more than kMaxPiecesInFlight pieces of a transfer are on their way.

#ifndef PENSTOCK_ACTORS_CLUSTER_BULK_TRANSFER_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_BULK_TRANSFER_INTERNAL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include <capnp/capability.h>
#include <kj/async.h>

#include "actors/cluster/bulk.h"
#include "actors/cluster/control.capnp.h"

namespace penstock::actors::control {

inline constexpr size_t kPieceBytes = size_t{1} << 20;
// Two keep a link busy; a heartbeat waits behind no more than they are.
inline constexpr size_t kMaxPiecesInFlight = 2;

// How long a transfer may take that has `timeout` to begin: a link slower than 1 MiB/s is taken for
// broken.
inline absl::Duration BoundOf(absl::Duration timeout, uint64_t num_bytes) {
  return timeout + absl::Seconds(static_cast<int64_t>(num_bytes >> 20));
}

// An error unless there is such a piece of `num_bytes` bytes.
absl::Status CheckPiece(uint64_t offset, uint64_t size, uint64_t num_bytes);

// The source as part of a call. It can be read until the result is gone, which goes with the call.
[[nodiscard]] std::shared_ptr<const BulkSource> Offer(BulkSource source, Bulk::Builder bulk);

// Calls whoever has the bytes.
using AskPiece = std::function<capnp::RemotePromise<Piece>(uint64_t offset, uint32_t size)>;
AskPiece AskSource(std::shared_ptr<Source::Client> source);

// Fills `target`. The first error ends it.
kj::Promise<void> ReadPieces(AskPiece ask, BulkTarget target);

// The same where the bytes have come with the call. kInvalidArgument: there are more or fewer.
absl::Status TakeHere(std::string_view bytes, const BulkTarget& target);

}  // namespace penstock::actors::control

#endif  // PENSTOCK_ACTORS_CLUSTER_BULK_TRANSFER_INTERNAL_H_
