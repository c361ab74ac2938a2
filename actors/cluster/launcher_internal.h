// Starts the processes of a job on its hosts, tells what becomes of them, and ends them. The one
// implementation outside tests, LocalLauncher (local_launcher_internal.h), starts local processes,
// among them ssh, srun and mpirun, which start a node elsewhere.
//
//   launcher.SetEvents({on_line, on_exit});
//   launcher.Launch({.rank = 1, .arguments = {"penstock", "node", ...}});
//
// A job has one in an actor (process_launcher_internal.h).
//
// Thread rule: the thread of an event loop, for calls and events. An event must not destroy the
// launcher.
// Invariants: the exit of a process is told once; nothing is told after the destructor, which ends
// the processes that still run.

#ifndef PENSTOCK_ACTORS_CLUSTER_LAUNCHER_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_LAUNCHER_INTERNAL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include <kj/async-io.h>

namespace penstock::actors {

struct LaunchCommand {
  uint32_t rank = 0;                                             // one process each
  std::vector<std::string> arguments;                            // the program is the first
  std::vector<std::pair<std::string, std::string>> environment;  // added to that of the host
  std::vector<int> cores;                                        // to run on; empty: any
  std::string input = {};  // on its standard input; at most kMaxInputBytes (child_process.h)
  // Where the process will be if the command is one that starts it on another host and ends with
  // its status, or with 128 + the signal that has ended it. Empty: on this host.
  std::string remote_host = {};
  // The command starts an agent (host_agent.h) for the nodes of so many ranks, from `rank` on. 0:
  // it starts the node of `rank`.
  uint32_t agent_ranks = 0;
};

struct LaunchedProcess {
  int pid = 0;  // on its host; 0: not known
  std::string host;
};

class Launcher {
 public:
  struct Events {
    // A line that a process has printed, without its newline.
    std::function<void(uint32_t rank, std::string_view line)> on_line;
    // `wait_status`: as waitpid tells it. `note`: what else is known of its end, such as
    // ", probably for lack of memory"; mostly nothing.
    std::function<void(uint32_t rank, int wait_status, std::string_view note)> on_exit;
  };

  virtual ~Launcher() = default;

  // Before the first Launch.
  virtual void SetEvents(Events events) = 0;
  // An error names the command and what the system says of it.
  virtual absl::StatusOr<LaunchedProcess> Launch(const LaunchCommand& command) = 0;
  virtual bool HasLaunched(uint32_t rank) const = 0;
  // Whether it has ended and all its output was told. True of a rank that was not launched.
  virtual bool IsFinished(uint32_t rank) = 0;
  // Ends a process at once, and with it the others of its agent, whose ends are told after its own.
  // Nothing if it has ended, or was not launched.
  virtual void Kill(uint32_t rank) = 0;
  // Ends a process whose node has not joined, with the others of its agent. A program that starts
  // nodes on another host gets SIGTERM, so that it can end what it has started there; Kill ends one
  // that then goes on. Any other process is killed.
  virtual void Terminate(uint32_t rank) { Kill(rank); }
};

// Makes the launcher of a job, on the thread of the event loop; `io` outlives it.
using LauncherFactory = std::function<std::unique_ptr<Launcher>(kj::AsyncIoContext& io)>;

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_LAUNCHER_INTERNAL_H_
