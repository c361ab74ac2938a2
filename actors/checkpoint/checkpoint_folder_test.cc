#include "actors/checkpoint/checkpoint_folder.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "tests/support/temp_folder.h"

namespace penstock::actors {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string TextOfStep(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class CheckpointFolderTest : public ::testing::Test {
 protected:
  std::unique_ptr<CheckpointFolder> Open(int64_t keep) {
    auto folder = CheckpointFolder::Open(path_, keep);
    EXPECT_TRUE(folder.ok()) << folder.status();
    return *std::move(folder);
  }
  std::vector<int64_t> Steps() const {
    const auto steps = CheckpointFolder::Steps(path_);
    EXPECT_TRUE(steps.ok()) << steps.status();
    return steps.value_or(std::vector<int64_t>());
  }
  static void Write(CheckpointFolder& folder, int64_t step, const std::string& text) {
    const auto part = folder.Begin(step);
    ASSERT_TRUE(part.ok()) << part.status();
    std::ofstream(*part + "/file") << text;
    const auto committed = folder.Commit(step);
    ASSERT_TRUE(committed.ok()) << committed.status();
    EXPECT_EQ(*committed, CheckpointFolder::PathOf(folder.path(), step));
  }

  const testing::TempFolder temp_;
  const std::string path_ = temp_.Path("runs/checkpoints");
};

TEST_F(CheckpointFolderTest, TheLastOnesStay) {
  EXPECT_THAT(Steps(), IsEmpty());
  const auto folder = Open(2);
  for (const int64_t step : {5, 10, 20, 100000000}) Write(*folder, step, "");
  EXPECT_THAT(Steps(), ElementsAre(20, 100000000));
  EXPECT_THAT(CheckpointFolder::NewestOr(path_), EndsWith("/step-100000000"));
  EXPECT_EQ(CheckpointFolder::NewestOr(temp_.Path("file")), temp_.Path("file"));
}

// As a run that has been resumed may read its states again.
TEST_F(CheckpointFolderTest, WhatIsReadStays) {
  { Write(*Open(1), 5, ""); }
  const auto folder = Open(1);
  auto reader = std::make_shared<const int>(1);
  folder->KeepFor(reader, 5);
  for (const int64_t step : {10, 20}) Write(*folder, step, "");
  EXPECT_THAT(Steps(), ElementsAre(5, 20));
  reader = nullptr;
  Write(*folder, 30, "");
  EXPECT_THAT(Steps(), ElementsAre(30));
}

TEST_F(CheckpointFolderTest, WhatIsNotCommittedIsNoCheckpoint) {
  auto folder = Open(2);
  Write(*folder, 5, "");
  const auto part = folder->Begin(10);
  ASSERT_TRUE(part.ok());
  std::ofstream(*part + "/file") << "half";
  EXPECT_THAT(Steps(), ElementsAre(5));
  // The next run removes it.
  folder = nullptr;
  fs::create_directory(path_ + "/.old-step-00000001");
  folder = Open(2);
  EXPECT_FALSE(fs::exists(*part));
  EXPECT_FALSE(fs::exists(path_ + "/.old-step-00000001"));
  EXPECT_THAT(Steps(), ElementsAre(5));
}

TEST_F(CheckpointFolderTest, AbandonedFilesGo) {
  const auto folder = Open(2);
  const auto part = folder->Begin(10);
  ASSERT_TRUE(part.ok());
  folder->Abandon(10);
  EXPECT_FALSE(fs::exists(*part));
}

TEST_F(CheckpointFolderTest, ACheckpointOfTheSameStepIsReplaced) {
  const auto folder = Open(2);
  Write(*folder, 5, "old");
  Write(*folder, 5, "new");
  EXPECT_THAT(Steps(), ElementsAre(5));
  EXPECT_EQ(TextOfStep(CheckpointFolder::PathOf(path_, 5) + "/file"), "new");
}

TEST_F(CheckpointFolderTest, OneRunWritesIntoAFolder) {
  auto folder = Open(2);
  const auto other = CheckpointFolder::Open(path_, 2);
  EXPECT_TRUE(absl::IsAlreadyExists(other.status())) << other.status();
  EXPECT_THAT(ToStd(other.status().message()), HasSubstr(path_));
  folder = nullptr;
  EXPECT_TRUE(CheckpointFolder::Open(path_, 2).ok());
}

// Those of later steps are another run's: what was written stays, too.
TEST_F(CheckpointFolderTest, LaterStepsAreLeftAlone) {
  const auto folder = Open(2);
  for (const int64_t step : {9000, 9002, 10, 12, 14}) Write(*folder, step, "");
  EXPECT_THAT(Steps(), ElementsAre(12, 14, 9000, 9002));
}

TEST_F(CheckpointFolderTest, AFolderThatCannotBeReadIsNotEmpty) {
  fs::create_directories(temp_.Path("runs"));
  fs::create_symlink(path_, path_);
  EXPECT_TRUE(absl::IsUnavailable(CheckpointFolder::Steps(path_).status()));
}

TEST_F(CheckpointFolderTest, OtherNamesAreLeftAlone) {
  auto folder = Open(1);
  for (const char* const name : {"step-5", "step-0000000x", "notes", "step--0000001"}) {
    fs::create_directory(path_ + "/" + name);
  }
  Write(*folder, 7, "");
  Write(*folder, 8, "");
  EXPECT_THAT(Steps(), ElementsAre(8));
  EXPECT_TRUE(fs::exists(path_ + "/step-5"));
  EXPECT_TRUE(fs::exists(path_ + "/notes"));
}

TEST_F(CheckpointFolderTest, AFolderThatCannotBeWrittenIsNamed) {
  std::ofstream(temp_.Path("file")) << "";
  const auto folder = CheckpointFolder::Open(temp_.Path("file/checkpoints"), 2);
  EXPECT_TRUE(absl::IsUnavailable(folder.status())) << folder.status();
  EXPECT_THAT(ToStd(folder.status().message()), HasSubstr(temp_.Path("file/checkpoints")));
  const auto on_proc = CheckpointFolder::Open("/proc/checkpoints", 2);
  EXPECT_FALSE(on_proc.ok());
}

}  // namespace
}  // namespace penstock::actors
