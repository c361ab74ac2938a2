#include "actors/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "fmt/format.h"

#include "actors/checkpoint/checkpoint.h"
#include "actors/checkpoint/durable_file.h"
#include "base/device.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kPart = ".part-";  // not complete yet
constexpr std::string_view kOld = ".old-";    // being removed

std::string NameOf(int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

}  // namespace

namespace {

// Creates a folder and those above it that are not there, so that they are still there after a
// crash.
absl::Status CreateFolders(const std::string& path) {
  std::vector<fs::path> above;  // of those that are created
  std::error_code error;
  for (fs::path at = fs::absolute(path, error);
       !fs::exists(at, error) && at.has_parent_path() && at != at.parent_path();
       at = at.parent_path()) {
    above.push_back(at.parent_path());
  }
  fs::create_directories(path, error);
  if (error) return FileError(path, "cannot be created as a folder", error.value());
  for (const fs::path& folder : above) RETURN_IF_ERROR(SyncFolder(folder.string()));
  return absl::OkStatus();
}

// Gives what is at `part` the name `path`, and what has that name, if anything, the name `part`.
// Returns an error number or 0. Network file systems and some others cannot exchange names: there,
// the checkpoint of this step has none of its names for a moment, in which a crash loses it.
int Exchange(const std::string& part, const std::string& path, const std::string& aside) {
  std::error_code error;
  const unsigned int flags = fs::exists(path, error) ? RENAME_EXCHANGE : 0;
  if (renameat2(AT_FDCWD, part.c_str(), AT_FDCWD, path.c_str(), flags) == 0) return 0;
  const int refused = errno;
  if (flags == 0 || (refused != EINVAL && refused != ENOSYS && refused != EOPNOTSUPP)) {
    return refused;
  }
  if (rename(path.c_str(), aside.c_str()) != 0) return errno;
  if (rename(part.c_str(), path.c_str()) != 0) {
    const int failed = errno;
    (void)rename(aside.c_str(), path.c_str());
    return failed;
  }
  (void)rename(aside.c_str(), part.c_str());  // or else the next run removes it
  return 0;
}

}  // namespace

CheckpointFolder::CheckpointFolder(std::string path, int64_t keep)
    : path_(std::move(path)),
      keep_(keep),
      id_(fmt::format("{}-{:x}", getpid(), SteadyClock().NowNs())) {}

std::string CheckpointFolder::PartOf(int64_t step) const {
  return StrCat(path_, "/", kPart, NameOf(step), "-", id_);
}

absl::StatusOr<std::vector<int64_t>> CheckpointFolder::Steps(const std::string& path) {
  std::vector<int64_t> steps;
  std::error_code error;
  fs::directory_iterator entries(path, error);
  const bool is_there =
      error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory;
  if (!is_there) return steps;
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    int64_t step = 0;
    if (name.size() > kPrefix.size() && name.rfind(kPrefix, 0) == 0 &&
        absl::SimpleAtoi(name.substr(kPrefix.size()), &step) && step >= 0 && name == NameOf(step)) {
      steps.push_back(step);
    }
  }
  if (error) return FileError(path, "cannot be read as a folder", error.value());
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::string CheckpointFolder::PathOf(const std::string& path, int64_t step) {
  return (fs::path(path) / NameOf(step)).string();
}

std::string CheckpointFolder::NewestOr(const std::string& path) {
  const absl::StatusOr<std::vector<int64_t>> steps = Steps(path);
  return steps.ok() && !steps->empty() ? PathOf(path, steps->back()) : path;
}

bool CheckpointFolder::IsCheckpoint(const std::string& path) {
  const absl::StatusOr<std::vector<int64_t>> steps = Steps(path);
  if (!steps.ok() || !steps->empty()) return false;
  std::error_code error;
  return fs::exists(fs::path(path) / CheckpointFileName(0, 1), error) ||
         fs::exists(fs::path(path) / kIndexFile, error);
}

absl::StatusOr<std::unique_ptr<CheckpointFolder>> CheckpointFolder::Open(const std::string& path,
                                                                         int64_t keep) {
  RETURN_IF_ERROR(CreateFolders(path));
  std::unique_ptr<CheckpointFolder> folder(new CheckpointFolder(path, keep));
  const std::string lock = StrCat(path, "/.lock");
  folder->lock_fd_ = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (folder->lock_fd_ < 0) return FileError(path, "cannot be written", errno);
  if (flock(folder->lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return absl::AlreadyExistsError(StrCat(path, ": another run writes its checkpoints here"));
    }
    return FileError(lock, "cannot be locked", errno);
  }
  folder->folder_fd_ = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder->folder_fd_ < 0) return FileError(path, "cannot be opened as a folder", errno);
  folder->RemoveLeftovers();
  return folder;
}

CheckpointFolder::~CheckpointFolder() {
  if (folder_fd_ >= 0) close(folder_fd_);
  if (lock_fd_ >= 0) close(lock_fd_);
}

void CheckpointFolder::RemoveLeftovers() const {
  std::error_code error;
  std::vector<fs::path> leftovers;
  fs::directory_iterator entries(path_, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (name.rfind(kPart, 0) == 0 || name.rfind(kOld, 0) == 0) leftovers.push_back(entries->path());
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, error);
}

absl::StatusOr<std::string> CheckpointFolder::Begin(int64_t step) {
  Abandon(step);
  std::string part = PartOf(step);
  std::error_code error;
  fs::create_directory(part, error);
  if (error) return FileError(part, "cannot be created as a folder", error.value());
  return part;
}

absl::StatusOr<std::string> CheckpointFolder::Commit(int64_t step) {
  const std::string part = PartOf(step);
  std::string path = PathOf(path_, step);
  absl::Status status = SyncFolder(part);
  if (status.ok()) {
    // A checkpoint of the same step gives way at once; it is then the one to be removed.
    const int error = Exchange(part, path, StrCat(path_, "/", kOld, NameOf(step), "-", id_));
    if (error != 0) status = FileError(path, "cannot be renamed from " + part, error);
  }
  if (!status.ok()) {
    Abandon(step);
    return status;
  }
  RETURN_IF_ERROR(SyncFolder(path_, folder_fd_));  // what was there before is left
  Abandon(step);
  RemoveOldest(step);
  return path;
}

void CheckpointFolder::Abandon(int64_t step) {
  std::error_code error;
  fs::remove_all(PartOf(step), error);
}

void CheckpointFolder::KeepFor(std::weak_ptr<const void> reader, int64_t step) {
  reader_ = std::move(reader);
  read_step_ = step;
}

// A checkpoint that is removed is no checkpoint from the first file on. What cannot be removed
// stays, as do those of later steps, which are another run's.
void CheckpointFolder::RemoveOldest(int64_t last_step) const {
  std::vector<int64_t> steps = Steps(path_).value_or(std::vector<int64_t>());
  steps.erase(std::upper_bound(steps.begin(), steps.end(), last_step), steps.end());
  for (int64_t i = 0; i + keep_ < static_cast<int64_t>(steps.size()); ++i) {
    const int64_t step = steps[static_cast<size_t>(i)];
    if (step == read_step_ && !reader_.expired()) continue;
    const std::string old = StrCat(path_, "/", kOld, NameOf(step), "-", id_);
    std::error_code error;
    fs::rename(PathOf(path_, step), old, error);
    if (!error && SyncFolder(path_, folder_fd_).ok()) fs::remove_all(old, error);
  }
}

}  // namespace penstock::actors
