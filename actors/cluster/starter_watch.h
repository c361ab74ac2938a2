// Ends programs such as ssh, srun and mpirun, which start nodes on other hosts, after the process
// that has started them, however that dies: ssh notices nothing until it has something to pass on,
// and srun may wait for hosts for ever. A process of its own does it.
//
//   launch ── socket: ids and descriptors of starters ──► watching process
//          ✗ ──────── the socket is closed ─────────────► SIGTERM, SIGKILL ──► starters
//
// A job whose nodes have joined says what it has lost, and its starters end with it: they are given
// the time. What has ended by then is left alone.
//
// The descendants of a starter that has to be asked to end are killed after it, such as the ssh of
// an mpirun. A daemon is no descendant any more: the ssh that ControlPersist leaves behind stays,
// once it has detached itself, and other commands may use it.
//
// PR_SET_PDEATHSIG would leave no such time, is gone once a program is set-user-ID, and does not
// reach what the starters have started.
//
// Thread rule: thread-safe. WatchStarters is all that its process does.

#ifndef PENSTOCK_ACTORS_CLUSTER_STARTER_WATCH_H_
#define PENSTOCK_ACTORS_CLUSTER_STARTER_WATCH_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace penstock::actors {

class StarterWatch {
 public:
  // `command` is a program, by its path, that calls WatchStarters(STDIN_FILENO). An error names it
  // and what the system says of it.
  static absl::StatusOr<std::unique_ptr<StarterWatch>> Start(std::vector<std::string> command);
  // Starters that still run are ended.
  ~StarterWatch();
  StarterWatch(const StarterWatch&) = delete;
  StarterWatch& operator=(const StarterWatch&) = delete;

  // A child of this process that starts nodes, with a descriptor of it (pidfd_open). One that the
  // watching process does not take within a second is not watched, and none that comes later is:
  // the caller waits for that once at most.
  void Add(int pid, int pid_fd) const;

 private:
  explicit StarterWatch(int socket) : socket_(socket) {}

  const int socket_;
  mutable std::atomic<bool> has_given_up_{false};  // the watching process takes no messages
};

// Returns when the other end of the socket is closed and all starters have ended. They have
// `grace` to do so by themselves, and as long again after SIGTERM, at most two seconds.
void WatchStarters(int socket, absl::Duration grace = absl::Seconds(5));

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_STARTER_WATCH_H_
