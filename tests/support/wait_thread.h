// A thread that waits for a transport's arrivals, as the communication executor of a process does.
//
// Thread rule: made and destroyed by one thread, while the transport lives.

#ifndef PENSTOCK_TESTS_SUPPORT_WAIT_THREAD_H_
#define PENSTOCK_TESTS_SUPPORT_WAIT_THREAD_H_

#include <atomic>
#include <thread>

#include "actors/engine/waker.h"
#include "transport/transport.h"

namespace penstock::testing {

class WaitThread {
 public:
  explicit WaitThread(transport::Transport& transport)
      : thread_([this, &transport] {
          while (!is_stopping_.load()) {
            waker_.PrepareSleep();
            if (is_stopping_.load()) break;
            transport.Wait(waker_.fd(), kTimeoutMs);
            waker_.EndSleep();
          }
        }) {}
  ~WaitThread() {
    is_stopping_.store(true);
    waker_.Notify();
    thread_.join();
  }
  WaitThread(const WaitThread&) = delete;
  WaitThread& operator=(const WaitThread&) = delete;

 private:
  static constexpr int kTimeoutMs = 1000;

  std::atomic<bool> is_stopping_{false};
  actors::Waker waker_;
  std::thread thread_;
};

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_WAIT_THREAD_H_
