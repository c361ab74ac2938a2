// For threads that are not CAF's and spawn actors or wait for them: CAF 0.17 leaves a reference to
// the logger of the actor system in each of them, and the end of the system waits until all of
// these are gone, be it for ever.
//
// Thread rule: an object belongs to the thread that made it.

#ifndef PENSTOCK_ACTORS_ENGINE_CAF_THREAD_INTERNAL_H_
#define PENSTOCK_ACTORS_ENGINE_CAF_THREAD_INTERNAL_H_

#include "caf/logger.hpp"

namespace penstock::actors {

// Lets go of that reference at the end of a scope.
class CafThread {
 public:
  CafThread() = default;
  ~CafThread() { caf::logger::set_current_actor_system(nullptr); }
  CafThread(const CafThread&) = delete;
  CafThread& operator=(const CafThread&) = delete;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_CAF_THREAD_INTERNAL_H_
