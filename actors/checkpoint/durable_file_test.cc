#include "actors/checkpoint/durable_file.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "tests/support/temp_folder.h"

namespace penstock::actors {
namespace {

using ::testing::HasSubstr;

std::string Text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(DurableFileTest, AFileIsThereWhenItIsFinished) {
  const testing::TempFolder folder;
  const std::string path = folder.Path("file");
  auto file = DurableFile::Create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->WriteAt(6, "world", 5).ok());
  ASSERT_TRUE(file->WriteAt(0, "hello ", 6).ok());
  ASSERT_TRUE(file->Finish().ok());
  { const DurableFile moved = *std::move(file); }
  EXPECT_EQ(Text(path), "hello world");
  EXPECT_TRUE(SyncFolder(folder.path().string()).ok());
}

TEST(DurableFileTest, AFileThatIsNotFinishedIsRemoved) {
  const testing::TempFolder folder;
  const std::string path = folder.Path("file");
  {
    auto file = DurableFile::Create(path);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE(file->WriteAt(0, "hello", 5).ok());
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(DurableFileTest, AFileIsReplacedAsAWhole) {
  const testing::TempFolder folder;
  const std::string path = folder.Path("file");
  ASSERT_TRUE(ReplaceDurably(path, "first").ok());
  ASSERT_TRUE(ReplaceDurably(path, "2nd").ok());
  EXPECT_EQ(Text(path), "2nd");
  // Nothing is left beside it, not even where the name cannot be taken.
  const std::string taken = folder.Path("taken");
  std::filesystem::create_directory(taken);
  EXPECT_THAT(ToStd(ReplaceDurably(taken, "text").message()), HasSubstr("taken: cannot be"));
  std::filesystem::remove(taken);
  size_t num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    num_files += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(num_files, 1u);
}

TEST(DurableFileTest, ErrorsNameThePathAndTheReason) {
  const testing::TempFolder folder;
  const std::string path = folder.Path("file");
  ASSERT_TRUE(WriteDurably(path, "one").ok());
  const absl::Status again = WriteDurably(path, "two");
  EXPECT_TRUE(absl::IsUnavailable(again)) << again;
  EXPECT_THAT(ToStd(again.message()), HasSubstr(path + ": cannot be created (File exists)"));
  EXPECT_EQ(Text(path), "one");
  EXPECT_FALSE(SyncFolder(folder.Path("other")).ok());
  EXPECT_EQ(FileError(path, "cannot be written", ENOSPC),
            absl::UnavailableError(path + ": cannot be written (No space left on device)"));
}

}  // namespace
}  // namespace penstock::actors
