// A lock for sections of a few microseconds at most. A thread that waits yields its core, because
// the holder may need it.

#ifndef PENSTOCK_TRANSPORT_UCX_SPIN_LOCK_H_
#define PENSTOCK_TRANSPORT_UCX_SPIN_LOCK_H_

#include <atomic>
#include <thread>

#include "absl/base/thread_annotations.h"

namespace penstock::transport::ucx {

class ABSL_LOCKABLE SpinLock {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    while (is_locked_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() { is_locked_.store(false, std::memory_order_release); }
  // For the analysis of callbacks of code that is called with the lock.
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {}

 private:
  std::atomic<bool> is_locked_{false};
};

// Holds a lock for a scope.
class ABSL_SCOPED_LOCKABLE SpinLockHolder {
 public:
  explicit SpinLockHolder(SpinLock& lock) ABSL_EXCLUSIVE_LOCK_FUNCTION(lock) : lock_(lock) {
    lock_.Lock();
  }
  ~SpinLockHolder() ABSL_UNLOCK_FUNCTION() { lock_.Unlock(); }
  SpinLockHolder(const SpinLockHolder&) = delete;
  SpinLockHolder& operator=(const SpinLockHolder&) = delete;

 private:
  SpinLock& lock_;
};

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_SPIN_LOCK_H_
