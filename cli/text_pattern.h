// Regular expressions over UTF-8, by the library PCRE2: the patterns with which tokenizers cut text
// into words. \s, \p{L} and so on are those of Unicode.
//
// A pattern may come from a file that is not trusted: the work of a match is bounded.
//
// Thread rule: a pattern is immutable; Find from any thread.

#ifndef PENSTOCK_CLI_TEXT_PATTERN_H_
#define PENSTOCK_CLI_TEXT_PATTERN_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock::cli {

class TextPattern {
 public:
  static absl::StatusOr<TextPattern> Compile(const std::string& pattern);
  TextPattern(TextPattern&&) noexcept;
  TextPattern& operator=(TextPattern&&) noexcept;
  ~TextPattern();

  // Calls found(begin, end) for each match from left to right; empty ones are left out. REQUIRES:
  // the text is UTF-8. kResourceExhausted: a match takes too much work.
  absl::Status ForEachMatch(std::string_view text,
                            const std::function<void(size_t begin, size_t end)>& found) const;

 private:
  struct Code;
  explicit TextPattern(std::unique_ptr<Code> code);

  std::unique_ptr<Code> code_;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_TEXT_PATTERN_H_
