// The node of a member in a process of its own, which the member outlives: so it can say how the
// node has died, by which signal and whether for lack of memory. Whoever has started the member, on
// another host perhaps, does not tell the coordinator.
//
//   member (finds the others, waits) ── fork ──► node (joins, computes)
//          ── ReportEnd ──► coordinator
//
// The node ends with the member.
//
// Thread rule: one thread.

#ifndef PENSTOCK_CLI_NODE_PROCESS_H_
#define PENSTOCK_CLI_NODE_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace penstock::cli {

class NodeProcess {
 public:
  // What is known only once the others were found.
  struct Task {
    int64_t rank = 0;
    std::string coordinator;
    std::string key;
    absl::Duration connect_timeout;
    bool is_watched = false;  // as NodeOptions has it
    // Another task may follow where nobody answers, so that is no error to tell yet.
    bool may_fail = false;
  };
  // To be called by the work.
  struct Events {
    std::function<void()> on_joined;
    std::function<void()> on_rejoin;  // as NodeOptions has it
  };
  // Joins, and returns when the job is over; tells errors, unless the task may fail.
  using Work = std::function<absl::Status(const Task& task, const Events& events)>;

  struct End {
    absl::Status status;  // of the work, or kUnavailable: the process has died
    bool has_joined = false;
    bool is_to_rejoin = false;       // the same task is to be run again
    std::optional<int> wait_status;  // of a process that has died
    bool is_out_of_memory = false;   // it probably has for that
  };

  // The process is made at once, as long as this one has no other threads: a child of such a
  // process is as good as a new one. Otherwise, and where the system refuses one, the work is done
  // in this process.
  explicit NodeProcess(Work work);
  ~NodeProcess();  // ends it
  NodeProcess(const NodeProcess&) = delete;
  NodeProcess& operator=(const NodeProcess&) = delete;

  // Once the node has joined, both processes leave SIGINT to the coordinator: Ctrl-C on a terminal
  // is for all members, and rank 0 lets the step under way end, and then all. REQUIRES: the process
  // has not died.
  End Run(const Task& task);

  // Of the node; that of this process where there is no other one.
  pid_t pid() const;
  bool is_own() const { return pid_ > 0; }

 private:
  [[noreturn]] static void Serve(int socket, const Work& work);
  End AwaitDeath();
  void Reap(int* wait_status);  // waits for the end of the process

  const Work work_;
  pid_t pid_ = -1;
  int socket_ = -1;
  int exit_fd_ = -1;  // readable once it has ended
  bool has_joined_ = false;
  int64_t num_memory_kills_ = 0;  // when it was made
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_NODE_PROCESS_H_
