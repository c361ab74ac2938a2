#include "actors/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <set>
#include <tuple>
#include <utility>

#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include <xxhash.h>

#include "actors/checkpoint/durable_file.h"
#include "actors/checkpoint/json_internal.h"
#include "actors/engine/error_origin.h"
#include "base/shape.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");

using Json = nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kAlignment = 8;                   // of the first tensor
constexpr uint64_t kMaxHeaderBytes = 100 << 20;      // as other readers have it
constexpr uint64_t kPieceBytes = uint64_t{4} << 20;  // of a tensor that is verified
constexpr char kMetadata[] = "__metadata__";
constexpr char kHeaderChecksum[] = "header_xxh3";
constexpr char kChecksumPrefix[] = "xxh3/";
constexpr size_t kChecksumDigits = 16;

struct DTypeName {
  DType dtype;
  std::string_view name;
};
constexpr std::array kDTypeNames = {
    DTypeName{DType::kF32, "F32"},   DTypeName{DType::kF64, "F64"}, DTypeName{DType::kF16, "F16"},
    DTypeName{DType::kBF16, "BF16"}, DTypeName{DType::kI8, "I8"},   DTypeName{DType::kU8, "U8"},
    DTypeName{DType::kI32, "I32"},   DTypeName{DType::kI64, "I64"}, DTypeName{DType::kBool, "BOOL"},
};
static_assert(kDTypeNames.size() == kNumDTypes);

std::string_view NameOf(DType dtype) {
  return std::find_if(kDTypeNames.begin(), kDTypeNames.end(),
                      [dtype](const DTypeName& entry) { return entry.dtype == dtype; })
      ->name;
}

std::optional<uint64_t> ParseChecksum(std::string_view text) {
  if (text.size() != kChecksumDigits) return std::nullopt;
  uint64_t value = 0;
  for (const char digit : text) {
    const bool is_letter = digit >= 'a' && digit <= 'f';
    if (!is_letter && (digit < '0' || digit > '9')) return std::nullopt;
    value = value * 16 + static_cast<uint64_t>(is_letter ? digit - 'a' + 10 : digit - '0');
  }
  return value;
}

// The header as it is written, with the checksums as given.
absl::StatusOr<std::string> EncodeHeader(absl::Span<const SafetensorsSource> tensors,
                                         const Metadata& metadata,
                                         absl::Span<const uint64_t> checksums) {
  Json strings = metadata;
  strings[kHeaderChecksum] = FormatChecksum(0);
  Json json = Json::object();
  uint64_t offset = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, type] = std::tie(tensors[i].name, tensors[i].type);
    if (name == kMetadata || json.contains(name)) {
      return absl::InvalidArgumentError(
          name == kMetadata ? StrCat("a tensor cannot be called ", name, ", as the metadata are")
                            : StrCat("two tensors are called ", name));
    }
    strings[StrCat(kChecksumPrefix, name)] = FormatChecksum(checksums[i]);
    const uint64_t end = offset + type.num_bytes();
    json[name] = {{"dtype", std::string(NameOf(type.dtype))},
                  {"shape", std::vector<int64_t>(type.shape.begin(), type.shape.end())},
                  {"data_offsets", {offset, end}}};
    offset = end;
  }
  json[kMetadata] = std::move(strings);
  ASSIGN_OR_RETURN(std::string text, DumpJson(json));
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  return text;
}

