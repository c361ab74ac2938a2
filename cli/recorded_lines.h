// A stream that passes on what is written to it, and keeps the lines that are notes, warnings or
// errors, for a report at the end.
//
// Thread rule: one thread.

#ifndef PENSTOCK_CLI_RECORDED_LINES_H_
#define PENSTOCK_CLI_RECORDED_LINES_H_

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <streambuf>
#include <string>
#include <vector>

namespace penstock::cli {

class RecordedLines : private std::streambuf {
 public:
  static constexpr size_t kMaxLines = 100;        // that are kept, the first ones
  static constexpr size_t kMaxLineBytes = 4'000;  // the rest of a longer line is left out

  // `out` outlives this.
  explicit RecordedLines(std::ostream& out) : out_(out), stream_(this) {}
  RecordedLines(const RecordedLines&) = delete;
  RecordedLines& operator=(const RecordedLines&) = delete;

  std::ostream& stream() { return stream_; }

  // Complete lines so far that begin with "note: ", "warning: " or "error: ", each once. A carriage
  // return begins a line, too.
  const std::vector<std::string>& lines() const { return lines_; }
  int64_t num_left_out() const { return num_left_out_; }

 private:
  int_type overflow(int_type c) override;
  std::streamsize xsputn(const char* text, std::streamsize count) override;
  int sync() override;
  void Record(char c);

  std::ostream& out_;
  std::ostream stream_;
  std::string line_;
  std::vector<std::string> lines_;
  int64_t num_left_out_ = 0;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_RECORDED_LINES_H_
