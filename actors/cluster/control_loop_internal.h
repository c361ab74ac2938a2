// The thread of the control plane. It runs the event loop of Cap'n Proto; other threads pass work
// to it through a queue.
//
// Thread rule: any thread but the loop's may call Post and Await. All kj objects belong to the
// loop. Invariants: posted work runs in order; work posted after Stop is dropped; Await
// returns within its timeout plus a few seconds.

#ifndef PENSTOCK_ACTORS_CLUSTER_CONTROL_LOOP_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_CONTROL_LOOP_INTERNAL_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <kj/time.h>

#include "actors/cluster/wire_status_internal.h"

namespace penstock::actors::control {

class ControlLoop {
 public:
  static absl::StatusOr<std::unique_ptr<ControlLoop>> Start();
  ~ControlLoop();  // stops
  ControlLoop(const ControlLoop&) = delete;
  ControlLoop& operator=(const ControlLoop&) = delete;

  // Runs the work that was posted, then ends the loop. Again: nothing. REQUIRES: all kj objects of
  // the loop have been destroyed; not called by two threads at a time.
  void Stop();

  // After Stop: does nothing.
  void Post(std::function<void()> work) { (void)TryPost(std::move(work)); }

  // Calls `begin` on the loop and waits for the promise that it returns, of a status or of nothing.
  // The text of kDeadlineExceeded names `what`. kCancelled: the loop has ended.
  template <typename Begin>
  absl::Status Await(Begin begin, absl::Duration timeout, std::string_view what) {
    return AwaitStatus([begin = std::move(begin)] { return ToStatus(begin()); }, timeout, what);
  }

  // On the loop's thread.
  kj::AsyncIoContext& io() { return *io_; }
  kj::Timer& timer() { return io_->provider->getTimer(); }

 private:
  ControlLoop() = default;
  // False: the loop has ended or is about to.
  bool TryPost(std::function<void()> work);
  absl::Status AwaitStatus(std::function<StatusPromise()> begin, absl::Duration timeout,
                           std::string_view what);
  void Main();
  void RunPosted();

  int event_fd_ = -1;
  absl::Mutex mutex_;
  std::vector<std::function<void()>> posted_ ABSL_GUARDED_BY(mutex_);
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  kj::AsyncIoContext* io_ = nullptr;
  std::thread thread_;
};

// Rounds down to milliseconds and clamps to the range of a timer.
kj::Duration ToKj(absl::Duration duration);

// The system's message in the exception of a failed system call, such as "Address already in use",
// without a full stop.
std::string SystemReason(const kj::Exception& exception);

}  // namespace penstock::actors::control

#endif  // PENSTOCK_ACTORS_CLUSTER_CONTROL_LOOP_INTERNAL_H_