absl::StatusOr<SafetensorsTensor> ParseTensor(const std::string& name, const Json& json,
                                              uint64_t data_bytes) {
  // It is printed on terminals.
  if (HasControlCharacters(name)) {
    return absl::DataLossError("the name of a tensor has control characters");
  }
  const auto wrong = [&name](std::string_view what) {
    return absl::DataLossError(StrCat("tensor ", name, ": ", what));
  };
  if (!json.is_object() || json.size() != 3 || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets")) {
    return wrong("expected dtype, shape and data_offsets");
  }
  SafetensorsTensor tensor;
  tensor.name = name;
  const Json& dtype = json["dtype"];
  const auto known = std::find_if(
      kDTypeNames.begin(), kDTypeNames.end(),
      [&dtype](const DTypeName& entry) { return dtype.is_string() && dtype == entry.name; });
  if (known == kDTypeNames.end()) return wrong(StrCat("unknown dtype ", dtype.dump()));
  tensor.type.dtype = known->dtype;
  const Json& shape = json["shape"];
  if (!shape.is_array() || shape.size() > kMaxRank) return wrong("its shape is no list of sizes");
  for (const Json& size : shape) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > INT64_MAX) {
      return wrong("its shape is no list of sizes");
    }
    tensor.type.shape.push_back(size.get<int64_t>());
  }
  const absl::Status is_sound = CheckShape(tensor.type.shape);
  if (!is_sound.ok()) return wrong(ToStd(is_sound.message()));
  const uint64_t num_bytes = tensor.type.num_bytes();
  const Json& offsets = json["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return wrong("its data_offsets are no two offsets");
  }
  tensor.offset = offsets[0].get<uint64_t>();
  const auto end = offsets[1].get<uint64_t>();
  if (end < tensor.offset || end > data_bytes) return wrong("its bytes lie outside of the file");
  if (end - tensor.offset != num_bytes) {
    return wrong(StrCat(ToString(tensor.type), " does not have ", end - tensor.offset, " bytes"));
  }
  return tensor;
}

// The tensors have to fill the data section, each byte once.
absl::Status CheckCoverage(const std::vector<SafetensorsTensor>& tensors, uint64_t data_bytes) {
  uint64_t end = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.offset != end) {
      return absl::DataLossError(StrCat("tensor ", tensor.name, " begins at byte ", tensor.offset,
                                        " of the data, where byte ", end, " was expected"));
    }
    end += tensor.type.num_bytes();
  }
  if (end == data_bytes) return absl::OkStatus();
  return absl::DataLossError(
      StrCat("the tensors have ", end, " bytes, the file has ", data_bytes, " for them"));
}

absl::Status At(const std::string& path, const absl::Status& status) {
  return WithPrefix(StrCat(path, ": "), status);
}

}  // namespace

std::string FormatChecksum(uint64_t checksum) { return fmt::format("{:016x}", checksum); }

uint64_t ChecksumOfSelf(std::string text, std::string_view name, const std::string& checksum) {
  const std::string field = StrCat("\"", name, "\":\"");
  const size_t at = text.find(StrCat(field, checksum, "\""));
  if (at != std::string::npos) text.replace(at + field.size(), kChecksumDigits, FormatChecksum(0));
  return XXH3_64bits(text.data(), text.size());
}

absl::StatusOr<uint64_t> WriteSafetensors(const std::string& path,
                                          absl::Span<const SafetensorsSource> tensors,
                                          const Metadata& metadata) {
  std::vector<uint64_t> checksums(tensors.size());
  // As long as the header will be.
  absl::StatusOr<std::string> encoded = EncodeHeader(tensors, metadata, checksums);
  if (!encoded.ok()) return At(path, encoded.status());
  std::string header = *std::move(encoded);
  ASSIGN_OR_RETURN(DurableFile file, DurableFile::Create(path));
  uint64_t at = kLengthBytes + header.size();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t num_bytes = tensors[i].type.num_bytes();
    ASSIGN_OR_RETURN(const std::byte* const bytes, tensors[i].bytes());
    checksums[i] = XXH3_64bits(bytes, num_bytes);
    RETURN_IF_ERROR(file.WriteAt(at, bytes, num_bytes));
    at += num_bytes;
  }
  ASSIGN_OR_RETURN(header, EncodeHeader(tensors, metadata, checksums));
  const uint64_t checksum = XXH3_64bits(header.data(), header.size());
  const std::string field = StrCat("\"", kHeaderChecksum, "\":\"");
  header.replace(header.find(field) + field.size(), kChecksumDigits, FormatChecksum(checksum));
  const uint64_t length = header.size();
  RETURN_IF_ERROR(file.WriteAt(0, &length, sizeof(length)));
  RETURN_IF_ERROR(file.WriteAt(kLengthBytes, header.data(), header.size()));
  RETURN_IF_ERROR(file.Finish());
  return checksum;
}

