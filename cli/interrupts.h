// Ctrl-C while a job runs: the first one lets the step under way end, for a moment; the second, or
// SIGTERM, ends the job at once. A time limit does what the first Ctrl-C does, and after a minute
// what the second does.
//
// Thread rule: made and destroyed by one thread, before it starts others: signals are taken from
// all threads made since. count() from any thread; the abort function is called on a
// thread of its own. Invariant: a few seconds after an abort began the process ends, whatever
// hangs.

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
#include "absl/time/time.h"

namespace penstock::cli {

// What `timeout` of coreutils exits with.
inline constexpr int kTimeLimitStatus = 124;

class Interrupts {
 public:
  // `time_limit` counts from now on.
  explicit Interrupts(std::ostream& err, absl::Duration time_limit = absl::InfiniteDuration());
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Signals so far, and the end of the time limit.
  int count() const { return count_; }

  // What ends the job at once; null where there is nothing to end: then the process ends with the
  // first signal. Returns when a call of the one before is over.
  void SetAbort(std::function<void()> abort);

  // One more file, such as a socket, to remove if a signal ends the process where nothing is to be
  // ended.
  void RemoveAtExit(std::string path);

  // kCancelled, which makes the command end with 128 + the signal, or with kTimeLimitStatus:
  // "interrupted (Interrupt) WHERE".
  absl::Status ToStatus(std::string_view where) const;

 private:
  void Main();
  bool HasAbort();
  void Abort();
  int ExitStatus() const { return signal_ == 0 ? kTimeLimitStatus : 128 + signal_; }

  std::ostream& err_;
  const absl::Duration time_limit_;
  const absl::Time deadline_;
  sigset_t before_;
  int signal_fd_ = -1;
  int stop_fd_ = -1;
  std::atomic<int> count_{0};
  std::atomic<int> signal_{0};  // the last one; 0: none has come
  absl::Mutex mutex_;
  std::function<void()> abort_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> files_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_INTERRUPTS_H_
