// Signals that end a run, from its beginning on. What the first one does depends on what is under
// way:
//
//   start of processes  Ctrl-C, SIGTERM, SIGHUP and a time limit cancel it in order
//   steps               Ctrl-C lets the step under way end, for a moment; SIGTERM ends the job at
//                       once, and SIGHUP this process, as if nobody took it: its nodes notice
//   all else            the process ends, with a message that says what was under way
//
// The second one ends everything at once. A time limit does what the first Ctrl-C does, and after a
// minute what the second does.
//
// Thread rule: made and destroyed by one thread, before it starts others: signals are taken from
// all threads made since. count() from any thread; the functions of SetStart and SetAbort are
// called on threads of their own. Invariant: a few seconds after an abort began the process ends,
// whatever hangs.

#ifndef PENSTOCK_CLI_INTERRUPTS_H_
#define PENSTOCK_CLI_INTERRUPTS_H_

#include <signal.h>

#include <atomic>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace penstock::cli {

// What `timeout` of coreutils exits with.
inline constexpr int kTimeLimitStatus = 124;

class Interrupts {
 public:
  // A start of processes that can be cancelled.
  struct Start {
    std::string where;  // "while the hosts were probed"
    std::function<std::string()>
        describe_missing;  // "; missing: node2 (rank 1)"; empty: none known
    std::function<void(const absl::Status& cause)> cancel;  // does not wait for the end
    std::function<void()> kill;                             // at once
  };

  explicit Interrupts(std::ostream& err);
  // If a signal or the time limit has ended the run, a SIGINT or SIGTERM from then on makes the
  // process exit at once, with 128 + the signal.
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Counts from the constructor.
  void SetTimeLimit(absl::Duration time_limit);

  // Signals so far, and the end of the time limit.
  int count() const { return count_; }

  // What is under way where there is nothing to end, such as "while the plan was made".
  void SetActivity(std::string where);

  // What the first signal cancels; nullopt: nothing is being started. Returns when a call of the
  // one before is over.
  void SetStart(std::optional<Start> start);

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
  enum class Stage { kNone, kEndingSteps, kCancelling, kAborting };

  void Main();
  bool HasAbort();
  bool HasStart();
  void Cancel();
  void Abort();
  void EndByHangup();
  absl::Duration time_limit() const;
  int ExitStatus() const { return signal_ == 0 ? kTimeLimitStatus : 128 + signal_; }

  std::ostream& err_;
  const absl::Time begin_ = absl::Now();
  sigset_t before_;
  int signal_fd_ = -1;
  int wake_fd_ = -1;
  std::atomic<bool> is_stopping_{false};
  std::atomic<int> count_{0};
  std::atomic<int> signal_{0};  // the last one; 0: none has come
  mutable absl::Mutex limit_mutex_;
  absl::Duration time_limit_ ABSL_GUARDED_BY(limit_mutex_) = absl::InfiniteDuration();
  absl::Mutex start_mutex_;  // held by calls of its functions
  std::optional<Start> start_ ABSL_GUARDED_BY(start_mutex_);
  absl::Mutex mutex_;  // held by calls of the abort function
  std::function<void()> abort_ ABSL_GUARDED_BY(mutex_);
  std::string where_ ABSL_GUARDED_BY(mutex_) = "before anything was started";
  std::vector<std::string> files_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_INTERRUPTS_H_
