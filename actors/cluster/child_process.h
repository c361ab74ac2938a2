// A process that this one starts: in a process group of its own, pinned to cores, its output in a
// pipe, its end seen through a descriptor, so that no signal handler of the application is touched.
//
// Thread rule: a ChildProcess belongs to one thread.
// Invariants: a child is reaped once; one that still runs when its ChildProcess goes is killed.

#ifndef PENSTOCK_ACTORS_CLUSTER_CHILD_PROCESS_H_
#define PENSTOCK_ACTORS_CLUSTER_CHILD_PROCESS_H_

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "actors/cluster/process_tree.h"

namespace penstock::actors {

struct ChildCommand {
  // The program is the first: a path, or a name that PATH has.
  std::vector<std::string> arguments;
  std::vector<std::pair<std::string, std::string>> environment;  // added to this process's
  std::vector<int> cores;                                        // to run on; empty: any
  std::string input = {};                                        // at most kMaxInputBytes
};

// What a pipe takes at once.
inline constexpr size_t kMaxInputBytes = 4096;

class ChildProcess {
 public:
  static absl::StatusOr<ChildProcess> Start(const ChildCommand& command);
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept { *this = std::move(other); }
  ChildProcess& operator=(ChildProcess&& other) noexcept;

  pid_t pid() const { return pid_; }
  // Readable once the child has ended.
  int exit_fd() const { return exit_fd_; }
  // Its standard output and error; the caller's from now on.
  int TakeOutputFd() { return std::exchange(output_fd_, -1); }

  // The status of waitpid, once the child has ended. Does not block.
  std::optional<int> Reap();
  // Asks it to end (SIGTERM): programs such as srun and mpirun then end what they have started on
  // other hosts. Kill ends what is left, also when it has ended itself.
  void Terminate();
  // With what it has started itself, such as the ssh of an mpirun, which waits for a host that is
  // cut off until TCP gives up; not daemons, which have become children of another process.
  void Kill();

 private:
  ChildProcess() = default;

  pid_t pid_ = -1;
  int exit_fd_ = -1;
  int output_fd_ = -1;
  std::optional<int> wait_status_;
  bool is_terminated_ = false;
  ProcessHandles descendants_;  // recorded by Terminate
};

// "was killed by signal 9 (Killed)", "exited with status 3".
std::string DescribeWaitStatus(int wait_status);

// As a shell tells it: 128 + the signal, or the status it exited with.
int ShellStatus(int wait_status);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_CHILD_PROCESS_H_