namespace {

// A file that is open for reading.
class OpenFile {
 public:
  // Errors name the file.
  static absl::StatusOr<OpenFile> Open(const std::string& path) {
    // Without O_NONBLOCK, opening a pipe would wait for its writer.
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
      const std::string message = StrCat(path, ": cannot be opened (", strerror(errno), ")");
      return errno == ENOENT ? absl::NotFoundError(message) : absl::InvalidArgumentError(message);
    }
    OpenFile file(fd);
    if (fstat(fd, &file.info_) != 0 || !S_ISREG(file.info_.st_mode)) {
      return absl::InvalidArgumentError(StrCat(path, ": is no file"));
    }
    return file;
  }
  OpenFile(OpenFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)), info_(other.info_) {}
  OpenFile& operator=(OpenFile&&) = delete;
  ~OpenFile() {
    if (fd_ >= 0) close(fd_);
  }

  uint64_t num_bytes() const { return static_cast<uint64_t>(info_.st_size); }
  // Changes with the contents.
  FileIdentity identity() const {
    return {static_cast<int64_t>(info_.st_dev), static_cast<int64_t>(info_.st_ino), info_.st_size,
            info_.st_mtim.tv_sec, info_.st_mtim.tv_nsec};
  }

  // Errors do not name the file.
  absl::Status ReadAt(uint64_t offset, void* to, uint64_t size) const {
    auto* bytes = static_cast<char*>(to);
    while (size > 0) {
      const ssize_t count = pread(fd_, bytes, size, static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) {
        return absl::UnavailableError(StrCat("cannot be read (", strerror(errno), ")"));
      }
      if (count == 0) return absl::DataLossError("the file ends too early");
      bytes += count;
      offset += static_cast<uint64_t>(count);
      size -= static_cast<uint64_t>(count);
    }
    return absl::OkStatus();
  }

 private:
  explicit OpenFile(int fd) : fd_(fd) {}

  int fd_;
  struct stat info_ = {};
};

// A file that was opened before.
absl::StatusOr<OpenFile> OpenAgain(const std::string& path, const FileIdentity& identity) {
  ASSIGN_OR_RETURN(OpenFile opened, OpenFile::Open(path));
  if (opened.identity() == identity) return opened;
  return absl::DataLossError(StrCat(path, ": has changed since it was opened"));
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  SafetensorsFile file;
  file.path_ = path;
  ASSIGN_OR_RETURN(const OpenFile opened, OpenFile::Open(path));
  file.identity_ = opened.identity();
  uint64_t header_bytes = 0;
  if (opened.num_bytes() < kLengthBytes) {
    return absl::DataLossError(StrCat(path, ": is no safetensors file"));
  }
  absl::Status status = opened.ReadAt(0, &header_bytes, sizeof(header_bytes));
  if (!status.ok()) return At(path, status);
  if (header_bytes > kMaxHeaderBytes) {
    return absl::DataLossError(
        StrCat(path, ": is no safetensors file: a header of ", header_bytes, " bytes"));
  }
  if (header_bytes > opened.num_bytes() - kLengthBytes) {
    return absl::DataLossError(StrCat(path,
                                      ": is truncated or no safetensors file: ", opened.num_bytes(),
                                      " bytes, with a header of ", header_bytes));
  }
  file.data_begin_ = kLengthBytes + header_bytes;
  std::string text(header_bytes, '\0');
  status = opened.ReadAt(kLengthBytes, text.data(), text.size());
  if (!status.ok()) return At(path, status);
  status = file.Parse(std::move(text), opened.num_bytes() - file.data_begin_);
  if (!status.ok()) return At(path, status);
  return file;
}

