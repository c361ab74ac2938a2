// The thread that the control plane runs on: an event loop of Cap'n Proto's, entered from other
// threads through a queue.
//
// Thread rule: Post and Await from any thread but the loop's; all kj objects belong to the loop.
// Invariants: what is posted runs in order; what is posted after the end is dropped; Await ends
// within its timeout plus a few seconds.

#ifndef PENSTOCK_ACTORS_CLUSTER_CONTROL_LOOP_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_CONTROL_LOOP_INTERNAL_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <kj/time.h>

#include "actors/cluster/wire_status_internal.h"

namespace penstock::actors::control {

class ControlLoop {
 public:
  static absl::StatusOr<std::unique_ptr<ControlLoop>> Start();
  // Runs what was posted, then ends. What the loop's objects hold must be gone by then.
  ~ControlLoop();
  ControlLoop(const ControlLoop&) = delete;
  ControlLoop& operator=(const ControlLoop&) = delete;

  void Post(std::function<void()> work);

  // Begins something on the loop and waits for its end: `begin` returns a promise of a status or of
  // nothing. kDeadlineExceeded names `what`.
  template <typename Begin>
  absl::Status Await(Begin begin, absl::Duration timeout, std::string_view what) {
    return AwaitStatus([begin = std::move(begin)] { return ToStatus(begin()); }, timeout, what);
  }

  // On the loop's thread.
  kj::AsyncIoContext& io() { return *io_; }
  kj::Timer& timer() { return io_->provider->getTimer(); }

 private:
  ControlLoop() = default;
  absl::Status AwaitStatus(std::function<StatusPromise()> begin, absl::Duration timeout,
                           std::string_view what);
  void Main();
  void RunPosted();

  int event_fd_ = -1;
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;  // guarded by mutex_
  bool is_stopping_ = false;                   // guarded by mutex_
  kj::AsyncIoContext* io_ = nullptr;
  std::thread thread_;
};

// Rounded down to milliseconds, and limited to what a timer can wait.
kj::Duration ToKj(absl::Duration duration);

// Of a system call that failed: what the system says, as "Address already in use", without a full
// stop.
std::string SystemReason(const kj::Exception& exception);

}  // namespace penstock::actors::control

#endif  // PENSTOCK_ACTORS_CLUSTER_CONTROL_LOOP_INTERNAL_H_
