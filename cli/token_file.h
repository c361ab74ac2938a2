// A file of tokens, mapped into memory: little-endian u16 or u32 without a header, or a .npy file
// of integers of one dimension. Files may be larger than the memory (mapped_file.h).
//
// Thread rule: immutable; concurrent reads are safe.

#ifndef PENSTOCK_CLI_TOKEN_FILE_H_
#define PENSTOCK_CLI_TOKEN_FILE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/mapped_file.h"
#include "cli/token_span.h"

namespace penstock::cli {

class TokenFile {
 public:
  // `width` is that of a token in a file without a header: 2 or 4 bytes. Errors begin with the
  // path: nothing there, a length that is no multiple of the width, a .npy file of another type.
  static absl::StatusOr<std::shared_ptr<const TokenFile>> Open(const std::string& path, int width);

  const TokenSpan& tokens() const { return tokens_; }

 private:
  TokenFile() = default;

  std::shared_ptr<const MappedFile> file_;
  TokenSpan tokens_;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_TOKEN_FILE_H_
