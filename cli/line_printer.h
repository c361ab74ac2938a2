// Prints lines on a thread of its own, so that who hands them in never waits for a terminal. Where
// lines come faster than they are read, the oldest are left out.
//
// Thread rule: Print from any thread. The stream is used by the printer's own thread alone, and is
// good for as long as that may take: a reader that stalls is left alone with it.

#ifndef PENSTOCK_CLI_LINE_PRINTER_H_
#define PENSTOCK_CLI_LINE_PRINTER_H_

#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <ostream>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace penstock::cli {

class LinePrinter {
 public:
  static constexpr size_t kMaxLines = 10'000;  // that wait

  explicit LinePrinter(std::ostream& out,
                       std::chrono::milliseconds patience = std::chrono::seconds(1));
  // Waits for what is left to be printed, but no longer than `patience`.
  ~LinePrinter();
  LinePrinter(const LinePrinter&) = delete;
  LinePrinter& operator=(const LinePrinter&) = delete;

  // As it is: a line ends with its newline.
  void Print(std::string line);

 private:
  // Shared with the thread, which may outlive the printer.
  struct State {
    explicit State(std::ostream& stream) : out(stream) {}
    void Run();

    std::ostream& out;
    absl::Mutex mutex;
    std::deque<std::string> lines ABSL_GUARDED_BY(mutex);
    bool is_ending ABSL_GUARDED_BY(mutex) = false;
    bool has_ended ABSL_GUARDED_BY(mutex) = false;
  };

  const std::shared_ptr<State> state_;
  const std::chrono::milliseconds patience_;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_LINE_PRINTER_H_
