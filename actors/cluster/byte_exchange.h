// Moves bytes between this process and several others at once, over a transport of its own: to each
// peer one stream of bytes, from each peer one. Streams are cut into chunks.
//
//   ByteExchange exchange(*transport, endpoint);
//   RETURN_IF_ERROR(exchange.Run(sends, receives, options));   // this side is done
//   ...the others hear of that...
//   exchange.Linger(timeout);                                  // until Stop, when all are done
//
// Memory: two chunks for each stream that is not empty.
//
// Thread rule: Run and Linger on one thread, which blocks; Stopper::Stop from any thread.
// Invariants: Run and Linger end with their timeout or with Stop, whatever the peers do; a chunk of
// another size than expected is an error. Errors of a stream have its peer as origin, and so has
// that of the timeout.

#ifndef PENSTOCK_ACTORS_CLUSTER_BYTE_EXCHANGE_H_
#define PENSTOCK_ACTORS_CLUSTER_BYTE_EXCHANGE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "actors/cluster/scattered_bytes.h"
#include "actors/engine/waker.h"
#include "base/device.h"
#include "transport/transport.h"

namespace penstock::actors {

class ByteExchange {
 public:
  struct Options {
    size_t chunk_bytes = size_t{1} << 20;  // the same on both sides of a stream
    absl::Duration timeout = absl::InfiniteDuration();
  };

  // Ends an exchange early; may be stopped before there is one.
  class Stopper {
   public:
    // Run returns kCancelled, Linger returns.
    void Stop() {
      is_stopped_.store(true, std::memory_order_release);
      waker_.Notify();
    }
    bool is_stopped() const { return is_stopped_.load(std::memory_order_acquire); }

   private:
    friend class ByteExchange;
    std::atomic<bool> is_stopped_{false};
    Waker waker_;
  };

  // The arguments outlive the exchange. Nobody drives the endpoint after the exchange has gone.
  ByteExchange(transport::Transport& transport, transport::Endpoint& endpoint, Stopper& stopper);

  // Streams by the peer's device in the transport. Once.
  absl::Status Run(const std::map<uint32_t, ByteSource>& sends,
                   const std::map<uint32_t, ByteTarget>& receives, const Options& options);

  // Goes on for the peers, whose messages may need this side.
  void Linger(absl::Duration timeout);

  // Moves messages along; sleeps if there is nothing to do, for a moment.
  void Progress();

 private:
  struct Slot {
    transport::Request request;
    std::byte* buffer = nullptr;
    uint64_t offset = 0;
    size_t size = 0;
    bool is_busy = false;
  };
  struct Stream {
    uint32_t peer = 0;
    const ByteSource* source = nullptr;  // one of the two is null
    const ByteTarget* target = nullptr;
    uint64_t num_bytes = 0;
    uint64_t num_posted = 0;
    std::array<Slot, 2> slots;
  };

  // Handles what is done and posts what is next. Returns whether anything changed.
  absl::StatusOr<bool> Advance(Stream& stream, size_t chunk_bytes);
  absl::Status Late() const;
  static absl::Status With(uint32_t peer, absl::Status status);

  transport::Transport& transport_;
  transport::Endpoint& endpoint_;
  Stopper& stopper_;
  const SteadyClock clock_;
  std::vector<Stream> streams_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_BYTE_EXCHANGE_H_
