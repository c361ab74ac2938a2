// Gives a node that Slurm ends the time to say what it has lost. Where `launch` is the command of
// salloc, its death ends the allocation, and Slurm sends SIGTERM to all nodes at the moment in
// which they lose their coordinator. Without this, they would be dead before they have named it and
// how the job goes on.
//
// Thread rule: one thread, which starts no other before.

#ifndef PENSTOCK_CLI_TERMINATION_GRACE_H_
#define PENSTOCK_CLI_TERMINATION_GRACE_H_

#include <functional>
#include <thread>

#include "absl/time/time.h"

namespace penstock::cli {

class TerminationGrace {
 public:
  // From now on, SIGTERM ends this process after `grace`, unless it has ended by itself by then.
  // `on_signal` is called at once, on another thread.
  TerminationGrace(absl::Duration grace, std::function<void()> on_signal);
  ~TerminationGrace();
  TerminationGrace(const TerminationGrace&) = delete;
  TerminationGrace& operator=(const TerminationGrace&) = delete;

 private:
  void Main();

  const absl::Duration grace_;
  const std::function<void()> on_signal_;
  int signal_fd_ = -1;
  int stop_fd_ = -1;
  std::thread thread_;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_TERMINATION_GRACE_H_
