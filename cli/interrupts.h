// Ctrl-C while a job runs: the first one lets the step under way end, for a moment; the second, or
// SIGTERM, ends the job at once.
//
// Thread rule: made and destroyed by one thread, before it starts others: signals are taken from
// all threads made since. count() from any thread; the abort function is called on a thread of its
// own. Invariant: a few seconds after an abort began the process ends, whatever hangs.

#ifndef PENSTOCK_CLI_INTERRUPTS_H_
#define PENSTOCK_CLI_INTERRUPTS_H_

#include <signal.h>

#include <atomic>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace penstock::cli {

class Interrupts {
 public:
  explicit Interrupts(std::ostream& err);
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Signals so far.
  int count() const { return count_; }

  // What ends the job at once; null where there is nothing to end: then the process ends with the
  // first signal. Returns when a call of the one before is over.
  void SetAbort(std::function<void()> abort);

  // One more file, such as a socket, to remove if a signal ends the process where nothing is to be
  // ended.
  void RemoveAtExit(std::string path);

  // kCancelled, which makes the command end with 128 + the signal: "interrupted (Interrupt) WHERE".
  absl::Status ToStatus(std::string_view where) const;

 private:
  void Main();
  bool HasAbort();
  void Abort();

  std::ostream& err_;
  sigset_t before_;
  int signal_fd_ = -1;
  int stop_fd_ = -1;
  std::atomic<int> count_{0};
  std::atomic<int> signal_{0};
  absl::Mutex mutex_;
  std::function<void()> abort_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> files_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_INTERRUPTS_H_
