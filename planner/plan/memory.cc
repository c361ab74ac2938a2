#include "planner/plan/memory.h"

#include <algorithm>
#include <cstdint>
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

// Which buffers meet.
class Meetings {
 public:
  explicit Meetings(const std::vector<Lifetime>& lifetimes)
      : size_(lifetimes.size()), meets_(size_ * size_) {
    for (size_t a = 0; a < size_; ++a) {
      for (size_t b = 0; b < a; ++b) {
        if (Meet(lifetimes[a], lifetimes[b])) meets_[a * size_ + b] = meets_[b * size_ + a] = true;
      }
    }
  }
  bool operator()(size_t a, size_t b) const { return meets_[a * size_ + b]; }

 private:
  const size_t size_;
  std::vector<bool> meets_;
};

// Buffers that lie right behind each other: indices [begin, end) of the list.
struct Block {
  size_t begin = 0;
  size_t end = 0;
  uint64_t bytes = 0;
};

std::vector<Block> FindBlocks(const std::vector<Lifetime>& lifetimes) {
  std::vector<Block> blocks;
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    if (!lifetimes[i].follows_previous) blocks.push_back({i, i, 0});
    blocks.back().end = i + 1;
    blocks.back().bytes += AlignUp(lifetimes[i].bytes);
  }
  return blocks;
}

// Offsets between `above` and `below`, both excluded, where a block would meet a buffer.
struct Taken {
  int64_t above = 0;
  int64_t below = 0;
};

// Places the blocks in this order.
uint64_t PlaceInOrder(const std::vector<Block>& blocks, const Meetings& meet,
                      const std::vector<size_t>& order, std::vector<Lifetime>* lifetimes) {
  std::vector<size_t> by_offset;  // buffers placed so far
  std::vector<Taken> taken;
  uint64_t total = 0;
  for (const size_t index : order) {
    const Block& block = blocks[index];
    taken.clear();
    uint64_t ahead = 0;  // bytes of the block before the buffer
    for (size_t i = block.begin; i < block.end; ++i) {
      const uint64_t bytes = AlignUp((*lifetimes)[i].bytes);
      for (const size_t other_index : by_offset) {
        if (!meet(i, other_index)) continue;
        const Lifetime& other = (*lifetimes)[other_index];
        const auto begin = static_cast<int64_t>(other.offset) - static_cast<int64_t>(ahead);
        taken.push_back({begin - static_cast<int64_t>(bytes),
                         begin + static_cast<int64_t>(AlignUp(other.bytes))});
      }
      ahead += bytes;
    }
    // Of one buffer they are in order: by_offset is.
    if (block.end - block.begin > 1) {
      std::sort(taken.begin(), taken.end(),
                [](const Taken& a, const Taken& b) { return a.above < b.above; });
    }
    int64_t offset = 0;  // behind all so far
    int64_t best_offset = 0;
    int64_t best_gap = INT64_MAX;
    for (const Taken& range : taken) {
      if (range.below <= offset) continue;
      if (range.above >= offset && range.above - offset < best_gap) {
        best_gap = range.above - offset;
        best_offset = offset;
      }
      offset = range.below;
    }
    if (best_gap != INT64_MAX) offset = best_offset;
    uint64_t end = static_cast<uint64_t>(offset);
    for (size_t i = block.begin; i < block.end; ++i) {
      Lifetime& buffer = (*lifetimes)[i];
      buffer.offset = end;
      end += AlignUp(buffer.bytes);
      const auto place = std::lower_bound(
          by_offset.begin(), by_offset.end(), buffer.offset,
          [&](size_t placed, uint64_t at) { return (*lifetimes)[placed].offset < at; });
      by_offset.insert(place, i);
    }
    total = std::max(total, end);
  }
  return total;
}

int64_t DurationOf(const Lifetime& lifetime) {
  int64_t duration = 0;
  for (const LiveSpan& span : lifetime.spans) duration += span.last - span.first + 1;
  return duration;
}

}  // namespace

bool Meet(const Lifetime& a, const Lifetime& b) {
  return Meet(a.spans, b.spans) || Meet(a.touched, b.held) || Meet(a.held, b.touched);
}

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
  const std::vector<Block> blocks = FindBlocks(*lifetimes);
  const Meetings meet(*lifetimes);
  std::vector<size_t> by_size(blocks.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](size_t a, size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  uint64_t best = PlaceInOrder(blocks, meet, by_size, lifetimes);
  const uint64_t bound = MostLiveBytes(*lifetimes);
  if (best == bound) return best;

  const auto try_by = [&](const std::vector<double>& keys) {  // the smallest first
    if (best == bound) return;
    std::vector<size_t> order = by_size;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return keys[a] < keys[b]; });
    std::vector<Lifetime> other = *lifetimes;
    const uint64_t bytes = PlaceInOrder(blocks, meet, order, &other);
    if (bytes >= best) return;
    best = bytes;
    *lifetimes = std::move(other);
  };
  std::vector<double> firsts;
  std::vector<double> lasts;
  std::vector<double> durations;
  std::vector<double> areas;
  std::vector<double> largest;  // of their buffers: where that fits, one of a block finds room, too
  for (const Block& block : blocks) {
    double first = 0;
    double last = 0;
    double duration = 0;
    double most = 0;
    for (size_t i = block.begin; i < block.end; ++i) {
      const Lifetime& buffer = (*lifetimes)[i];
      duration += static_cast<double>(DurationOf(buffer));
      most = std::max(most, static_cast<double>(buffer.bytes));
      if (buffer.spans.empty()) continue;
      const auto begin = static_cast<double>(buffer.spans.front().first);
      first = i == block.begin ? begin : std::min(first, begin);
      last = std::max(last, static_cast<double>(buffer.spans.back().last));
    }
    firsts.push_back(first);
    lasts.push_back(-last);
    durations.push_back(-duration);
    areas.push_back(-duration * static_cast<double>(block.bytes));
    largest.push_back(-most);
  }
  for (const std::vector<double>* keys : {&largest, &firsts, &lasts, &durations, &areas}) {
    try_by(*keys);
  }
  return best;
}

}  // namespace penstock::planner
