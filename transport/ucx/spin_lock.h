// A lock for sections of a few microseconds at most. A thread that waits yields its core, because
// the holder may need it.

#ifndef PENSTOCK_TRANSPORT_UCX_SPIN_LOCK_H_
#define PENSTOCK_TRANSPORT_UCX_SPIN_LOCK_H_

#include <atomic>
#include <thread>

namespace penstock::transport::ucx {

class SpinLock {
 public:
  void lock() {
    while (is_locked_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
  }
  void unlock() { is_locked_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> is_locked_{false};
};

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_SPIN_LOCK_H_
