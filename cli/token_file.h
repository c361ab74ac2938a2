// A file of tokens, mapped into memory: little-endian u16 or u32 without a header, or a .npy file
// of integers of one dimension. Only what is read is loaded, so files may be larger than the
// memory.
//
// Thread rule: immutable; concurrent reads are safe. A file that another program cuts short while
// it is read ends the process (SIGBUS), as with any mapped file.

#ifndef PENSTOCK_CLI_TOKEN_FILE_H_
#define PENSTOCK_CLI_TOKEN_FILE_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/token_span.h"

namespace penstock::cli {

class TokenFile {
 public:
  // `width` is that of a token in a file without a header: 2 or 4 bytes. Errors begin with the
  // path: nothing there, a length that is no multiple of the width, a .npy file of another type.
  static absl::StatusOr<std::shared_ptr<const TokenFile>> Open(const std::string& path, int width);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  const TokenSpan& tokens() const { return tokens_; }

 private:
  TokenFile() = default;

  void* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
  TokenSpan tokens_;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_TOKEN_FILE_H_
