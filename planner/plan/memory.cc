#include "planner/plan/memory.h"

#include <algorithm>
#include <numeric>

namespace penstock::planner {

uint64_t PackLifetimes(std::vector<Lifetime>* lifetimes) {
  std::vector<size_t> by_size(lifetimes->size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(), [&](size_t a, size_t b) {
    return (*lifetimes)[a].bytes > (*lifetimes)[b].bytes;
  });

  std::vector<size_t> by_offset;  // placed so far
  uint64_t total = 0;
  for (size_t index : by_size) {
    Lifetime& buffer = (*lifetimes)[index];
    const uint64_t bytes = AlignUp(buffer.bytes);
    uint64_t end_of_previous = 0;
    uint64_t best_offset = 0;
    uint64_t best_gap = UINT64_MAX;
    for (size_t other_index : by_offset) {
      const Lifetime& other = (*lifetimes)[other_index];
      if (other.last < buffer.first || buffer.last < other.first) continue;
      if (other.offset >= end_of_previous + bytes && other.offset - end_of_previous < best_gap) {
        best_gap = other.offset - end_of_previous;
        best_offset = end_of_previous;
      }
      end_of_previous = std::max(end_of_previous, other.offset + AlignUp(other.bytes));
    }
    buffer.offset = best_gap == UINT64_MAX ? end_of_previous : best_offset;
    total = std::max(total, buffer.offset + bytes);
    const auto place = std::lower_bound(
        by_offset.begin(), by_offset.end(), buffer.offset,
        [&](size_t placed, uint64_t offset) { return (*lifetimes)[placed].offset < offset; });
    by_offset.insert(place, index);
  }
  return total;
}

}  // namespace penstock::planner
