// The stream that the phases of one lane run on, and the marks that the executor leaves in it: each
// mark is an event, and tells what all that came before it was.
//
// Example: the compute lane of an asynchronous device, which launches ahead
//   launches of F0, Record(F0), launches of F1, Record(F1), ...     HasRoom for F2?
//   Done() is F0: its instance has completed; Pop(); room for one more
//
// Thread rule: the executor's.
// Invariants: marks come back in the order that they were recorded in; nothing is allocated after
// SetCapacity.

#ifndef PENSTOCK_ACTORS_ENGINE_LANE_STREAM_H_
#define PENSTOCK_ACTORS_ENGINE_LANE_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/device.h"
#include "planner/plan/plan.h"

namespace penstock::actors {

inline constexpr size_t kNumLanes = 3;  // of planner::Lane

// One stream and its marks.
class LaneStream {
 public:
  // What a mark stands for. Times are those of the executor's clock.
  struct Mark {
    uint32_t actor = planner::kNone;  // kNone: all that the phase instance had on the stream
    uint32_t phase = 0;               // whose instance it is
    int64_t step = 0;                 // of the instance
    int64_t microbatch = 0;           // likewise
    int64_t begin_ns = 0;             // when the host launched it, by which traces begin
    bool is_begin = false;            // with kNone: all that the instance waited for
  };

  // A stream of the device without marks; see SetCapacity. The device outlives it.
  explicit LaneStream(Device& device);

  // REQUIRES: Close was not called.
  Stream& stream() { return *stream_; }

  // Drops what has not begun: nothing is recorded or followed any more. Streams that follow each
  // other are closed before any of them is destroyed, as their work uses each other's events.
  void Close() { stream_ = nullptr; }

  // Marks that may be on their way at a time, timed by the device where it can. REQUIRES: none is,
  // and `is_timed` is the same in all calls.
  void SetCapacity(Device& device, uint32_t capacity, bool is_timed);

  // The most that SetCapacity was given; at first 0.
  uint32_t capacity() const { return capacity_; }

  // Marks are promised before they are recorded, those of a phase instance together.
  bool HasRoom(uint32_t count) const { return num_promised_ + count <= capacity_; }
  // Reserves room. REQUIRES: HasRoom(count).
  void Promise(uint32_t count) { num_promised_ += count; }

  // Returns the mark's number, counted from 0. REQUIRES: it was promised.
  uint64_t Record(const Mark& mark);

  // The oldest mark if the stream has come to it, else null; `error` is then the stream's, or null.
  const Mark* Done(const StreamError** error) const;
  // Takes it. Returns when the stream came to it: `now`, or an earlier time by the device's clock.
  // REQUIRES: Done() is not null.
  int64_t Pop(int64_t now);

  // The oldest mark that the stream has not come to, or null.
  const Mark* Pending() const { return num_recorded_ == 0 ? nullptr : &marks_[oldest_]; }
  // Marks recorded and not taken.
  uint32_t num_pending() const { return num_recorded_; }

  // What is given to this stream from here on runs after all that `other` has been given so far.
  void Follow(LaneStream& other);
  // The same up to a mark of `other` that was recorded.
  void FollowMark(const LaneStream& other, uint64_t number);

 private:
  // Before the stream, whose work records in them.
  std::unique_ptr<Event> joint_;                // of those that follow this one
  std::vector<std::unique_ptr<Event>> events_;  // of the marks
  std::unique_ptr<Stream> stream_;
  std::vector<Mark> marks_;  // a ring; the last one taken stays if marks are timed
  uint32_t capacity_ = 0;
  bool is_timed_ = false;
  int64_t last_ns_ = 0;  // when the stream came to the last one taken
  uint32_t oldest_ = 0;
  uint32_t num_recorded_ = 0;
  uint64_t num_popped_ = 0;
  size_t num_promised_ = 0;  // the recorded ones among them
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_LANE_STREAM_H_
