#include "cli/token_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "cli/files.h"
#include "cli/text_pattern.h"
#include "cli/utf8.h"
#include "fmt/format.h"
#include <xxhash.h>

#include "actors/engine/error_origin.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

constexpr size_t kMaxTokenizerBytes = size_t{1} << 28;
constexpr size_t kChunkBytes = size_t{1} << 20;
// How far behind the beginning of its last tenth a text may be cut.
constexpr size_t kCutWindow = size_t{1} << 14;
constexpr size_t kNpyHeaderBytes = 128;

absl::Status FileError(const std::string& path, std::string_view what, int error) {
  return absl::InvalidArgumentError(StrCat(path, ": ", what, " (", std::strerror(error), ")"));
}

// Whether the last character is a letter or a digit. The text may begin within a character.
bool EndsWithWord(std::string_view text) {
  // A function-local constant: immutable, built on first use, shared by all readers.
  static const auto* const pattern =
      new absl::StatusOr<TextPattern>(TextPattern::Compile(R"([\p{L}\p{N}])"));
  for (size_t length = 1; length <= std::min<size_t>(text.size(), 4); ++length) {
    const std::string_view character = text.substr(text.size() - length);
    const Utf8Char first = FirstChar(character);
    if (!first.is_valid || first.length != length) continue;
    bool is_word = false;
    const auto found = [&is_word](size_t, size_t) { is_word = true; };
    return pattern->ok() && (*pattern)->ForEachMatch(character, found).ok() && is_word;
  }
  return false;
}

// A file that is read from anywhere.
class TextFile {
 public:
  static absl::StatusOr<TextFile> Open(const std::string& path) {
    TextFile file;
    file.path_ = path;
    file.fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status = {};
    if (file.fd_ < 0 || fstat(file.fd_, &status) != 0) {
      return FileError(path, "cannot be opened", errno);
    }
    file.size_ = static_cast<size_t>(status.st_size);
    return file;
  }
  TextFile(TextFile&& other) noexcept
      : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}
  TextFile& operator=(TextFile&&) = delete;
  ~TextFile() {
    if (fd_ >= 0) close(fd_);
  }

  size_t size() const { return size_; }

  // Appends `count` bytes from `at` on. REQUIRES: there are as many.
  absl::Status Append(size_t at, size_t count, std::string* text) const {
    const size_t begin = text->size();
    text->resize(begin + count);
    for (size_t done = 0; done < count;) {
      const ssize_t read =
          pread(fd_, text->data() + begin + done, count - done, static_cast<off_t>(at + done));
      if (read < 0 && errno == EINTR) continue;
      if (read < 0) return FileError(path_, "cannot be read", errno);
      if (read == 0) return absl::InvalidArgumentError(StrCat(path_, ": has become shorter"));
      done += static_cast<size_t>(read);
    }
    return absl::OkStatus();
  }

  // Where the held-out part begins.
  absl::StatusOr<size_t> HeldOutBegin() const {
    const size_t begin = size_ - size_ / 10;
    if (begin == size_) return size_;
    std::string text;
    const size_t first = begin - 1;  // what the part may follow
    RETURN_IF_ERROR(Append(first, std::min(size_ - first, kCutWindow), &text));
    for (size_t at = 1; at < text.size(); ++at) {
      if (IsCut(text, at)) return first + at;
    }
    for (size_t at = 1; at < text.size(); ++at) {
      if (IsCharacterBegin(text[at])) return first + at;
    }
    return size_;
  }

  // In front of the end of a line, "\n" or "\r\n", whose last character is a letter or a digit.
  static bool IsCut(std::string_view text, size_t at) {
    const bool is_line_end = text[at] == '\n' || text.substr(at, 2) == "\r\n";
    return is_line_end && EndsWithWord(text.substr(0, at));
  }
  static bool IsCharacterBegin(char byte) { return (static_cast<unsigned char>(byte) >> 6) != 2; }

 private:
  TextFile() = default;

  std::string path_;
  int fd_ = -1;
  size_t size_ = 0;
};

