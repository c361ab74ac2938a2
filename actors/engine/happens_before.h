// Makes an ordering that CAF guarantees visible to ThreadSanitizer. CAF orders the sender of a
// message before its receiver, but inside a library that is not instrumented. Both call Sync, so
// everything before one thread's Sync happens before everything after a later Sync of another.
//
// Thread rule: thread-safe.

#ifndef PENSTOCK_ACTORS_ENGINE_HAPPENS_BEFORE_H_
#define PENSTOCK_ACTORS_ENGINE_HAPPENS_BEFORE_H_

#include <atomic>
#include <cstdint>

namespace penstock::actors {

class HappensBefore {
 public:
  void Sync() { count_.fetch_add(1, std::memory_order_acq_rel); }

 private:
  std::atomic<uint64_t> count_{0};
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_HAPPENS_BEFORE_H_
