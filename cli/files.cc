#include "cli/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <streambuf>

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/text.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;

// Whether the path was a wrong one to ask for; otherwise the system has failed, as a full disk
// does.
bool IsOfThePath(int error) {
  static constexpr int kErrors[] = {ENOENT, ENOTDIR,      EISDIR, EACCES, EPERM,
                                    EROFS,  ENAMETOOLONG, ELOOP,  ENXIO};
  return std::find(std::begin(kErrors), std::end(kErrors), error) != std::end(kErrors);
}

absl::Status NotWritten(const std::string& path, int error) {
  const std::string message = StrCat(path, ": cannot be written (", strerror(error), ")");
  return IsOfThePath(error) ? absl::InvalidArgumentError(message) : absl::UnavailableError(message);
}

// Writes to a file descriptor at once, until it fails.
class DescriptorBuffer final : public std::streambuf {
 public:
  explicit DescriptorBuffer(int fd) : fd_(fd) {}

  int error() const { return error_; }  // 0, or the number of the first one

 protected:
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    std::streamsize done = 0;
    while (done < size && error_ == 0) {
      const ssize_t count = write(fd_, text + done, static_cast<size_t>(size - done));
      if (count >= 0) {
        done += count;
      } else if (errno != EINTR) {
        error_ = errno;
      }
    }
    return done;
  }
  int_type overflow(int_type character) override {
    if (traits_type::eq_int_type(character, traits_type::eof())) return traits_type::not_eof(0);
    const char text = traits_type::to_char_type(character);
    return xsputn(&text, 1) == 1 ? character : traits_type::eof();
  }

 private:
  const int fd_;
  int error_ = 0;
};

using Write = std::function<void(std::ostream&)>;

// To the end of `fd`, which is closed; 0 or the error's number.
int WriteAndClose(int fd, const Write& write) {
  DescriptorBuffer buffer(fd);
  std::ostream stream(&buffer);
  write(stream);
  const int error = buffer.error();
  return close(fd) != 0 && error == 0 ? errno : error;
}

int OpenTruncated(const std::string& path) {
  return open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
}

absl::Status WriteDirectly(const std::string& path, const Write& write) {
  const int fd = OpenTruncated(path);
  const int error = fd < 0 ? errno : WriteAndClose(fd, write);
  return error == 0 ? absl::OkStatus() : NotWritten(path, error);
}

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t max_bytes) {
  if (path.empty()) return absl::InvalidArgumentError("'': expected the name of a file");
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return absl::NotFoundError(StrCat(path, ": no such file"));
  if (std::filesystem::is_directory(status)) {
    return absl::InvalidArgumentError(StrCat(path, ": is a folder; expected a file"));
  }
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return absl::InvalidArgumentError(StrCat(path, ": cannot be opened"));
  std::string text;
  char chunk[1 << 14];
  while (stream.read(chunk, sizeof(chunk)) || stream.gcount() > 0) {
    text.append(chunk, static_cast<size_t>(stream.gcount()));
    if (text.size() > max_bytes) {
      return absl::InvalidArgumentError(StrCat(path, ": is longer than ", max_bytes, " bytes"));
    }
  }
  if (stream.bad()) return absl::InvalidArgumentError(StrCat(path, ": cannot be read"));
  return text;
}

absl::Status CheckWritable(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(StrCat(path, ": is a folder; expected the name of a file"));
  }
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  const bool exists = std::filesystem::exists(status);
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (!exists && !std::filesystem::is_directory(folder, error)) {
    return absl::InvalidArgumentError(StrCat(path, ": there is no folder ", folder));
  }
  const auto refuse = [&path] { return NotWritten(path, errno); };
  if (exists && !std::filesystem::is_regular_file(status)) {
    // The reader of a pipe would take an opening for all there is.
    return access(path.c_str(), W_OK) == 0 ? absl::OkStatus() : refuse();
  }
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return refuse();
  close(fd);
  // Of a symbolic link only what it has led to.
  if (!exists) std::filesystem::remove(std::filesystem::canonical(path, error), error);
  return absl::OkStatus();
}

absl::Status CheckCreatable(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  std::error_code error;
  const fs::path folder = fs::absolute(path, error).lexically_normal();
  // The first folder that would be created; empty: all are there.
  fs::path first;
  fs::path nearest = folder;
  while (nearest.has_relative_path() && !fs::exists(nearest, error)) {
    first = nearest;
    nearest = nearest.parent_path();
  }
  if (!fs::is_directory(nearest, error)) {
    return absl::InvalidArgumentError(StrCat(path, ": ", nearest.string(), " is not a folder"));
  }
  RETURN_IF_ERROR(CreateFolder(path));
  const fs::path probe = folder / StrCat(".penstock-", getpid());
  const absl::Status written = WriteDirectly(probe.string(), [](std::ostream&) {});
  fs::remove(probe, error);
  if (!first.empty()) fs::remove_all(first, error);
  if (written.ok()) return absl::OkStatus();
  // Of the folder, not of the file that was tried.
  const std::string_view reason = ToStd(written.message()).substr(probe.string().size());
  return absl::Status(written.code(), StrCat(path, reason));
}

absl::Status WriteTextFile(const std::string& path, std::string_view text) {
  return WriteStreamedFile(path, [text](std::ostream& out) { out << text; });
}

absl::Status WriteStreamedFile(const std::string& path, const Write& write) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  // What is no regular file, such as a pipe, has nothing to lose.
  if (fs::exists(status) && !fs::is_regular_file(status)) return WriteDirectly(path, write);
  // The target of a symbolic link is replaced, not the link.
  fs::path target = fs::exists(status) ? fs::canonical(path, error) : fs::path(path);
  if (error || target.empty()) target = path;
  const std::string part = StrCat(target.string(), ".part-", getpid());
  const int fd = OpenTruncated(part);
  // A folder may refuse new files and yet hold one that can be written.
  if (fd < 0) return WriteDirectly(path, write);
  if (const int failed = WriteAndClose(fd, write); failed != 0) {
    fs::remove(part, error);
    return NotWritten(path, failed);
  }
  if (fs::exists(status)) fs::permissions(part, status.permissions(), error);
  fs::rename(part, target, error);
  if (error) {
    const int failed = error.value();
    fs::remove(part, error);
    return NotWritten(path, failed);
  }
  return absl::OkStatus();
}

absl::Status CreateFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    const std::string message =
        StrCat(path, ": cannot be created as a folder (", error.message(), ")");
    const bool is_usage = IsOfThePath(error.value()) || error.value() == EEXIST;
    return is_usage ? absl::InvalidArgumentError(message) : absl::UnavailableError(message);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadGraphFile(const std::string& path) {
  if (HasSuffix(path, ".toml")) {
    return absl::InvalidArgumentError(StrCat(
        path, ": a .toml file is a job, which `penstock run` runs; expected a graph (.pst)"));
  }
  return ReadTextFile(path, graph::kMaxTextBytes);
}

bool HasSuffix(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

}  // namespace penstock::cli
