// A file mapped into memory to be read: only what is used is loaded, and the system may drop it
// again, so files may be larger than the memory. Small files are read instead, as the number of
// mappings of a process is limited.
//
// Thread rule: immutable; concurrent reads are safe. A file that another program cuts short while
// it is read ends the process (SIGBUS), as with any mapped file.

#ifndef PENSTOCK_CLI_MAPPED_FILE_H_
#define PENSTOCK_CLI_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace penstock::cli {

class MappedFile {
 public:
  // Errors begin with the path. An empty file is fine.
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  absl::Span<const uint8_t> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

  // Says that bytes were read and will hardly be soon. They stay readable.
  void Release(size_t first, size_t count) const;

 private:
  MappedFile() = default;

  std::vector<uint8_t> small_;  // of a small file
  void* mapped_ = nullptr;      // of another one
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_MAPPED_FILE_H_
