// Transfers of long data over the control plane: the owner offers them, and the receiver reads
// them, a few chunks at a time.
//
//   owner                                              reader
//   Offer(feeds, call.initFeeds())    -- submit -->
//                                   <-- read(0, 1 MiB), read(1 MiB, 1 MiB) --    ReadChunks
//                                     -- bytes -->     into the place of the first chunk
//                                   <-- read(2 MiB, 1 MiB) --
//
// Data of at most one chunk are embedded in the call.
//
// The reader requests every range and has room for all of it. The only thing a faulty peer can do
// is send a chunk of the wrong length, which is an error.
//
// Thread rule: the loop's thread.
// Invariants: no more than kMaxChunksInFlight chunks of a transfer are in flight.

#ifndef PENSTOCK_ACTORS_CLUSTER_CHUNKED_TRANSFER_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_CHUNKED_TRANSFER_INTERNAL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include <capnp/capability.h>
#include <kj/async.h>

#include "actors/cluster/control.capnp.h"
#include "actors/cluster/scattered_bytes.h"
#include "actors/cluster/wire_status_internal.h"

namespace penstock::actors::control {

inline constexpr size_t kChunkBytes = size_t{1} << 20;
// Two keep a link busy; a heartbeat waits behind no more than they are.
inline constexpr size_t kMaxChunksInFlight = 2;

// How long a transfer may take that has `timeout` to begin: a link slower than 1 MiB/s is taken for
// broken.
inline absl::Duration BoundOf(absl::Duration timeout, uint64_t num_bytes) {
  return timeout + absl::Seconds(static_cast<int64_t>(num_bytes >> 20));
}

// An error unless there is such a chunk of `num_bytes` bytes.
absl::Status CheckChunk(uint64_t offset, uint64_t size, uint64_t num_bytes);

// Bytes that have been sent or received; null: they are not counted.
using ByteCounter = std::shared_ptr<uint64_t>;

// The source as part of a call. It can be read until the result is gone, which goes with the call.
[[nodiscard]] std::shared_ptr<const ByteSource> Offer(ByteSource source,
                                                      ChunkedBytes::Builder transfer,
                                                      ByteCounter num_sent = nullptr);

// Calls whoever has the bytes.
using AskChunk = std::function<capnp::RemotePromise<Chunk>(uint64_t offset, uint32_t size)>;
AskChunk AskSource(std::shared_ptr<Source::Client> source);

// Fills `target`. The first error ends it.
StatusPromise ReadChunks(AskChunk ask, ByteTarget target, ByteCounter num_received = nullptr);

// The same where the bytes have come with the call. kInvalidArgument: there are more or fewer.
absl::Status TakeEmbedded(std::string_view bytes, const ByteTarget& target);

}  // namespace penstock::actors::control

#endif  // PENSTOCK_ACTORS_CLUSTER_CHUNKED_TRANSFER_INTERNAL_H_
