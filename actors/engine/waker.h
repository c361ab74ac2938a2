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
// ends the Sleep. Both sides exchange one word, so of two that race one sees the other's.

#ifndef PENSTOCK_ACTORS_ENGINE_WAKER_H_
#define PENSTOCK_ACTORS_ENGINE_WAKER_H_

#include <atomic>
#include <cstdint>

namespace penstock::actors {

class Waker {
 public:
  Waker();
  ~Waker();
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;

  // Cheap while the consumer is awake.
  void Notify() {
    if (is_sleeping_.exchange(false, std::memory_order_acq_rel)) Signal();
  }

  void PrepareSleep() { is_sleeping_.exchange(true, std::memory_order_acq_rel); }
  void CancelSleep();
  // Returns after a Notify since PrepareSleep, or after the timeout.
  void Sleep(int64_t timeout_ms);
  // Readable after a Notify since PrepareSleep; -1 if the system has no descriptors left: sleeps
  // have to be short then.
  int fd() const { return event_fd_; }
  // After a sleep on fd().
  void EndSleep();

 private:
  void Signal();
  void Drain();

  std::atomic<bool> is_sleeping_{false};
  int event_fd_ = -1;  // -1 where the system has none left: sleeps are short then
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_WAKER_H_
