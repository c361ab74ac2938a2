#include "planner/plan/memory.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

namespace penstock::planner {
namespace {

constexpr size_t kManyBuffers = 1000;

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

// Which buffers meet. Many have the same lifetime: such a kind counts once. A sweep over positions
// keeps the kinds that are in use, and adds them to those that a kind meets where it begins.
class Meetings {
 public:
  explicit Meetings(const std::vector<Lifetime>& lifetimes) : kinds_(lifetimes.size()) {
    const auto key = [&](size_t i) {
      return std::tie(lifetimes[i].spans, lifetimes[i].held, lifetimes[i].touched);
    };
    std::vector<size_t> sorted(lifetimes.size());
    std::iota(sorted.begin(), sorted.end(), size_t{0});
    std::sort(sorted.begin(), sorted.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
    std::vector<size_t> firsts;  // of each kind
    for (const size_t i : sorted) {
      if (firsts.empty() || key(firsts.back()) != key(i)) firsts.push_back(i);
      kinds_[i] = static_cast<uint32_t>(firsts.size() - 1);
    }
    num_kinds_ = firsts.size();
    meets_.resize(num_kinds_ * num_kinds_);
    std::vector<Event> events;
    for (size_t kind = 0; kind < num_kinds_; ++kind) {
      const Lifetime& lifetime = lifetimes[firsts[kind]];
      AddEvents(lifetime.spans, kind, Use::kInUse, &events);
      AddEvents(lifetime.held, kind, Use::kHeld, &events);
      AddEvents(lifetime.touched, kind, Use::kTouched, &events);
    }
    Sweep(std::move(events));
  }
  // Of a buffer: the number of its lifetime, and by such a number whether it meets it.
  uint32_t KindOf(size_t buffer) const { return kinds_[buffer]; }
  const uint8_t* RowOf(size_t buffer) const { return &meets_[kinds_[buffer] * num_kinds_]; }

 private:
  enum class Use : uint8_t { kInUse, kHeld, kTouched };
  struct Event {
    int64_t position = 0;
    bool is_begin = false;  // else the span ended before
    Use use = Use::kInUse;
    size_t kind = 0;
  };
  using Bits = std::vector<uint64_t>;  // by kind

  static void AddEvents(const std::vector<LiveSpan>& spans, size_t kind, Use use,
                        std::vector<Event>* events) {
    for (const LiveSpan& span : spans) {
      events->push_back({span.first, true, use, kind});
      events->push_back({span.last + 1, false, use, kind});
    }
  }

  // With what a use meets.
  static Use OtherOf(Use use) {
    switch (use) {
      case Use::kInUse:
        return Use::kInUse;
      case Use::kHeld:
        return Use::kTouched;
      case Use::kTouched:
        return Use::kHeld;
    }
    return use;
  }

  void Sweep(std::vector<Event> events) {
    std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
      return std::tie(a.position, a.is_begin) < std::tie(b.position, b.is_begin);
    });
    const size_t num_words = num_kinds_ / 64 + 1;
    std::array<Bits, 3> current;
    for (Bits& bits : current) bits.resize(num_words);
    std::vector<Bits> met(num_kinds_, Bits(num_words));
    for (const Event& event : events) {
      Bits& same = current[static_cast<size_t>(event.use)];
      same[event.kind / 64] ^= uint64_t{1} << event.kind % 64;
      if (!event.is_begin) continue;
      const Bits& others = current[static_cast<size_t>(OtherOf(event.use))];
      for (size_t w = 0; w < num_words; ++w) met[event.kind][w] |= others[w];
    }
    for (size_t a = 0; a < num_kinds_; ++a) {
      for (size_t w = 0; w < num_words; ++w) {
        for (uint64_t rest = met[a][w]; rest != 0; rest &= rest - 1) {
          const size_t b = 64 * w + static_cast<size_t>(std::countr_zero(rest));
          meets_[a * num_kinds_ + b] = meets_[b * num_kinds_ + a] = 1;
        }
      }
    }
  }

  std::vector<uint32_t> kinds_;  // by buffer
  size_t num_kinds_ = 0;
  std::vector<uint8_t> meets_;
};

// Buffers that lie right behind each other: indices [begin, end) of the list.
struct MemoryBlock {
  size_t begin = 0;
  size_t end = 0;
  uint64_t bytes = 0;
};

std::vector<MemoryBlock> FindBlocks(const std::vector<Lifetime>& lifetimes) {
  std::vector<MemoryBlock> blocks;
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    if (!lifetimes[i].follows_previous) blocks.push_back({i, i, 0});
    blocks.back().end = i + 1;
    blocks.back().bytes += AlignUp(lifetimes[i].bytes);
  }
  return blocks;
}

