#include "cli/recorded_lines.h"

#include <algorithm>
#include <string_view>

namespace penstock::cli {
namespace {

bool IsKept(std::string_view line) {
  for (const std::string_view prefix : {"note: ", "warning: ", "error: "}) {
    if (line.substr(0, prefix.size()) == prefix) return true;
  }
  return false;
}

}  // namespace

void RecordedLines::Record(char c) {
  if (c == '\r') {
    line_.clear();
  } else if (c != '\n') {
    if (line_.size() < kMaxLineBytes) line_.push_back(c);
  } else {
    if (IsKept(line_) && std::find(lines_.begin(), lines_.end(), line_) == lines_.end()) {
      if (lines_.size() < kMaxLines) {
        lines_.push_back(line_);
      } else {
        ++num_left_out_;
      }
    }
    line_.clear();
  }
}

RecordedLines::int_type RecordedLines::overflow(int_type c) {
  if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
  const char text = traits_type::to_char_type(c);
  Record(text);
  return out_.put(text) ? c : traits_type::eof();
}

std::streamsize RecordedLines::xsputn(const char* text, std::streamsize count) {
  for (std::streamsize i = 0; i < count; ++i) Record(text[i]);
  return out_.write(text, count) ? count : 0;
}

int RecordedLines::sync() { return out_.flush() ? 0 : -1; }

}  // namespace penstock::cli