absl::Status SafetensorsFile::Parse(std::string text, uint64_t data_bytes) {
  ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text, "the header"));
  std::string checksum;
  bool is_ours = false;
  for (const auto& [name, value] : json.items()) {
    if (name != kMetadata) {
      ASSIGN_OR_RETURN(SafetensorsTensor tensor, ParseTensor(name, value, data_bytes));
      header_.tensors.push_back(std::move(tensor));
      continue;
    }
    if (!value.is_object()) return absl::DataLossError("__metadata__ holds more than strings");
    for (const auto& [key, string] : value.items()) {
      if (!string.is_string()) return absl::DataLossError("__metadata__ holds more than strings");
      auto words = string.get<std::string>();
      if (key == kHeaderChecksum) {
        checksum = std::move(words);
      } else if (key.rfind(kChecksumPrefix, 0) == 0) {
        const std::optional<uint64_t> of_tensor = ParseChecksum(words);
        if (!of_tensor.has_value()) return absl::DataLossError("the header is damaged");
        checksums_[key.substr(sizeof(kChecksumPrefix) - 1)] = *of_tensor;
      } else {
        is_ours |= key == kWriterKey && words == kWriter;
        header_.metadata[key] = std::move(words);
      }
    }
  }
  if (is_ours || !checksum.empty() || !checksums_.empty()) {
    checksum_ = ParseChecksum(checksum);
    if (!checksum_.has_value() ||
        *checksum_ != ChecksumOfSelf(std::move(text), kHeaderChecksum, checksum)) {
      return absl::DataLossError("the header is damaged: it does not have its checksum");
    }
  }
  std::stable_sort(header_.tensors.begin(), header_.tensors.end(),
                   [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
                     // An empty tensor ends where the next one begins.
                     return std::pair(a.offset, a.type.num_bytes()) <
                            std::pair(b.offset, b.type.num_bytes());
                   });
  RETURN_IF_ERROR(CheckCoverage(header_.tensors, data_bytes));
  for (size_t i = 0; i < header_.tensors.size(); ++i) index_[header_.tensors[i].name] = i;
  return absl::OkStatus();
}

const SafetensorsTensor* SafetensorsFile::Find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

absl::Status SafetensorsFile::Read(const SafetensorsTensor& tensor, std::byte* bytes) const {
  const uint64_t num_bytes = tensor.type.num_bytes();
  ASSIGN_OR_RETURN(const OpenFile opened, OpenAgain(path_, identity_));
  const absl::Status status = opened.ReadAt(data_begin_ + tensor.offset, bytes, num_bytes);
  if (!status.ok()) return At(path_, WithPrefix(StrCat("tensor ", tensor.name, ": "), status));
  return CheckChecksum(tensor, XXH3_64bits(bytes, num_bytes));
}

absl::Status SafetensorsFile::Verify(const SafetensorsTensor& tensor) const {
  ASSIGN_OR_RETURN(const OpenFile opened, OpenAgain(path_, identity_));
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  if (state == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state.get());
  const uint64_t num_bytes = tensor.type.num_bytes();
  std::vector<std::byte> piece(std::min(num_bytes, kPieceBytes));
  for (uint64_t at = 0; at < num_bytes;) {
    const uint64_t size = std::min(num_bytes - at, kPieceBytes);
    const absl::Status status = opened.ReadAt(data_begin_ + tensor.offset + at, piece.data(), size);
    if (!status.ok()) return At(path_, WithPrefix(StrCat("tensor ", tensor.name, ": "), status));
    XXH3_64bits_update(state.get(), piece.data(), size);
    at += size;
  }
  return CheckChecksum(tensor, XXH3_64bits_digest(state.get()));
}

absl::Status SafetensorsFile::CheckChecksum(const SafetensorsTensor& tensor,
                                            uint64_t checksum) const {
  const auto expected = checksums_.find(tensor.name);
  if (expected == checksums_.end() || expected->second == checksum) return absl::OkStatus();
  return absl::DataLossError(
      StrCat(path_, ": tensor ", tensor.name, " is damaged: it does not have its checksum"));
}

}  // namespace penstock::actors
