// How other threads wake a thread that polls: it spins while there is work and sleeps on an eventfd
// when there is none.
//
//   consumer:  while (true) { if (Poll()) continue;
//                             waker.PrepareSleep();
//                             if (Poll()) { waker.CancelSleep(); continue; }
//                             waker.Sleep(timeout); }
//
// A consumer that sleeps on other descriptors too waits for fd() instead, then calls EndSleep.
//
//   producer:  publish, then waker.Notify()
//
// Thread rule: Notify from any thread; the rest on the consumer.
// Invariant: what a producer publishes before Notify is seen by the Poll after PrepareSleep, or
// ends the Sleep. Both sides write, pass a sequentially consistent fence, and then read what the
// other writes, so of two that race one sees the other's.

#ifndef PENSTOCK_ACTORS_ENGINE_WAKER_H_
#define PENSTOCK_ACTORS_ENGINE_WAKER_H_

#include <atomic>
#include <cstdint>

#include "base/cache_line.h"

namespace penstock::actors {

// Wakes one consumer.
class Waker {
 public:
  Waker();
  ~Waker();
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;

  // Cheap while the consumer is awake: writes nothing that it reads.
  void Notify() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    NotifyOrdered();
  }
  // Where the producer has passed such a fence since it published, or publishes and Poll looks with
  // sequentially consistent operations.
  void NotifyOrdered() {
    if (is_sleeping_.load(std::memory_order_seq_cst) &&
        is_sleeping_.exchange(false, std::memory_order_acq_rel)) {
      Signal();
    }
  }

  // The consumer is about to sleep, unless one more Poll finds something. Sleep, CancelSleep or
  // EndSleep follows.
  void PrepareSleep() {
    is_sleeping_.store(true, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  // The Poll after PrepareSleep has found something.
  void CancelSleep();
  // Returns after a Notify since PrepareSleep, when `other_fd` is readable (-1: there is none), or
  // after the timeout.
  void Sleep(int64_t timeout_ms, int other_fd = -1);
  // Readable after a Notify since PrepareSleep; -1 if the system has no descriptors left: sleeps
  // have to be short then.
  int fd() const { return event_fd_; }
  // After a sleep on fd().
  void EndSleep();

 private:
  void Signal();
  void Drain();

  alignas(kCacheLine) std::atomic<bool> is_sleeping_{false};
  int event_fd_ = -1;  // -1 where the system has none left: sleeps are short then
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_WAKER_H_
