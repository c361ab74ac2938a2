// The parts of which collectives are made: a flow is the list of chunks that one rank sends to a
// peer, receives from a peer, or folds from several, in that order.
//
// The chunks of a flow are listed when it is constructed; a run only walks the list. A chunk may
// have to wait until another flow of the same rank has finished a number of its chunks. These
// dependencies give pipelining and forwarding, and keep memory from being overwritten while it is
// still needed.
//
// Example: rank 1 of a broadcast chain 0 -> 1 -> 2 with two chunks has
//   receive from 0: chunk 0 -> output[0..), chunk 1 -> output[k..)
//   send to 2:      chunk 0 of output after 1 received, chunk 1 of output after 2 received
//
// Thread rule: the endpoint's.
// Invariants: chunks are posted and finished in order, at most `window` of them between; nothing is
// allocated after construction.

#ifndef PENSTOCK_TRANSPORT_COLLECTIVES_FLOW_H_
#define PENSTOCK_TRANSPORT_COLLECTIVES_FLOW_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "transport/reduce.h"
#include "transport/transport.h"

namespace penstock::transport {

// Chunks that a flow keeps in flight, so that the next is under way while one is worked on.
inline constexpr int kWindow = 4;

// As kWindow, where every chunk in flight costs staging memory.
inline constexpr int kStagingWindow = 2;

// The split of Tag::sequence: the number of the run above, of the message within it below. At a
// million runs a second the runs last for half a year.
inline constexpr int kMessageBits = 20;
inline constexpr uint64_t kMaxMessages = uint64_t{1} << kMessageBits;
static_assert(kMaxMessages == kMaxCollectiveMessages);
inline constexpr uint64_t kMaxRuns = uint64_t{1} << (64 - kMessageBits);

// Memory of one rank: of each tensor that it brings, of each that it ends with. Scratch is the
// collective's own.
enum class Buffer : uint8_t { kInput, kOutput, kScratch };

// What the flows of one rank share while they run.
struct Run {
  Endpoint* endpoint = nullptr;
  uint32_t channel = 0;
  uint64_t sequence = 0;
  std::vector<std::byte*> inputs;   // by tensor
  std::vector<std::byte*> outputs;  // likewise
  std::byte* scratch = nullptr;
  uint32_t flags = 0;  // this rank's and those received
  absl::Status status;

  std::byte* At(Buffer buffer, size_t tensor, int64_t offset) const {
    if (buffer == Buffer::kScratch) return scratch + offset;
    return (buffer == Buffer::kInput ? inputs : outputs)[tensor] + offset;
  }
  Tag TagOf(uint64_t message) const {
    return {endpoint->generation(), channel, sequence << kMessageBits | message};
  }
};

class Flow;

struct Chunk {
  Buffer buffer = Buffer::kInput;
  uint32_t tensor = 0;  // of the buffers, unless they are scratch
  int64_t offset = 0;   // bytes into the buffer: what is sent, or where the result goes
  int64_t num_bytes = 0;
  uint64_t message = 0;
  const Flow* after = nullptr;  // if set, posted once `after` has finished `after_count` chunks
  int64_t after_count = 0;
  // Of a fold: where this rank's own term lies.
  Buffer own_buffer = Buffer::kInput;
  int64_t own_offset = 0;  // bytes
};

class Flow {
 public:
  virtual ~Flow() = default;

  // Before the first run.
  void Add(const Chunk& chunk) { chunks_.push_back(chunk); }
  int64_t num_chunks() const { return static_cast<int64_t>(chunks_.size()); }
  // Once all chunks are known: what Prepare allocates for bytes of messages.
  virtual int64_t buffer_bytes() const { return 0; }
  // Makes the room that running takes, once all chunks are known.
  virtual void Prepare();
  // The devices that its messages come from or go to.
  virtual std::vector<uint32_t> peers() const = 0;

  void Start() { num_posted_ = num_finished_ = 0; }