// The buffers, those that follow each other with the same lifetime as one.
std::vector<Lifetime> JoinLifetimes(const std::vector<Lifetime>& lifetimes) {
  std::vector<Lifetime> joined;
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    const Lifetime& buffer = lifetimes[i];
    if (buffer.follows_previous && buffer.spans == joined.back().spans &&
        buffer.held == joined.back().held && buffer.touched == joined.back().touched) {
      joined.back().bytes += AlignUp(buffer.bytes);
      continue;
    }
    joined.push_back(buffer);
    joined.back().bytes = AlignUp(buffer.bytes);
  }
  return joined;
}

// A buffer that has been placed.
struct Placed {
  int64_t begin = 0;
  int64_t end = 0;
  uint32_t kind = 0;
};

// Offsets between `above` and `below`, both excluded, where a block would meet a buffer.
struct Taken {
  int64_t above = 0;
  int64_t below = 0;
};

// Places the blocks in this order, as long as that needs fewer than `limit` bytes. `buffers` have
// aligned sizes.
uint64_t PlaceInOrder(const std::vector<MemoryBlock>& blocks, const Meetings& meet,
                      const std::vector<size_t>& order, uint64_t limit,
                      std::vector<Lifetime>* buffers) {
  std::vector<Placed> placed;  // by offset
  std::vector<Taken> taken;
  uint64_t total = 0;
  for (const size_t index : order) {
    const MemoryBlock& block = blocks[index];
    taken.clear();
    int64_t ahead = 0;  // bytes of the block before the buffer
    for (size_t i = block.begin; i < block.end; ++i) {
      const auto bytes = static_cast<int64_t>((*buffers)[i].bytes);
      const uint8_t* const meets = meet.RowOf(i);
      const auto before = static_cast<std::ptrdiff_t>(taken.size());
      for (const Placed& other : placed) {
        if (meets[other.kind] != 0) {
          taken.push_back({other.begin - ahead - bytes, other.end - ahead});
        }
      }
      // Those of one buffer are in order, as `placed` is.
      std::inplace_merge(taken.begin(), taken.begin() + before, taken.end(),
                         [](const Taken& a, const Taken& b) { return a.above < b.above; });
      ahead += bytes;
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
      Lifetime& buffer = (*buffers)[i];
      buffer.offset = end;
      end += buffer.bytes;
      const auto place =
          std::lower_bound(placed.begin(), placed.end(), static_cast<int64_t>(buffer.offset),
                           [](const Placed& other, int64_t at) { return other.begin < at; });
      placed.insert(
          place, {static_cast<int64_t>(buffer.offset), static_cast<int64_t>(end), meet.KindOf(i)});
    }
    total = std::max(total, end);
    if (total >= limit) break;
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
  const std::vector<MemoryBlock> blocks = FindBlocks(*lifetimes);
  std::vector<Lifetime> joined = JoinLifetimes(*lifetimes);
  const std::vector<MemoryBlock> joined_blocks = FindBlocks(joined);
  const Meetings meet(joined);
  std::vector<size_t> by_size(blocks.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](size_t a, size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  uint64_t best = PlaceInOrder(joined_blocks, meet, by_size, UINT64_MAX, &joined);
  const uint64_t bound = MostLiveBytes(joined);
  // Of many buffers, each order takes its time.
  const uint64_t enough = joined.size() > kManyBuffers ? bound + bound / 100 : bound;

  const auto try_by = [&](const std::vector<double>& keys) {  // the smallest first
    if (best <= enough) return;
    std::vector<size_t> order = by_size;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return keys[a] < keys[b]; });
    std::vector<Lifetime> other = joined;
    const uint64_t bytes = PlaceInOrder(joined_blocks, meet, order, best, &other);
    if (bytes >= best) return;
    best = bytes;
    joined = std::move(other);
  };
  std::vector<double> firsts;
  std::vector<double> lasts;
  std::vector<double> durations;
  std::vector<double> areas;
  std::vector<double> largest;  // of their buffers: where that fits, one of a block finds room, too
  for (const MemoryBlock& block : blocks) {
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
  for (size_t b = 0; b < blocks.size(); ++b) {
    uint64_t offset = joined[joined_blocks[b].begin].offset;
    for (size_t i = blocks[b].begin; i < blocks[b].end; ++i) {
      (*lifetimes)[i].offset = offset;
      offset += AlignUp((*lifetimes)[i].bytes);
    }
  }
  return best;
}

}  // namespace penstock::planner
