// Captures UCX's log: the reason that UCX gives for a failure becomes part of the error, and a
// warning is passed on under our name.
//
// Without this, UCX prints to standard output. A user who sets UCX_LOG_LEVEL gets the lines from
// UCX as well.
//
// Thread rule: any thread; a LogScope belongs to the thread that made it.

#ifndef PENSTOCK_TRANSPORT_UCX_UCX_LOG_H_
#define PENSTOCK_TRANSPORT_UCX_UCX_LOG_H_

#include <functional>
#include <string>
#include <vector>

namespace penstock::transport::ucx {

// From the first call on, errors and warnings of UCX in this process go to the LogScope of the
// thread that logs them, and nowhere where it has none: the status of the failed call says enough.
// Fatal errors, before which UCX aborts the process, are still printed. Does nothing if
// UCX_LOG_LEVEL is set.
void CaptureLog();

// Takes what UCX logs on this thread while the scope lives. Scopes do not nest.
class LogScope {
 public:
  LogScope();
  ~LogScope();
  LogScope(const LogScope&) = delete;
  LogScope& operator=(const LogScope&) = delete;

  // The first error, which is nearest to the cause; empty: none.
  const std::string& error() const { return error_; }
  const std::vector<std::string>& warnings() const { return warnings_; }

  // Hands each warning on, as a line of ours.
  void PassWarnings(const std::function<void(const std::string&)>& on_warning) const;

  // For the log handler.
  void Add(bool is_error, std::string line);

 private:
  std::string error_;
  std::vector<std::string> warnings_;  // bounded
};

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_UCX_LOG_H_
