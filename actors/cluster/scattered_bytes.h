// A gather list and a scatter list: bytes in several places, addressed by one offset. A transfer
// copies any range of it without knowing about tensors and tiles.
//
//   ByteSource feeds;                       // where the bytes are
//   feeds.Add(x.num_bytes(), [x](uint64_t offset, size_t size, std::byte* bytes) {
//     memcpy(bytes, ... + offset, size);
//   });
//   feeds.Copy(0, feeds.num_bytes(), message);
//
// A ByteTarget is the same for the places that bytes are written to.
//
// Thread rule: a value; Copy is as safe as the functions that were added.

#ifndef PENSTOCK_ACTORS_CLUSTER_SCATTERED_BYTES_H_
#define PENSTOCK_ACTORS_CLUSTER_SCATTERED_BYTES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

namespace penstock::actors {

template <typename Byte>
class ScatteredBytes {
 public:
  // Copies `size` bytes from `offset` of a part on, to `bytes` or from there.
  using CopyPart = std::function<void(uint64_t offset, size_t size, Byte* bytes)>;

  // Appends a part.
  void Add(uint64_t num_bytes, CopyPart copy) {
    if (num_bytes == 0) return;
    num_bytes_ += num_bytes;
    parts_.push_back({num_bytes_, std::move(copy)});
  }

  uint64_t num_bytes() const { return num_bytes_; }

  // REQUIRES: offset + size <= num_bytes().
  void Copy(uint64_t offset, size_t size, Byte* bytes) const {
    auto part = std::upper_bound(
        parts_.begin(), parts_.end(), offset,
        [](uint64_t value, const Part& candidate) { return value < candidate.end; });
    for (; size > 0; ++part) {
      const uint64_t begin = part == parts_.begin() ? 0 : std::prev(part)->end;
      const size_t count = static_cast<size_t>(std::min<uint64_t>(size, part->end - offset));
      part->copy(offset - begin, count, bytes);
      offset += count;
      bytes += count;
      size -= count;
    }
  }

 private:
  struct Part {
    uint64_t end;  // in the row
    CopyPart copy;
  };

  std::vector<Part> parts_;
  uint64_t num_bytes_ = 0;
};

using ByteSource = ScatteredBytes<std::byte>;
using ByteTarget = ScatteredBytes<const std::byte>;

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_SCATTERED_BYTES_H_