  // Finishes and posts what can be; returns whether anything was. On a failed request it sets
  // run->status.
  bool Advance(Run* run);

  bool is_over() const { return num_finished_ == num_chunks(); }
  int64_t num_finished() const { return num_finished_; }

  // Ends the run early. It has ended once Settle returns true; sends that their receivers already
  // hold are waited for.
  void Cancel(Endpoint* endpoint);
  bool Settle(Endpoint* endpoint);

 protected:
  Flow(int requests_per_chunk, int window)
      : requests_per_chunk_(requests_per_chunk), window_(window) {}

  virtual void Post(const Run& run, const Chunk& chunk, int slot) = 0;
  virtual void Finish(const Run&, const Chunk&, int /*slot*/) {}
  // Gives up a request of a run that was ended early; it is not pending.
  virtual void Discard(Endpoint*, Request*) {}

  Request* RequestsOf(int slot) { return &requests_[slot * requests_per_chunk_]; }
  int num_slots() const {
    return static_cast<int>(num_chunks() < window_ ? num_chunks() : window_);
  }
  int64_t max_chunk_bytes() const;

 private:
  bool CanPost() const;
  // Whether the requests of the oldest chunk are done; collects their flags and failures.
  bool HasArrived(Run* run);

  const int requests_per_chunk_;
  const int window_;
  int num_slots_ = 0;  // since Prepare
  std::vector<Chunk> chunks_;
  std::vector<Request> requests_;  // requests_per_chunk_ a slot; chunk c has slot c % num_slots_
  int64_t num_posted_ = 0;
  int64_t num_finished_ = 0;
};

class SendFlow : public Flow {
 public:
  explicit SendFlow(uint32_t peer) : Flow(1, kWindow), peer_(peer) {}
  std::vector<uint32_t> peers() const override { return {peer_}; }

 private:
  void Post(const Run& run, const Chunk& chunk, int slot) override;

  const uint32_t peer_;
};

class ReceiveFlow : public Flow {
 public:
  explicit ReceiveFlow(uint32_t peer) : Flow(1, kWindow), peer_(peer) {}
  std::vector<uint32_t> peers() const override { return {peer_}; }

 private:
  void Post(const Run& run, const Chunk& chunk, int slot) override;

  const uint32_t peer_;
};

// Folds a term of each of several peers and this rank's own, in the order of `terms`, into the
// chunk's buffer, as FoldTerms does. The own term may lie in that very buffer: the result is
// written element by element when all terms of the element have been read. A term of a peer alone
// is copied. A copy, and a result that is streamed, goes past the caches.
class FoldFlow : public Flow {
 public:
  static constexpr uint32_t kOwn = 0xffffffff;

  // `terms`: peers, and kOwn once; or one peer.
  FoldFlow(std::vector<uint32_t> terms, const FoldSteps& steps, int64_t element_bytes,
           bool can_view, bool is_streamed);

  int64_t buffer_bytes() const override;
  void Prepare() override;
  std::vector<uint32_t> peers() const override;

 private:
  void Post(const Run& run, const Chunk& chunk, int slot) override;
  void Finish(const Run& run, const Chunk& chunk, int slot) override;
  void Discard(Endpoint* endpoint, Request* request) override;
  int64_t StagingBytes() const;  // of one buffer
  std::byte* StagingOf(int slot, int request) {
    return staging_.data() + (slot * num_peers_ + request) * staging_bytes_;
  }

  const std::vector<uint32_t> terms_;
  const int num_peers_;
  const FoldSteps steps_;
  const int64_t element_bytes_;
  const bool can_view_;
  const bool is_streamed_;
  std::vector<const std::byte*> term_bytes_;
  std::vector<std::byte> staging_;  // without views: a buffer for each request
  int64_t staging_bytes_ = 0;       // of one buffer, a multiple of 64
};

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_COLLECTIVES_FLOW_H_
