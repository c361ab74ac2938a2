// Bounds how many programs that start nodes on other hosts, such as ssh, start at a time: if all
// started at once, they would take the cores that the nodes which have joined need, and the
// coordinator, which sends these heartbeats.
//
// A start is under way until a node of it has joined, or it has ended. One that hangs gives its
// place up after kPatience, so that the others have begun when it is named.
//
// Thread rule: one thread.

#ifndef PENSTOCK_ACTORS_CLUSTER_START_LIMIT_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_START_LIMIT_INTERNAL_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

#include <kj/time.h>

namespace penstock::actors {

class StartLimit {
 public:
  static constexpr kj::Duration kPatience = 10 * kj::SECONDS;

  // REQUIRES: max_starts > 0.
  explicit StartLimit(size_t max_starts) : max_starts_(max_starts) {}

  bool HasRoom(kj::TimePoint now) {
    std::erase_if(starts_,
                  [now](const auto& start) { return now - start.second.since >= kPatience; });
    return starts_.size() < max_starts_;
  }

  // Of the nodes of `num_ranks` ranks from `first_rank` on.
  void Begin(uint32_t first_rank, uint32_t num_ranks, kj::TimePoint now) {
    starts_[first_rank] = {num_ranks, now};
  }

  // The node of the rank has joined, or ended.
  void End(uint32_t rank) {
    auto it = starts_.upper_bound(rank);
    if (it == starts_.begin()) return;
    it = std::prev(it);
    if (rank - it->first < it->second.num_ranks) starts_.erase(it);
  }

 private:
  struct Start {
    uint32_t num_ranks = 1;
    kj::TimePoint since = kj::origin<kj::TimePoint>();
  };

  const size_t max_starts_;
  std::map<uint32_t, Start> starts_;  // under way, by their first ranks
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_START_LIMIT_INTERNAL_H_
