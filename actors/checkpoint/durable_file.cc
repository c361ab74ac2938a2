#include "actors/checkpoint/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

// Bytes of one system call, so that a signal does not wait for more.
constexpr uint64_t kMaxWrite = uint64_t{8} << 20;

}  // namespace

absl::Status FileError(const std::string& path, std::string_view what, int error) {
  return absl::UnavailableError(StrCat(path, ": ", what, " (", strerror(error), ")"));
}

absl::StatusOr<DurableFile> DurableFile::Create(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return FileError(path, "cannot be created", errno);
  return DurableFile(path, fd);
}

DurableFile::DurableFile(DurableFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

DurableFile::~DurableFile() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(path_.c_str());
}

absl::Status DurableFile::WriteAt(uint64_t offset, const void* bytes, uint64_t num_bytes) {
  const auto* from = static_cast<const char*>(bytes);
  while (num_bytes > 0) {
    const ssize_t count =
        pwrite(fd_, from, std::min(num_bytes, kMaxWrite), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FileError(path_, "cannot be written", errno);
    if (count == 0) return FileError(path_, "cannot be written", EIO);  // it would be so for ever
    from += count;
    offset += static_cast<uint64_t>(count);
    num_bytes -= static_cast<uint64_t>(count);
  }
  return absl::OkStatus();
}

absl::Status DurableFile::Finish() {
  if (fsync(fd_) != 0) return FileError(path_, "cannot be written to the disk", errno);
  // On some file systems an error of an earlier write shows here.
  if (close(fd_) != 0) {
    const int error = errno;
    fd_ = -1;
    unlink(path_.c_str());
    return FileError(path_, "cannot be written", error);
  }
  fd_ = -1;
  return absl::OkStatus();
}

absl::Status WriteDurably(const std::string& path, std::string_view text) {
  ASSIGN_OR_RETURN(DurableFile file, DurableFile::Create(path));
  RETURN_IF_ERROR(file.WriteAt(0, text.data(), text.size()));
  return file.Finish();
}

absl::Status ReplaceDurably(const std::string& path, std::string_view text) {
  const std::string part = StrCat(path, ".part-", getpid());
  unlink(part.c_str());  // of an earlier process of this number
  RETURN_IF_ERROR(WriteDurably(part, text));
  if (rename(part.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(part.c_str());
    return FileError(path, "cannot be written", error);
  }
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return SyncFolder(folder.empty() ? "." : folder.string());
}

absl::Status SyncFolder(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return FileError(path, "cannot be opened as a folder", errno);
  const absl::Status status = SyncFolder(path, fd);
  close(fd);
  return status;
}

absl::Status SyncFolder(const std::string& path, int fd) {
  const int result = fsync(fd);
  const int error = errno;
  // Some network file systems have no such call, and need none.
  if (result != 0 && error != EINVAL) {
    return FileError(path, "cannot be written to the disk", error);
  }
  return absl::OkStatus();
}

}  // namespace penstock::actors
