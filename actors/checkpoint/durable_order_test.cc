// In which order checkpoints reach the disk. What a crash leaves depends on it, and no test without
// a crash of the machine sees it: so the system calls are recorded. Those of this program and of
// the libraries that it uses come to the functions below, which hand them on.

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

#include "actors/checkpoint/checkpoint.h"
#include "actors/checkpoint/checkpoint_folder.h"
#include "actors/checkpoint/durable_file.h"
#include "actors/checkpoint/safetensors.h"
#include "base/strings.h"
#include "tests/support/temp_folder.h"

namespace penstock::actors {
namespace {

enum class Call { kWrite, kSync, kRename, kRemove };

struct Event {
  Call call;
  std::string path;
  std::string to = "";  // of a rename
};

std::vector<Event>* recorded = nullptr;  // those of a test; null: none runs
bool is_exchange_refused = false;        // as on a network file system

std::string PathOf(int fd) {
  std::error_code error;
  return std::filesystem::read_symlink(StrCat("/proc/self/fd/", fd), error).string();
}

std::string PathAt(int folder, const char* name) {
  return folder == AT_FDCWD || name[0] == '/' ? std::string(name)
                                              : StrCat(PathOf(folder), "/", name);
}

// Adds the event if the call has succeeded.
template <typename Result>
Result Record(Result result, Call call, const std::string& path, const std::string& to = "") {
  if (result >= 0 && recorded != nullptr) recorded->push_back({call, path, to});
  return result;
}

// The function of this name that this program's would hide.
template <typename Function>
Function* Next(const char* name, Function* /*same*/) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int fsync(int fd) {
  static auto* const next = Next("fsync", &fsync);
  return Record(next(fd), Call::kSync, PathOf(fd));
}

ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  static auto* const next = Next("pwrite", &pwrite);
  return Record(next(fd, bytes, size, offset), Call::kWrite, PathOf(fd));
}

int rename(const char* from, const char* to) noexcept {
  static auto* const next = Next("rename", &rename);
  return Record(next(from, to), Call::kRename, from, to);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned int flags) noexcept {
  static auto* const next = Next("renameat2", &renameat2);
  if (is_exchange_refused && (flags & RENAME_EXCHANGE) != 0) {
    errno = EINVAL;
    return -1;
  }
  return Record(next(from_folder, from, to_folder, to, flags), Call::kRename,
                PathAt(from_folder, from), PathAt(to_folder, to));
}

int unlink(const char* path) noexcept {
  static auto* const next = Next("unlink", &unlink);
  return Record(next(path), Call::kRemove, path);
}

int unlinkat(int folder, const char* name, int flags) noexcept {
  static auto* const next = Next("unlinkat", &unlinkat);
  const std::string path = PathAt(folder, name);
  return Record(next(folder, name, flags), Call::kRemove, path);
}

}  // extern "C"

namespace {

class DurableOrderTest : public ::testing::Test {
 protected:
  DurableOrderTest() { recorded = &events_; }
  ~DurableOrderTest() override { recorded = nullptr; }

  // The first event of this kind from `begin` on; the number of events: there is none.
  size_t Find(Call call, std::string_view path, size_t begin = 0) const {
    for (size_t i = begin; i < events_.size(); ++i) {
      if (events_[i].call == call && events_[i].path == path) return i;
    }
    return events_.size();
  }

  // The last event of this kind before event `end`; `end`: there is none.
  size_t FindLast(Call call, std::string_view path, size_t end) const {
    for (size_t i = end; i > 0; --i) {
      if (events_[i - 1].call == call && events_[i - 1].path == path) return i - 1;
    }
    return end;
  }

  // Whether `path` is synced after event `after` and before event `before`.
  bool IsSyncedBetween(const std::string& path, size_t after, size_t before) const {
    return Find(Call::kSync, path, after + 1) < before;
  }

  static bool IsIn(std::string_view path, const std::string& folder) {
    return path.substr(0, folder.size() + 1) == folder + "/";
  }

  // Writes a checkpoint of two files and an index. `part`: where it was written.
  void Write(CheckpointFolder& folder, int64_t step, std::string* part) {
    const auto begun = folder.Begin(step);
    ASSERT_TRUE(begun.ok()) << begun.status();
    *part = *begun;
    const Tensor value({DType::kF32, {3}});
    std::vector<CheckpointFile> files;
    for (uint32_t i = 0; i < 2; ++i) {
      const std::string name = CheckpointFileName(i, 2);
      const SafetensorsSource source = {StrCat("t", i), value.type(),
                                        [&value]() -> absl::StatusOr<const std::byte*> {
                                          return static_cast<const std::byte*>(value.data());
                                        }};
      const auto checksum = WriteSafetensors(StrCat(*part, "/", name), {&source, 1}, {});
      ASSERT_TRUE(checksum.ok()) << checksum.status();
      files.push_back({name, *checksum});
    }
    ASSERT_EQ(WriteCheckpointIndex(*part, files, {}), absl::OkStatus());
    const auto committed = folder.Commit(step);
    ASSERT_TRUE(committed.ok()) << committed.status();
  }

  // Writes checkpoint 1, and then `second` beside it or in its place. Only the events of the second
  // are left.
  void WriteTwo(int64_t second, std::string* part) {
    auto folder = CheckpointFolder::Open(path_, /*keep=*/1);
    ASSERT_TRUE(folder.ok()) << folder.status();
    Write(**folder, 1, part);
    events_.clear();
    Write(**folder, second, part);
  }

