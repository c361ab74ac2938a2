// Which actors of a device may fire: one bit each, so that the first one in the planned order is
// found at once.
//
// Thread rule: the owner's thread.

#ifndef PENSTOCK_ACTORS_ENGINE_READY_SET_H_
#define PENSTOCK_ACTORS_ENGINE_READY_SET_H_

#include <bit>
#include <cstdint>
#include <vector>

#include "planner/plan/plan.h"

namespace penstock::actors {

// A set of indices of actors. Those of a phase are consecutive, so its ready ones are in a range.
class ReadySet {
 public:
  // Empty, for actors below `num_actors`.
  explicit ReadySet(uint32_t num_actors) : words_((num_actors + 63) / 64) {}

  // REQUIRES, here and below: the actor is below the number that the set was made for.
  void Add(uint32_t actor) { words_[actor / 64] |= uint64_t{1} << actor % 64; }
  // Whether the actor was added and not taken.
  bool Contains(uint32_t actor) const { return (words_[actor / 64] >> actor % 64 & 1) != 0; }

  // Adds those of the other set, of the same size, in [begin, end).
  void AddFrom(const ReadySet& other, uint32_t begin, uint32_t end) {
    for (uint32_t i = other.First(begin, end); i != planner::kNone; i = other.First(i + 1, end)) {
      Add(i);
    }
  }

  // Takes the first actor in [begin, end) out of the set; kNone: there is none.
  uint32_t TakeFirst(uint32_t begin, uint32_t end) {
    const uint32_t actor = First(begin, end);
    if (actor != planner::kNone) words_[actor / 64] &= ~(uint64_t{1} << actor % 64);
    return actor;
  }

  // The first actor of the set in [begin, end); kNone: there is none.
  uint32_t First(uint32_t begin, uint32_t end) const {
    if (begin >= end) return planner::kNone;
    const uint32_t last = (end - 1) / 64;
    uint32_t word = begin / 64;
    uint64_t bits = words_[word] & ~uint64_t{0} << begin % 64;
    while (bits == 0) {
      if (word == last) return planner::kNone;
      bits = words_[++word];
    }
    const uint32_t actor = word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
    return actor < end ? actor : planner::kNone;
  }

 private:
  std::vector<uint64_t> words_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_READY_SET_H_