// Writes tokens into a .npy file beside its final name.
class TokenWriter {
 public:
  static absl::StatusOr<TokenWriter> Create(const std::string& path, int width) {
    TokenWriter writer(path, width);
    writer.fd_ = open(writer.part_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (writer.fd_ < 0) return FileError(writer.part_, "cannot be created", errno);
    RETURN_IF_ERROR(writer.Write(std::string(kNpyHeaderBytes, '\0')));
    return writer;
  }
  TokenWriter(TokenWriter&& other) noexcept
      : path_(std::move(other.path_)),
        part_(std::move(other.part_)),
        width_(other.width_),
        fd_(std::exchange(other.fd_, -1)),
        count_(other.count_) {}
  TokenWriter& operator=(TokenWriter&&) = delete;
  ~TokenWriter() {
    if (fd_ < 0) return;
    close(fd_);
    unlink(part_.c_str());
  }

  absl::Status Add(absl::Span<const int32_t> tokens) {
    std::string bytes(tokens.size() * width_, '\0');
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::memcpy(bytes.data() + i * width_, &tokens[i], width_);  // little-endian
    }
    count_ += tokens.size();
    return Write(bytes);
  }

  // The file has its name.
  absl::Status Finish() {
    std::string header = fmt::format(
        "{{'descr': '<u{}', 'fortran_order': False, 'shape': ({},), }}", width_, count_);
    header.resize(kNpyHeaderBytes - 11, ' ');
    header += '\n';
    const auto length = static_cast<char>(header.size());
    const std::string begin = StrCat("\x93NUMPY\x01", std::string_view("\0", 1),
                                     std::string_view(&length, 1), std::string_view("\0", 1));
    if (lseek(fd_, 0, SEEK_SET) != 0) return FileError(part_, "cannot be written", errno);
    RETURN_IF_ERROR(Write(begin + header));
    // Its name lies on the disk no earlier than what it names.
    if (fsync(fd_) != 0) return FileError(part_, "cannot be written to the disk", errno);
    const int fd = std::exchange(fd_, -1);
    if (close(fd) != 0 || rename(part_.c_str(), path_.c_str()) != 0) {
      const int error = errno;
      unlink(part_.c_str());
      return FileError(path_, "cannot be written", error);
    }
    return absl::OkStatus();
  }

 private:
  TokenWriter(const std::string& path, int width)
      : path_(path),
        part_(StrCat(path, ".part-", HostName(), "-", getpid())),
        width_(static_cast<size_t>(width)) {}

  absl::Status Write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = write(fd_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return FileError(part_, "cannot be written", errno);
      bytes.remove_prefix(static_cast<size_t>(count));
    }
    return absl::OkStatus();
  }

  std::string path_;
  std::string part_;
  size_t width_;
  int fd_ = -1;
  size_t count_ = 0;
};