  // What was written to `part` lies on the disk before it gets its name, and the name does before
  // anything is removed. Returns when the name lies there.
  size_t CheckCommit(const std::string& part, const std::string& folder, int64_t step) {
    const size_t renamed = Find(Call::kRename, part);
    EXPECT_LT(renamed, events_.size());
    if (renamed == events_.size()) return renamed;
    EXPECT_EQ(events_[renamed].to, CheckpointFolder::PathOf(folder, step));
    int num_files = 0;
    size_t last_write = 0;
    for (size_t i = 0; i < renamed; ++i) {
      if (events_[i].call != Call::kWrite || !IsIn(events_[i].path, part)) continue;
      last_write = i;
      if (Find(Call::kWrite, events_[i].path, i + 1) < renamed) continue;
      ++num_files;
      EXPECT_TRUE(IsSyncedBetween(events_[i].path, i, renamed)) << events_[i].path;
    }
    EXPECT_EQ(num_files, 3);
    EXPECT_TRUE(IsSyncedBetween(part, last_write, renamed));
    const size_t synced = Find(Call::kSync, folder, renamed);
    EXPECT_LT(synced, events_.size());
    for (size_t i = 0; i < synced; ++i) {
      EXPECT_TRUE(events_[i].call != Call::kRemove) << events_[i].path;
      EXPECT_TRUE(events_[i].call != Call::kRename || i == renamed) << events_[i].path;
    }
    return synced;
  }

  const testing::TempFolder temp_;
  const std::string path_ = temp_.Path("checkpoints");
  std::vector<Event> events_;
};

TEST_F(DurableOrderTest, AnOldCheckpointGoesWhenTheNewOneLiesOnTheDisk) {
  std::string part;
  WriteTwo(2, &part);
  const size_t synced = CheckCommit(part, path_, 2);

  // The old one loses its name, on the disk too, before its first file goes.
  const size_t renamed = Find(Call::kRename, CheckpointFolder::PathOf(path_, 1));
  ASSERT_LT(renamed, events_.size());
  EXPECT_GT(renamed, synced);
  int num_removed = 0;
  for (size_t i = 0; i < events_.size(); ++i) {
    if (events_[i].call != Call::kRemove) continue;
    ++num_removed;
    EXPECT_TRUE(IsIn(events_[i].path, events_[renamed].to) ||
                events_[i].path == events_[renamed].to)
        << events_[i].path;
    EXPECT_TRUE(IsSyncedBetween(path_, renamed, i)) << events_[i].path;
  }
  EXPECT_GE(num_removed, 3);  // its files
}

TEST_F(DurableOrderTest, ACheckpointOfTheSameStepIsReplaced) {
  std::string part;
  WriteTwo(1, &part);
  CheckCommit(part, path_, 1);
  const auto num_removed =
      std::count_if(events_.begin(), events_.end(), [&part](const Event& event) {
        return event.call == Call::kRemove && IsIn(event.path, part);
      });
  EXPECT_GE(num_removed, 3);  // the files of the one before
}

// By three renames, and what is removed is what was there before.
TEST_F(DurableOrderTest, ACheckpointOfTheSameStepIsReplacedWhereNamesCannotBeExchanged) {
  is_exchange_refused = true;
  std::string part;
  WriteTwo(1, &part);
  is_exchange_refused = false;
  const std::string path = CheckpointFolder::PathOf(path_, 1);
  const size_t aside = Find(Call::kRename, path);
  const size_t renamed = Find(Call::kRename, part);
  ASSERT_LT(renamed, events_.size());
  EXPECT_LT(aside, renamed);
  EXPECT_EQ(events_[renamed].to, path);
  EXPECT_TRUE(IsSyncedBetween(part, 0, aside));
  const size_t synced = Find(Call::kSync, path_, renamed);
  int num_removed = 0;
  for (size_t i = 0; i < events_.size(); ++i) {
    if (events_[i].call != Call::kRemove) continue;
    EXPECT_GT(i, synced) << events_[i].path;
    num_removed += IsIn(events_[i].path, part);
  }
  EXPECT_GE(num_removed, 3);  // its files
  EXPECT_EQ(*CheckpointFolder::Steps(path_), std::vector<int64_t>({1}));
  EXPECT_TRUE(Checkpoint::Open(path).ok());
  int num_left = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    num_left += entry.path().filename() != ".lock";
  }
  EXPECT_EQ(num_left, 1);
}

TEST_F(DurableOrderTest, NewFoldersLieOnTheDisk) {
  const std::string top = temp_.path().string();
  ASSERT_TRUE(CheckpointFolder::Open(StrCat(top, "/a/b/c"), 1).ok());
  for (const char* const above : {"", "/a", "/a/b"}) {
    EXPECT_LT(Find(Call::kSync, StrCat(top, above)), events_.size()) << above;
  }
}

TEST_F(DurableOrderTest, AFileIsReplacedByOneThatLiesOnTheDisk) {
  const std::string path = temp_.Path("file");
  ASSERT_EQ(ReplaceDurably(path, "text"), absl::OkStatus());
  const auto renamed =
      static_cast<size_t>(std::find_if(events_.begin(), events_.end(),
                                       [&](const Event& event) { return event.to == path; }) -
                          events_.begin());
  ASSERT_LT(renamed, events_.size());
  const std::string part = events_[renamed].path;
  const size_t written = FindLast(Call::kWrite, part, renamed);
  EXPECT_LT(written, renamed);
  EXPECT_TRUE(IsSyncedBetween(part, written, renamed));
  EXPECT_TRUE(IsSyncedBetween(temp_.path().string(), renamed, events_.size()));
}

}  // namespace
}  // namespace penstock::actors
