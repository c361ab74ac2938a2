#include "planner/plan/memory.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace penstock::planner {
namespace {

bool Meet(const std::vector<LiveSpan>& a, const std::vector<LiveSpan>& b) {
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (a[i].last < b[j].first) {
      ++i;
    } else if (b[j].last < a[i].first) {
      ++j;
    } else {
      return true;
    }
  }
  return false;
}

bool Meet(const Lifetime& a, const Lifetime& b) {
  return Meet(a.spans, b.spans) || Meet(a.touched, b.held) || Meet(a.held, b.touched);
}

// Places the buffers in this order.
uint64_t PlaceInOrder(const std::vector<size_t>& order, std::vector<Lifetime>* lifetimes) {
  std::vector<size_t> by_offset;  // placed so far
  uint64_t total = 0;
  for (const size_t index : order) {
    Lifetime& buffer = (*lifetimes)[index];
    const uint64_t bytes = AlignUp(buffer.bytes);
    uint64_t end_of_previous = 0;
    uint64_t best_offset = 0;
    uint64_t best_gap = UINT64_MAX;
    for (const size_t other_index : by_offset) {
      const Lifetime& other = (*lifetimes)[other_index];
      if (other.offset + AlignUp(other.bytes) <= end_of_previous || !Meet(buffer, other)) continue;
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

int64_t DurationOf(const Lifetime& lifetime) {
  int64_t duration = 0;
  for (const LiveSpan& span : lifetime.spans) duration += span.last - span.first + 1;
  return duration;
}

}  // namespace

uint64_t MostLiveBytes(const std::vector<Lifetime>& lifetimes) {
  std::map<int64_t, int64_t> changes;  // of the bytes in use, at positions
  for (const Lifetime& lifetime : lifetimes) {
    for (const LiveSpan& span : lifetime.spans) {
      changes[span.first] += static_cast<int64_t>(AlignUp(lifetime.bytes));
      changes[span.last + 1] -= static_cast<int64_t>(AlignUp(lifetime.bytes));
    }
  }
  int64_t live = 0;
  int64_t most = 0;
  for (const auto& [position, change] : changes) most = std::max(most, live += change);
  return static_cast<uint64_t>(most);
}

uint64_t PackLifetimes(std::vector<Lifetime>* lifetimes) {
  std::vector<size_t> by_size(lifetimes->size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(), [&](size_t a, size_t b) {
    return (*lifetimes)[a].bytes > (*lifetimes)[b].bytes;
  });
  uint64_t best = PlaceInOrder(by_size, lifetimes);
  const uint64_t bound = MostLiveBytes(*lifetimes);
  if (best == bound) return best;

  const auto try_by = [&](const std::vector<double>& keys) {  // the smallest first
    if (best == bound) return;
    std::vector<size_t> order = by_size;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return keys[a] < keys[b]; });
    std::vector<Lifetime> other = *lifetimes;
    const uint64_t bytes = PlaceInOrder(order, &other);
    if (bytes >= best) return;
    best = bytes;
    *lifetimes = std::move(other);
  };
  std::vector<double> first;
  std::vector<double> last;
  std::vector<double> duration;
  std::vector<double> area;
  for (const Lifetime& lifetime : *lifetimes) {
    first.push_back(lifetime.spans.empty() ? 0 : static_cast<double>(lifetime.spans[0].first));
    last.push_back(lifetime.spans.empty() ? 0 : -static_cast<double>(lifetime.spans.back().last));
    duration.push_back(-static_cast<double>(DurationOf(lifetime)));
    area.push_back(duration.back() * static_cast<double>(lifetime.bytes));
  }
  for (const std::vector<double>* keys : {&first, &last, &duration, &area}) try_by(*keys);
  return best;
}

}  // namespace penstock::planner
