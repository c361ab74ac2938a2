#include "cli/files.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/temp_folder.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class FilesTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.Path(name); }
  std::string Read(const std::string& name) const {
    const auto text = ReadTextFile(Path(name), 1 << 20);
    EXPECT_TRUE(text.ok()) << text.status();
    return text.value_or("");
  }
  int CountFiles() const {
    const fs::directory_iterator files(Path("."));
    return static_cast<int>(std::distance(begin(files), end(files)));
  }

  const testing::TempFolder folder_;
};

TEST_F(FilesTest, AFileIsReplacedAsAWhole) {
  ASSERT_TRUE(WriteTextFile(Path("a"), "old").ok());
  ASSERT_EQ(chmod(Path("a").c_str(), 0640), 0);
  std::ifstream reader(Path("a"));  // sees the old file, whatever is written now
  ASSERT_TRUE(WriteTextFile(Path("a"), "new and longer").ok());
  std::string seen;
  reader >> seen;
  EXPECT_EQ(seen, "old");
  EXPECT_EQ(Read("a"), "new and longer");
  EXPECT_EQ(fs::status(Path("a")).permissions(), fs::perms(0640));
  EXPECT_EQ(CountFiles(), 1);
}

TEST_F(FilesTest, ALinkStaysAndItsTargetIsReplaced) {
  ASSERT_TRUE(WriteTextFile(Path("target"), "old").ok());
  fs::create_symlink("target", Path("link"));
  ASSERT_TRUE(WriteTextFile(Path("link"), "new").ok());
  EXPECT_TRUE(fs::is_symlink(Path("link")));
  EXPECT_EQ(Read("target"), "new");
  EXPECT_EQ(CountFiles(), 2);
}

TEST_F(FilesTest, APipeIsWrittenAndStays) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  std::string seen;
  std::thread reader([&] { std::ifstream(Path("pipe")) >> seen; });
  EXPECT_TRUE(WriteTextFile(Path("pipe"), "text").ok());
  reader.join();
  EXPECT_EQ(seen, "text");
  EXPECT_TRUE(fs::is_fifo(Path("pipe")));
}

TEST_F(FilesTest, AStreamIsWrittenAsItComes) {
  const auto write = [](std::ostream& out) {
    out << "line " << 7 << '\n';
    out << std::string(1 << 16, 'a');
  };
  ASSERT_TRUE(WriteStreamedFile(Path("a"), write).ok());
  EXPECT_EQ(Read("a"), "line 7\n" + std::string(1 << 16, 'a'));
  EXPECT_THAT(WriteStreamedFile("/dev/full", write).ToString(),
              HasSubstr("/dev/full: cannot be written (No space left on device)"));
}

TEST_F(FilesTest, WhatCannotBeWrittenIsNamedAndLeavesNothing) {
  const absl::Status wrong = WriteTextFile(Path("none/a"), "text");
  EXPECT_THAT(wrong.ToString(), HasSubstr(Path("none/a") + ": cannot be written"));
  EXPECT_TRUE(absl::IsInvalidArgument(wrong));
  const absl::Status full = WriteTextFile("/dev/full", std::string(1 << 20, 'a'));
  EXPECT_THAT(full.ToString(), HasSubstr("/dev/full: cannot be written"));
  EXPECT_TRUE(absl::IsUnavailable(full));
  EXPECT_EQ(CountFiles(), 0);
}

TEST_F(FilesTest, WhereNoMoreBytesFitTheOldFileStays) {
  ASSERT_TRUE(WriteTextFile(Path("a"), "old").ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  rlimit limit = before;
  limit.rlim_cur = 1 << 10;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const absl::Status status = WriteTextFile(Path("a"), std::string(1 << 12, 'b'));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_THAT(status.ToString(), HasSubstr("a: cannot be written (File too large)"));
  EXPECT_EQ(Read("a"), "old");
  EXPECT_EQ(CountFiles(), 1);
}

TEST_F(FilesTest, CreatableFoldersAreTriedAndRemovedAgain) {
  EXPECT_TRUE(CheckCreatable("").ok());
  EXPECT_TRUE(CheckCreatable(Path("a/b/c")).ok());
  EXPECT_EQ(CountFiles(), 0);
  EXPECT_TRUE(CheckCreatable(Path(".")).ok());
  EXPECT_EQ(CountFiles(), 0);
  ASSERT_TRUE(WriteTextFile(Path("file"), "text").ok());
  EXPECT_THAT(CheckCreatable(Path("file/a")).ToString(), HasSubstr("file/a: "));
  // No permission bit says that nothing can be created here.
  EXPECT_THAT(CheckCreatable("/proc/penstock/a").ToString(), HasSubstr("/proc/penstock/a: "));
  EXPECT_EQ(CountFiles(), 1);
}

}  // namespace
}  // namespace penstock::cli
