// A process that the coordinator started, watched on the event loop: its end is reported, and what
// it prints, line by line.
//
// Thread rule: the thread of the event loop. The callbacks must not destroy the object.
// Invariants: the end is reported once, behind all output unless a child of the process keeps that
// open; nothing is reported after the destructor, which kills the process if it still runs.

#ifndef PENSTOCK_ACTORS_CLUSTER_LOCAL_PROCESS_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_LOCAL_PROCESS_INTERNAL_H_

#include <functional>
#include <string_view>

#include <kj/async-io.h>
#include <kj/async-unix.h>

#include "actors/cluster/child_process.h"
#include "actors/cluster/line_splitter.h"

namespace penstock::actors {

class LocalProcess {
 public:
  // `on_exit` gets the status of waitpid; `on_line` a line without its newline.
  LocalProcess(kj::AsyncIoContext& io, ChildProcess child,
               std::function<void(std::string_view line)> on_line,
               std::function<void(int wait_status)> on_exit);
  LocalProcess(const LocalProcess&) = delete;
  LocalProcess& operator=(const LocalProcess&) = delete;

  pid_t pid() const { return child_.pid(); }
  // As ChildProcess has it. What it has started and has not ended is killed when it ends.
  void Terminate() {
    is_terminated_ = true;
    child_.Terminate();
  }
  // Output of its own children that comes afterwards is lost.
  void Kill() {
    is_killed_ = true;
    child_.Kill();
  }
  // Whether it has ended and all its output has been reported.
  bool is_finished() { return child_.Reap().has_value() && has_output_ended_; }

 private:
  kj::Promise<void> ReadOutput();

  ChildProcess child_;
  const std::function<void(int wait_status)> on_exit_;
  LineSplitter lines_;
  kj::Array<char> buffer_;
  bool is_terminated_ = false;
  bool is_killed_ = false;
  bool has_output_ended_ = false;
  kj::Own<kj::AsyncInputStream> output_;
  kj::Own<kj::UnixEventPort::FdObserver> exit_observer_;
  kj::ForkedPromise<void> reading_ = nullptr;
  kj::Promise<void> waiting_ = nullptr;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_LOCAL_PROCESS_INTERNAL_H_
