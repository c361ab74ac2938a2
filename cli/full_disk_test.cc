// Commands whose files do not fit on the disk: what else they have to say is said, and the exit
// status tells a failure from a wrong call.

#include <sys/mount.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "tests/support/run_fixture.h"

namespace penstock::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kNoSpace[] = "cannot be written (No space left on device)";

// A file system of its own, without room for another byte.
class FullDisk {
 public:
  // Null where this user may not mount one.
  static std::unique_ptr<FullDisk> Mount(const std::string& path) {
    std::filesystem::create_directory(path);
    if (mount("tmpfs", path.c_str(), "tmpfs", 0, "size=64k") != 0) return nullptr;
    std::unique_ptr<FullDisk> disk(new FullDisk(path));
    std::ofstream(path + "/filler", std::ios::binary) << std::string(size_t{1} << 17, 'a');
    return disk;
  }
  ~FullDisk() { umount2(path_.c_str(), MNT_DETACH); }

 private:
  explicit FullDisk(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

class FullDiskTest : public testing::RunFixture {};

TEST_F(FullDiskTest, OneFileThatDoesNotFitKeepsBackNothingElse) {
  for (const bool is_json : {false, true}) {
    std::vector<std::string> arguments = {"run",   Path("job.toml"), "--trace",  "/dev/full",
                                          "--svg", "/dev/full",      "--report", Path("run.html")};
    if (is_json) arguments.push_back("--json");
    const Outcome outcome = Call(arguments);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err,
                AllOf(HasSubstr(StrCat("error: --trace /dev/full: ", kNoSpace, "\n")),
                      HasSubstr(StrCat("error: --svg /dev/full: ", kNoSpace, "\n")),
                      HasSubstr("penstock: the run is done, but not all of its files were")));
    EXPECT_THAT(outcome.out, HasSubstr(is_json ? "{\"summary\": " : "run:  3 steps, loss "));
    EXPECT_THAT(Read("run.html"), HasSubstr("</html>"));
    std::filesystem::remove(Path("run.html"));
  }
}

TEST_F(FullDiskTest, AWrongPathIsAWrongCall) {
  for (const std::string option : {"--trace", "--svg", "--report"}) {
    const Outcome outcome = Call({"run", Path("job.toml"), option, Path("none/file")});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr(StrCat(option, " ", Path("none/file"), ": there is no ")));
    EXPECT_THAT(outcome.out, Not(HasSubstr("loss")));
  }
}

TEST_F(FullDiskTest, FilesInAFolderWithoutRoom) {
  const std::string checkpoints = StrCat("checkpoint.path=\"", Path("checkpoints"), "\"");
  ASSERT_EQ(Call({"run", Path("job.toml"), "--set", checkpoints}).status, 0);
  const std::unique_ptr<FullDisk> disk = FullDisk::Mount(Path("full"));
  if (disk == nullptr) GTEST_SKIP() << "this user may not mount a file system";
  const Outcome traced = Call({"run", Path("job.toml"), "--trace", Path("full/trace"), "--report",
                               Path("run.md"), "--json"});
  EXPECT_EQ(traced.status, 1);
  EXPECT_THAT(traced.err, HasSubstr(StrCat("error: --trace ", Path("full/trace"), ": ", kNoSpace)));
  EXPECT_THAT(traced.out, HasSubstr("{\"summary\": "));
  EXPECT_THAT(Read("run.md"), HasSubstr("# Run of gpt"));
  EXPECT_FALSE(std::filesystem::exists(Path("full/trace")));

  const Outcome dumped = Call({"run", Path("job.toml"), "--dump", Path("full/dump")});
  EXPECT_EQ(dumped.status, 1);
  EXPECT_THAT(dumped.err, HasSubstr("(No space left on device)"));

  const std::string merged = Path("full/merged.safetensors");
  const Outcome full = Call({"checkpoint", "merge", Path("checkpoints"), "-o", merged});
  EXPECT_EQ(full.status, 1);
  EXPECT_THAT(full.err, HasSubstr(kNoSpace));
  EXPECT_FALSE(std::filesystem::exists(merged));
  const Outcome wrong =
      Call({"checkpoint", "merge", Path("checkpoints"), "-o", Path("none/merged.safetensors")});
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.err, HasSubstr("there is no folder"));
}

}  // namespace
}  // namespace penstock::cli
