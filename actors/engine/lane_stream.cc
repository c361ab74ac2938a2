#include "actors/engine/lane_stream.h"

namespace penstock::actors {

LaneStream::LaneStream(Device& device)
    : joint_(device.CreateEvent()), stream_(device.CreateStream()) {}

void LaneStream::SetCapacity(Device& device, uint32_t capacity) {
  marks_.resize(capacity);
  while (events_.size() < capacity) events_.push_back(device.CreateEvent());
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

void LaneStream::Pop() {
  oldest_ = (oldest_ + 1) % marks_.size();
  --num_recorded_;
  --num_promised_;
  ++num_popped_;
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
