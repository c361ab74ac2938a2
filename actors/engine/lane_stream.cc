#include "actors/engine/lane_stream.h"

#include <algorithm>

namespace penstock::actors {

LaneStream::LaneStream(Device& device)
    : joint_(device.CreateEvent()), stream_(device.CreateStream()) {}

void LaneStream::SetCapacity(Device& device, uint32_t capacity, bool is_timed) {
  capacity_ = std::max(capacity, capacity_);
  is_timed_ = is_timed;
  marks_.resize(capacity_ + (is_timed ? 1 : 0));
  while (events_.size() < marks_.size()) {
    events_.push_back(is_timed ? device.CreateTimedEvent() : device.CreateEvent());
  }
}

uint64_t LaneStream::Record(const Mark& mark) {
  const size_t at = (oldest_ + num_recorded_) % marks_.size();
  marks_[at] = mark;
  stream_->Record(events_[at].get());
  return num_popped_ + num_recorded_++;
}

const LaneStream::Mark* LaneStream::Done(const StreamError** error) const {
  if (num_recorded_ == 0 || !events_[oldest_]->IsDone()) return nullptr;
  *error = events_[oldest_]->error();
  return &marks_[oldest_];
}

int64_t LaneStream::Pop(int64_t now) {
  int64_t since = -1;
  if (is_timed_ && num_popped_ > 0) {
    const size_t last = (oldest_ + marks_.size() - 1) % marks_.size();
    since = events_[oldest_]->NsSince(*events_[last]);
  }
  // The clocks of host and device drift apart: an end is after its begin, and not after the host
  // has seen it.
  last_ns_ = since < 0 ? now : std::min(now, std::max(last_ns_ + since, marks_[oldest_].begin_ns));
  oldest_ = (oldest_ + 1) % marks_.size();
  --num_recorded_;
  --num_promised_;
  ++num_popped_;
  return last_ns_;
}

void LaneStream::Follow(LaneStream& other) {
  other.stream_->Record(other.joint_.get());
  stream_->Wait(other.joint_.get());
}

void LaneStream::FollowMark(const LaneStream& other, uint64_t number) {
  if (number < other.num_popped_) return;
  const size_t at = (other.oldest_ + (number - other.num_popped_)) % other.marks_.size();
  stream_->Wait(other.events_[at].get());
}

}  // namespace penstock::actors
