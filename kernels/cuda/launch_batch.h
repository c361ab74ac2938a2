// Launches of one kernel that a stream holds back, so that one launch does the work of many: that
// of the optimiser for all parameters, most of which are too small to keep a GPU busy.
//
// Example: an update of three parameters, and a copy
//   adamw(w0), adamw(w1), adamw(w2)    held back: none touches what another one writes
//   Copy(...)                          one launch for the three of them, then the copy
//
// The launches of a batch run at the same time. So a launch joins only if it does not touch what
// another one writes, and writes nothing that another one reads; otherwise those before it are
// launched first. Before a stream is given anything else, it launches what it holds back
// (CudaStream::handle): its order is that of the calls, and its events come after all that was
// given to it.
//
// Results have the same bits however launches are batched: a kernel has no other launches than
// those of its batches, and an entry is computed in the same way in each of them.
//
// Thread rule: that of the stream.
// Invariants: nothing is allocated after the batch is made.

#ifndef PENSTOCK_KERNELS_CUDA_LAUNCH_BATCH_H_
#define PENSTOCK_KERNELS_CUDA_LAUNCH_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "kernels/cuda/launch.h"

namespace penstock::kernels::cuda {

struct MemoryRange {
  MemoryRange() = default;  // empty
  MemoryRange(const void* data, size_t num_bytes)
      : begin(reinterpret_cast<uintptr_t>(data)), end(begin + num_bytes) {}

  bool Overlaps(const MemoryRange& other) const { return begin < other.end && other.begin < end; }

  bool operator==(const MemoryRange&) const = default;

  uintptr_t begin = 0;
  uintptr_t end = 0;
};

class LaunchBatch {
 public:
  using Ranges = absl::Span<const MemoryRange>;

  virtual ~LaunchBatch() = default;

  // Whether a launch that touches this memory has to come after those of the batch.
  bool MustFollow(Ranges reads, Ranges writes) const {
    return AnyOverlaps(reads, writes_) || AnyOverlaps(writes, writes_) ||
           AnyOverlaps(writes, reads_);
  }

  // What a launch that is added touches. What all of them read, such as a learning rate, should be
  // the first of `reads`: it is kept once.
  void Touch(Ranges reads, Ranges writes) {
    for (size_t i = 0; i < reads.size(); ++i) {
      if (i >= reads_.size() || reads_[i] != reads[i]) reads_.push_back(reads[i]);
    }
    writes_.insert(writes_.end(), writes.begin(), writes.end());
  }

  // Launches what has been added, and empties the batch.
  LaunchResult Launch(StreamHandle stream) {
    reads_.clear();
    writes_.clear();
    return LaunchEntries(stream);
  }

 protected:
  // At most so many ranges are touched.
  LaunchBatch(size_t max_reads, size_t max_writes) {
    reads_.reserve(max_reads);
    writes_.reserve(max_writes);
  }

 private:
  // Launches the entries, and removes them also where that fails.
  virtual LaunchResult LaunchEntries(StreamHandle stream) = 0;

  static bool AnyOverlaps(Ranges some, Ranges others) {
    for (const MemoryRange& one : some) {
      for (const MemoryRange& other : others) {
        if (one.Overlaps(other)) return true;
      }
    }
    return false;
  }

  std::vector<MemoryRange> reads_;
  std::vector<MemoryRange> writes_;
};

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_LAUNCH_BATCH_H_
