// Orders what one thread did before its Sync before what another does after a later one. CAF orders
// the same things where it hands over messages and actors, but inside a library that
// ThreadSanitizer does not see into; this it sees.
//
// Thread rule: thread-safe.

#ifndef PENSTOCK_ACTORS_HANDOFF_H_
#define PENSTOCK_ACTORS_HANDOFF_H_

#include <atomic>
#include <cstdint>

namespace penstock::actors {

class Handoff {
 public:
  void Sync() { count_.fetch_add(1, std::memory_order_acq_rel); }

 private:
  std::atomic<uint64_t> count_{0};
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_HANDOFF_H_
