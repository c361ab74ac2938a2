// Cuts what a process prints into lines: bytes come as they are read, lines are told without their
// newlines. A line longer than kMaxLineBytes is told in parts of that length.
//
// Thread rule: one thread.

#ifndef PENSTOCK_ACTORS_CLUSTER_LINE_SPLITTER_H_
#define PENSTOCK_ACTORS_CLUSTER_LINE_SPLITTER_H_

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace penstock::actors {

class LineSplitter {
 public:
  static constexpr size_t kMaxLineBytes = size_t{16} << 10;

  explicit LineSplitter(std::function<void(std::string_view line)> on_line)
      : on_line_(std::move(on_line)) {}

  void Add(std::string_view bytes) {
    while (!bytes.empty()) {
      if (line_.size() == kMaxLineBytes && bytes[0] != '\n') Tell();
      const size_t room = kMaxLineBytes - line_.size();
      const size_t newline = bytes.substr(0, room + 1).find('\n');
      const bool has_end = newline != std::string_view::npos;
      const size_t count = has_end ? newline : std::min(room, bytes.size());
      line_ += bytes.substr(0, count);
      bytes.remove_prefix(count + (has_end ? 1 : 0));
      if (has_end) Tell();
    }
  }

  // No more bytes come: what has no newline is a line too.
  void End() {
    if (!line_.empty()) Tell();
  }

 private:
  void Tell() {
    on_line_(line_);
    line_.clear();
  }

  const std::function<void(std::string_view line)> on_line_;
  std::string line_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_LINE_SPLITTER_H_
