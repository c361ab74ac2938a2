// Processes that another one has started, as far as /proc tells, and signals to them that reach
// nobody else.
//
// Thread rule: a ProcessHandles belongs to one thread.

#ifndef PENSTOCK_ACTORS_CLUSTER_PROCESS_TREE_H_
#define PENSTOCK_ACTORS_CLUSTER_PROCESS_TREE_H_

#include <sys/types.h>

#include <utility>
#include <vector>

namespace penstock::actors {

// What a process has started, directly or not, and is still the parent of. Whose children they are
// is forgotten when it has ended; a daemon is the child of another process.
std::vector<pid_t> DescendantsOf(pid_t pid);

// To the process of a descriptor (pidfd_open) and to no other. Nothing if it has ended.
void SendSignal(int pid_fd, int signal_number);

// Descriptors of processes: a signal reaches these and no others that have got their ids since.
class ProcessHandles {
 public:
  ProcessHandles() = default;
  ~ProcessHandles();
  ProcessHandles(ProcessHandles&& other) noexcept { *this = std::move(other); }
  ProcessHandles& operator=(ProcessHandles&& other) noexcept {
    fds_.swap(other.fds_);
    return *this;
  }

  // Nothing of one that has ended.
  void Add(pid_t pid);
  void Signal(int signal_number) const;

 private:
  std::vector<int> fds_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_PROCESS_TREE_H_
