// Files and folders that survive a crash: what is written lies on the disk when a call returns OK.
//
// Errors are kUnavailable, begin with the path and give the system's reason.
//
// Thread rule: external synchronisation.

#ifndef PENSTOCK_ACTORS_CHECKPOINT_DURABLE_FILE_H_
#define PENSTOCK_ACTORS_CHECKPOINT_DURABLE_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock::actors {

// A new file. It is removed again unless Finish succeeds.
class DurableFile {
 public:
  // An error if there is a file of this name.
  static absl::StatusOr<DurableFile> Create(const std::string& path);
  DurableFile(DurableFile&& other) noexcept;
  DurableFile& operator=(DurableFile&& other) = delete;
  ~DurableFile();

  absl::Status WriteAt(uint64_t offset, const void* bytes, uint64_t num_bytes);
  // Waits until the file is on the disk, and closes it. Its entry in its folder is another matter
  // (SyncFolder).
  absl::Status Finish();

 private:
  DurableFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_ = -1;  // -1: finished
};

// Writes a new file as a whole.
absl::Status WriteDurably(const std::string& path, std::string_view text);

// The same where there may be a file of this name already, which stays as it is until the new one
// lies on the disk: written beside it as PATH.part-PID, and renamed.
absl::Status ReplaceDurably(const std::string& path, std::string_view text);

// Waits until the names in a folder are on the disk. `fd` is the folder, opened; without it the
// path is opened.
absl::Status SyncFolder(const std::string& path);
absl::Status SyncFolder(const std::string& path, int fd);

// The status for a system call on a path that has failed with `error`, such as ENOSPC.
absl::Status FileError(const std::string& path, std::string_view what, int error);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CHECKPOINT_DURABLE_FILE_H_
