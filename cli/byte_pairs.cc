#include "cli/byte_pairs.h"

#include <functional>
#include <queue>
#include <tuple>

namespace penstock::cli {
namespace {

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

constexpr int32_t kNone = -1;

// A symbol that is left, or that has been joined to the one before it (symbol == kNone).
struct Link {
  int32_t symbol = kNone;
  int32_t previous = kNone;
  int32_t next = kNone;
};

// A merge that is possible, unless one of the two has changed since.
struct Candidate {
  int32_t rank = 0;
  int32_t at = 0;  // of the left one
  int32_t left = 0;
  int32_t right = 0;
  int32_t joined = 0;
  // The first merge of the list; of those, the leftmost.
  friend bool operator>(const Candidate& a, const Candidate& b) {
    return std::tie(a.rank, a.at) > std::tie(b.rank, b.at);
  }
};

}  // namespace

void BytePairs::Add(int32_t left, int32_t right, int32_t joined) {
  merges_.try_emplace(PairKey(left, right), Merge{num_merges_++, joined});
}

const BytePairs::Merge* BytePairs::Find(int32_t left, int32_t right) const {
  const auto found = merges_.find(PairKey(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BytePairs::Join(std::vector<int32_t>* symbols) const {
  const auto count = static_cast<int32_t>(symbols->size());
  std::vector<Link> links(symbols->size());
  std::vector<Candidate> first;
  const auto candidate = [&](int32_t at, auto&& add) {
    const int32_t next = at == kNone ? kNone : links[at].next;
    if (next == kNone) return;
    const Merge* const merge = Find(links[at].symbol, links[next].symbol);
    if (merge == nullptr) return;
    add(Candidate{merge->rank, at, links[at].symbol, links[next].symbol, merge->joined});
  };
  for (int32_t i = 0; i < count; ++i) {
    links[i] = {(*symbols)[i], i - 1, i + 1 < count ? i + 1 : kNone};
  }
  for (int32_t i = 0; i < count; ++i) {
    candidate(i, [&](const Candidate& c) { first.push_back(c); });
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>(),
                                                                               std::move(first));
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Link& left = links[best.at];
    if (left.symbol != best.left || left.next == kNone) continue;
    Link& right = links[left.next];
    if (right.symbol != best.right) continue;
    left.symbol = best.joined;
    right.symbol = kNone;
    left.next = right.next;
    if (left.next != kNone) links[left.next].previous = best.at;
    candidate(left.previous, [&](const Candidate& c) { queue.push(c); });
    candidate(best.at, [&](const Candidate& c) { queue.push(c); });
  }
  symbols->clear();
  for (int32_t i = count > 0 ? 0 : kNone; i != kNone; i = links[i].next) {
    symbols->push_back(links[i].symbol);
  }
}

}  // namespace penstock::cli
