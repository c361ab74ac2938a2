// Host memory between an asynchronous device and what happens on the host: feeds and fetches, and
// the transport's messages and collectives. The memory of such a device is reached by copies on its
// streams only. Those of a communication have streams of their own, so that kernels run beside
// them:
//
//   phase's stream  ... kernel, kernels that do not use it ...............  kernel that uses it
//   out                        copy out
//   host                                run of the collective
//   in                                                         copy in
//
// What follows on the phase's stream need not wait for an event of its own: the plan orders what
// overwrites the operands behind the communication, and what uses the result follows the copy in.
// So a communication is as good as begun once its copy out is enqueued.
//
// Memory: of kPinned, for the time of the session, what each communication reads and writes (once
// where it works in place), and kCopySlots tiles of each feed and fetch. The transport does not
// know it as registered memory: registering may replace pages, which a GPU has pinned.
//
// Each stream that phases run on has two for these copies, so that copies wait for no more than
// their phase does: floating phases that wait for other devices must not wait for each other.
//
// Thread rule: the executor's; the transport reads and writes between NextReady and End.
// Invariants: one run of a communication at a time; runs of one stream get ready in the order in
// which they began, except that receives, which have nothing to copy out, overtake others. A buffer
// is written only when the copy that last read it has run. Nothing is allocated after Create.

#ifndef PENSTOCK_ACTORS_ENGINE_HOST_STAGING_H_
#define PENSTOCK_ACTORS_ENGINE_HOST_STAGING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "actors/engine/device_communication.h"
#include "actors/engine/lane_stream.h"
#include "actors/engine/link.h"
#include "base/device.h"

namespace penstock::actors {

// The staging memory of one asynchronous device, and what is on its way through it.
class HostStaging {
 public:
  // Instances of a phase with feeds or fetches that may be on their way at a time.
  static constexpr uint32_t kCopySlots = 2;

  // Allocates all memory. kResourceExhausted names the amount. The device outlives the result;
  // indices of communications and copies are those of `comms` and `copies`. `streams` says of each
  // communication which stream its phase runs on, by any numbers: communications of one stream
  // share the streams of their copies.
  static absl::StatusOr<std::unique_ptr<HostStaging>> Create(Device& device,
                                                             absl::Span<const Comm> comms,
                                                             absl::Span<const uint32_t> streams,
                                                             absl::Span<const HostCopy> copies);

  // How much Create allocates.
  static uint64_t BytesFor(absl::Span<const Comm> comms, absl::Span<const HostCopy> copies);

  // The transport reads and writes it: see Transport::Hold.
  std::shared_ptr<const Memory> memory() const { return memory_; }
  // What Create has allocated.
  uint64_t num_bytes() const { return memory_->num_bytes(); }

  // The tile of a feed or fetch in phase instance `instance`.
  std::byte* TileOf(uint32_t copy, int64_t instance) {
    const Tile& tile = tiles_[copy];
    return memory_->data() + tile.offset +
           static_cast<uint64_t>(instance) % kCopySlots * tile.stride;
  }

  // What this is given before Begin comes before the copies of the communication: it is the stream
  // that these have to the host, or `stream`, that of its phase, for a receive.
  LaneStream* BeginsOn(uint32_t comm, LaneStream* stream);

  // Copies what the communication reads to the host, after what `stream`, that of its phase, and
  // BeginsOn have been given so far. REQUIRES: it is not under way.
  void Begin(const CommStart& start, planner::Lane lane, LaneStream* stream);

  // Takes a communication whose bytes are on the host; false if there is none. `start` then says
  // where they are. `error` is the stream's, or null.
  bool NextReady(CommStart* start, const StreamError** error);

  // Copies the result of the communication to the device, after what its Begin came after. What
  // `stream`, that of its phase, is given from here on comes after the copy.
  void End(uint32_t comm, LaneStream* stream);

  // As Stream::Poll, of all streams that the copies are on.
  bool Poll();
  // As Stream::Reset, of the same.
  absl::Status Reset();
  // No copy begins any more: see LaneStream::Close.
  void Close();

  // Begun and not ready.
  uint32_t num_pending() const { return num_pending_; }
  // Calls visit(comm) for each of those.
  template <typename Visit>
  void ForEachPending(const Visit& visit) const {
    for (const Queue& queue : queues_) {
      for (uint32_t i = 0; i < queue.count; ++i) {
        visit(queue.comms[(queue.first + i) % queue.comms.size()]);
      }
    }
  }

 private:
  struct Tile {
    uint64_t offset = 0;
    uint64_t stride = 0;
  };

  struct Transfer {
    std::vector<CommTensor> tensors;
    std::vector<void*> inputs;   // by tensor
    std::vector<void*> outputs;  // likewise
    bool is_receive = false;
    bool has_results = false;
    size_t streams = 0;  // its place in streams_
    CommStart start;     // of the run under way, in the device's memory
    // Where the results go: `start.outputs` may be of the next run by then.
    std::vector<void*> results;
    std::unique_ptr<Event> begin;  // of the run under way: what uses its operands is over
    // Done when `inputs` are filled; of a receive, when the last result has been copied.
    std::unique_ptr<Event> event;
  };

  // Of a stream of phases.
  struct Streams {
    std::unique_ptr<LaneStream> out;
    std::unique_ptr<LaneStream> in;
  };

  // Communications that wait for their events, a ring.
  struct Queue {
    std::vector<uint32_t> comms;
    uint32_t first = 0;
    uint32_t count = 0;
  };

  HostStaging() = default;

  std::shared_ptr<Memory> memory_;
  std::vector<Tile> tiles_;          // a feed or fetch each
  std::vector<Transfer> transfers_;  // a communication each
  std::vector<Streams> streams_;
  std::array<Queue, 2 * kNumLanes> queues_;  // by lane; receives apart
  uint32_t num_pending_ = 0;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_HOST_STAGING_H_
