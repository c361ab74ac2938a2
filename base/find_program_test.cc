#include "base/find_program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock {
namespace {

class FindProgramTest : public ::testing::Test {
 protected:
  FindProgramTest() {
    const char* const path = std::getenv("PATH");
    if (path != nullptr) path_ = path;
    std::string name = (std::filesystem::temp_directory_path() / "find_program.XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    std::filesystem::create_directories(folder_ / "first" / "tool");  // a folder is no program
    std::filesystem::create_directories(folder_ / "second");
    std::filesystem::create_directories(folder_ / "third");
    for (const char* const other : {"second", "third"}) std::ofstream(folder_ / other / "tool");
    chmod((folder_ / "third" / "tool").c_str(), 0700);
    SetPath({StrCat(folder_.string(), "/first::", folder_.string(), "/second:", folder_.string(),
                    "/third")});
  }
  ~FindProgramTest() override {
    SetPath(path_);
    std::filesystem::remove_all(folder_);
  }

  static void SetPath(const std::string& path) { setenv("PATH", path.c_str(), 1); }

  std::string path_;
  std::filesystem::path folder_;
};

TEST_F(FindProgramTest, TheFirstThatCanBeRunIsFound) {
  const absl::StatusOr<std::string> found = FindProgram("tool");
  ASSERT_TRUE(found.ok()) << found.status();
  // Root may run what nobody may; the mode counts all the same.
  EXPECT_EQ(*found, (folder_ / "third" / "tool").string());
}

TEST_F(FindProgramTest, APathStaysAsItIs) {
  EXPECT_EQ(FindProgram("./tool").value(), "./tool");
  EXPECT_EQ(FindProgram("/nowhere/tool").value(), "/nowhere/tool");
}

TEST_F(FindProgramTest, WhatIsNotInPathIsNamed) {
  EXPECT_EQ(FindProgram("no-such-tool").status(),
            absl::NotFoundError("no-such-tool: there is no such program in PATH"));
  unsetenv("PATH");
  EXPECT_FALSE(FindProgram("tool").ok());
}

}  // namespace
}  // namespace penstock
