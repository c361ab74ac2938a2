#include "tests/support/temp_folder.h"

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock::testing {
namespace {

namespace fs = std::filesystem;

TEST(TempFolderTest, GoesWithItsFiles) {
  fs::path path;
  {
    const TempFolder folder;
    path = folder.path();
    std::ofstream(folder.Path("file")) << "text";
    EXPECT_TRUE(fs::exists(path / "file"));
    EXPECT_NE(TempFolder().path(), path);
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(TempFolderTest, WhatADeadProcessLeftIsRemoved) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const fs::path parent = ::testing::TempDir();
  const fs::path left = parent / StrCat("penstock_test.", child, ".abcdef");
  fs::create_directories(left / "inner");
  const TempFolder folder;
  EXPECT_FALSE(fs::exists(left));
  // Of a process that lives, and of nobody.
  const fs::path foreign = parent / StrCat("penstock_test.x.", getpid());
  fs::create_directories(foreign);
  { const TempFolder another; }
  EXPECT_TRUE(fs::exists(folder.path()));
  EXPECT_TRUE(fs::exists(foreign));
  fs::remove(foreign);
}

}  // namespace
}  // namespace penstock::testing
