// Text of one or more files, one behind the other, mapped into memory.
//
// Thread rule: immutable; concurrent reads are safe.

#ifndef PENSTOCK_CLI_MAPPED_TEXT_H_
#define PENSTOCK_CLI_MAPPED_TEXT_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "cli/mapped_file.h"
#include "cli/token_span.h"

namespace penstock::cli {

class MappedText {
 public:
  // A part of a file.
  struct Part {
    std::shared_ptr<const MappedFile> file;
    int64_t first = 0;  // byte
    int64_t count = 0;
  };
  explicit MappedText(std::vector<Part> parts);
  MappedText(const MappedText&) = delete;  // its tokens refer to it
  MappedText& operator=(const MappedText&) = delete;

  int64_t size() const { return size_; }
  // A view of this object.
  TokenSpan tokens() const;

  // Adds how often each byte occurs. Reads all of the text, and keeps little of it in memory.
  void CountBytes(std::array<int64_t, 256>* counts) const;

 private:
  const std::vector<Part> parts_;         // not empty ones
  std::vector<TokenSpan::Piece> pieces_;  // of the parts
  int64_t size_ = 0;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_MAPPED_TEXT_H_
