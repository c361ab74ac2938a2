// The safetensors format: named tensors in one file, which readers in many languages open. A file
// is the size of its header as 8 bytes, the header in JSON, and the bytes of the tensors without
// gaps (https://github.com/huggingface/safetensors). Numbers are little-endian.
//
// A header may hold strings under "__metadata__". Penstock adds checksums to them (XXH3, 64 bits,
// 16 hexadecimal digits): "xxh3/NAME" is that of the bytes of a tensor, and "header_xxh3" that of
// the header with zeros in its own place. Files without checksums can be read, too.
//
// Errors begin with the path. Nothing in a file is trusted: kDataLoss if it is damaged.
//
// Thread rule: values; const functions from any thread.

#ifndef PENSTOCK_ACTORS_CHECKPOINT_SAFETENSORS_H_
#define PENSTOCK_ACTORS_CHECKPOINT_SAFETENSORS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "base/tensor.h"

namespace penstock::actors {

// Strings by name, such as {"step", "100"}.
using Metadata = std::map<std::string, std::string>;

// The program that wrote a file. Files of this one have checksums.
inline constexpr char kWriterKey[] = "writer";
// Its value in files of this one.
inline constexpr char kWriter[] = "penstock";

// A tensor of a file.
struct SafetensorsTensor {
  std::string name;     // unique in the file
  TensorType type;      // what its bytes are
  uint64_t offset = 0;  // of its bytes, from the first byte of the first tensor
};

// What a file says of its tensors.
struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // in the order of their bytes
  Metadata metadata;                       // without the checksums
};

// What a checksum looks like in a file.
std::string FormatChecksum(uint64_t checksum);

// XXH3 of `text` in which the value of the one field "name":"..." that holds a checksum reads 0.
// REQUIRES: `checksum` is as FormatChecksum writes it.
uint64_t ChecksumOfSelf(std::string text, std::string_view name, const std::string& checksum);

// A tensor to be written.
struct SafetensorsSource {
  std::string name;  // unique in the file
  TensorType type;   // what its bytes are
  // Returns the tensor's bytes, which stay until the next call of this or of another source.
  std::function<absl::StatusOr<const std::byte*>()> bytes;
};

// Writes a new file and returns the checksum of its header. The file lies on the disk when this
// returns. After an error, such as one of a source or that the disk is full, there is none.
absl::StatusOr<uint64_t> WriteSafetensors(const std::string& path,
                                          absl::Span<const SafetensorsSource> tensors,
                                          const Metadata& metadata);

// What tells a file from others, and from itself before a change.
using FileIdentity = std::array<int64_t, 5>;

// A file whose header was read. It is opened for each read, and not held open in between: a file
// that is removed gives its room on the disk back.
class SafetensorsFile {
 public:
  // Reads and checks the header.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  // As Open was given it.
  const std::string& path() const { return path_; }
  // What the file says of its tensors.
  const SafetensorsHeader& header() const { return header_; }
  // Of the header; nothing if the file has no checksums.
  std::optional<uint64_t> checksum() const { return checksum_; }
  // Null: there is none of this name.
  const SafetensorsTensor* Find(std::string_view name) const;

  // Reads the bytes of a tensor of this file. kDataLoss names it if they do not have their
  // checksum.
  absl::Status Read(const SafetensorsTensor& tensor, std::byte* bytes) const;
  // The same in pieces, which are not kept: a tensor may be larger than the memory.
  absl::Status Verify(const SafetensorsTensor& tensor) const;

 private:
  SafetensorsFile() = default;
  absl::Status Parse(std::string text, uint64_t data_bytes);
  absl::Status CheckChecksum(const SafetensorsTensor& tensor, uint64_t checksum) const;

  std::string path_;
  FileIdentity identity_ = {};
  uint64_t data_begin_ = 0;
  SafetensorsHeader header_;
  std::optional<uint64_t> checksum_;
  std::map<std::string, uint64_t, std::less<>> checksums_;  // of tensors
  std::map<std::string, size_t, std::less<>> index_;        // of header_.tensors
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CHECKPOINT_SAFETENSORS_H_