absl::Status EncodeFile(const Tokenizer& tokenizer, const std::string& path, TextPart part,
                        TokenWriter* writer) {
  ASSIGN_OR_RETURN(const TextFile file, TextFile::Open(path));
  size_t begin = 0;
  size_t end = file.size();
  if (part != TextPart::kAll) {
    ASSIGN_OR_RETURN(const size_t middle, file.HeldOutBegin());
    (part == TextPart::kTraining ? end : begin) = middle;
  }
  if (begin == end) return absl::OkStatus();
  std::string text;  // what has been read and not encoded
  for (size_t at = begin; at < end || !text.empty();) {
    const size_t count = std::min(end - at, kChunkBytes + 1 - text.size());
    RETURN_IF_ERROR(file.Append(at, count, &text));
    at += count;
    const bool is_end = at == end && text.size() <= kChunkBytes;
    const size_t cut = is_end ? text.size() : FindCut(text, kChunkBytes);
    const std::string_view chunk = std::string_view(text).substr(0, cut);
    const size_t chunk_begin = at - text.size();
    if (const size_t wrong = FindInvalidUtf8(chunk); wrong != std::string_view::npos) {
      return absl::InvalidArgumentError(
          StrCat(path, ": is not UTF-8 at byte ", chunk_begin + wrong));
    }
    const Tokenizer::Part of_text = {.is_first = chunk_begin == 0,
                                     .is_last = chunk_begin + cut == file.size()};
    const absl::StatusOr<std::vector<int32_t>> tokens = tokenizer.EncodePart(chunk, of_text);
    if (!tokens.ok()) return actors::WithPrefix(StrCat(path, ": "), tokens.status());
    RETURN_IF_ERROR(writer->Add(*tokens));
    text.erase(0, cut);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const TokenFile>> OpenTokens(const std::string& path, int width,
                                                            int32_t num_tokens) {
  ASSIGN_OR_RETURN(std::shared_ptr<const TokenFile> file, TokenFile::Open(path, width));
  const int64_t wrong = file->tokens().FindAtLeast(num_tokens);
  if (wrong < 0) return file;
  return absl::DataLossError(StrCat(path, ": is damaged: token ", wrong, " is ",
                                    file->tokens()[wrong], ", but the tokenizer has ", num_tokens));
}

}  // namespace

size_t FindCut(std::string_view text, size_t limit) {
  size_t line = 0;  // the last end of one
  for (size_t at = limit; at > limit / 2; --at) {
    if (TextFile::IsCut(text, at)) return at;
    if (line == 0 && text[at] == '\n') line = at;
  }
  if (line > 0) return line;
  size_t at = limit;
  while (at > limit - 3 && !TextFile::IsCharacterBegin(text[at])) --at;
  return at;
}

absl::StatusOr<std::string> TokenCache::DefaultFolder() {
  const char* const caches = std::getenv("XDG_CACHE_HOME");
  if (caches != nullptr && caches[0] == '/') return StrCat(caches, "/penstock");
  const char* const home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return StrCat(home, "/.cache/penstock");
  return absl::InvalidArgumentError(
      "there is no folder for the tokens of texts, because neither XDG_CACHE_HOME nor HOME is set; "
      "set data.cache");
}

absl::StatusOr<TokenCache> TokenCache::Open(const std::string& tokenizer_path,
                                            const std::string& folder) {
  ASSIGN_OR_RETURN(std::string json, ReadTextFile(tokenizer_path, kMaxTokenizerBytes));
  ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load(tokenizer_path));
  std::string used = folder;
  if (used.empty()) {
    ASSIGN_OR_RETURN(used, DefaultFolder());
  }
  return TokenCache(std::make_shared<const Tokenizer>(std::move(tokenizer)), std::move(json),
                    std::move(used));
}

absl::StatusOr<std::string> TokenCache::KeyOf(absl::Span<const std::string> files,
                                              TextPart part) const {
  XXH3_state_t* const state = XXH3_createState();
  const auto free_state = absl::MakeCleanup([state] { XXH3_freeState(state); });
  XXH3_128bits_reset(state);
  const auto add = [state](std::string_view bytes) {
    const std::string size = StrCat(bytes.size(), " ");
    XXH3_128bits_update(state, size.data(), size.size());
    XXH3_128bits_update(state, bytes.data(), bytes.size());
  };
  // A change of what is written, or of how texts are cut, changes the number.
  add(StrCat("penstock tokens 2, part ", static_cast<int>(part)));
  add(json_);
  for (const std::string& path : files) {
    ASSIGN_OR_RETURN(const TextFile file, TextFile::Open(path));
    add(StrCat("file of ", file.size()));
    std::string text;
    for (size_t at = 0; at < file.size(); at += text.size()) {
      text.clear();
      RETURN_IF_ERROR(file.Append(at, std::min(file.size() - at, kChunkBytes), &text));
      add(text);
    }
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

absl::StatusOr<std::shared_ptr<const TokenFile>> TokenCache::Encode(
    absl::Span<const std::string> files, TextPart part) const {
  const int width = tokenizer_->num_tokens() <= (1 << 16) ? 2 : 4;
  ASSIGN_OR_RETURN(const std::string key, KeyOf(files, part));
  const std::string path = StrCat(folder_, "/", key, ".npy");
  const int32_t num_tokens = tokenizer_->num_tokens();
  auto kept = OpenTokens(path, width, num_tokens);
  if (kept.ok()) return kept;
  // It is not there, or damaged.
  RETURN_IF_ERROR(CreateFolder(folder_));
  ASSIGN_OR_RETURN(TokenWriter writer, TokenWriter::Create(path, width));
  for (const std::string& file : files) {
    RETURN_IF_ERROR(EncodeFile(*tokenizer_, file, part, &writer));
  }
  RETURN_IF_ERROR(writer.Finish());
  return OpenTokens(path, width, num_tokens);
}

}  // namespace penstock::cli
