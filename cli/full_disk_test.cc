// Commands whose files do not fit on the disk: what else they have to say is said, and the exit
// status tells a failure from a wrong call.

#include <sys/mount.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/checkpoint/checkpoint_folder.h"
#include "base/strings.h"
#include "tests/support/run_fixture.h"

namespace penstock::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kNoSpace[] = "cannot be written (No space left on device)";

// A small file system of its own.
class Disk {
 public:
  // Null where this user may not mount one.
  static std::unique_ptr<Disk> Mount(const std::string& path, const char* size) {
    std::filesystem::create_directory(path);
    const std::string options = StrCat("size=", size);
    if (mount("tmpfs", path.c_str(), "tmpfs", 0, options.c_str()) != 0) return nullptr;
    return std::unique_ptr<Disk>(new Disk(path));
  }
  ~Disk() { umount2(path_.c_str(), MNT_DETACH); }

  // Leaves room for about so many bytes.
  void Fill(uint64_t free_bytes) const {
    const uint64_t space = std::filesystem::space(path_).available;
    ASSERT_GE(space, free_bytes);
    std::ofstream(path_ + "/filler", std::ios::binary) << std::string(space - free_bytes, 'a');
  }
  void Empty() const { std::filesystem::remove(path_ + "/filler"); }

  // Whether nothing can be written any more, not even by root.
  bool MakeReadOnly() const {
    return mount(nullptr, path_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0;
  }

 private:
  explicit Disk(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

class FullDiskTest : public testing::RunFixture {
 protected:
  // A run whose checkpoints, one every second step, lie in the folder `disk`.
  Outcome RunWithCheckpoints(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {
        "run",
        Path("job.toml"),
        "--json",
        "--set",
        "checkpoint.every=2",
        "--set",
        StrCat("checkpoint.path=\"", Path("disk/checkpoints"), "\"")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Call(arguments);
  }
  std::vector<int64_t> Steps() const {
    return *actors::CheckpointFolder::Steps(Path("disk/checkpoints"));
  }
};

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
  const std::unique_ptr<Disk> disk = Disk::Mount(Path("full"), "64k");
  if (disk == nullptr) GTEST_SKIP() << "this user may not mount a file system";
  disk->Fill(0);
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

TEST_F(FullDiskTest, TrainingGoesOnWhereCheckpointsCannotBeWritten) {
  const std::unique_ptr<Disk> disk = Disk::Mount(Path("disk"), "16m");
  if (disk == nullptr) GTEST_SKIP() << "this user may not mount a file system";
  for (const char* const procs : {"1", "2"}) {
    const std::vector<std::string> layout = {"--procs", procs, "--strategy", "tp=2"};
    std::vector<std::string> two_steps = layout;
    two_steps.insert(two_steps.end(), {"--set", "train.steps=2"});
    ASSERT_THAT(Losses(RunWithCheckpoints(two_steps)), SizeIs(2));
    ASSERT_TRUE(disk->MakeReadOnly());
    std::vector<std::string> resume = layout;
    resume.insert(resume.end(), {"--resume", "--set", "train.steps=5"});
    const Outcome outcome = RunWithCheckpoints(resume);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("error: no checkpoint of step 4: "),
                                   HasSubstr("(Read-only file system)"),
                                   HasSubstr("the run is done, but its last checkpoint was not")));
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("\"step\": 5"), HasSubstr("\"summary\"")));
    EXPECT_THAT(Steps(), ElementsAre(2));
    EXPECT_EQ(Call({"checkpoint", "verify", Path("disk/checkpoints")}).status, 0);
    ASSERT_EQ(mount(nullptr, Path("disk").c_str(), nullptr, MS_REMOUNT, nullptr), 0);
    std::filesystem::remove_all(Path("disk/checkpoints"));
  }
}

// A checkpoint is only there when all of its parts are.
TEST_F(FullDiskTest, OneProcessesPartDoesNotFit) {
  const std::unique_ptr<Disk> disk = Disk::Mount(Path("disk"), "16m");
  if (disk == nullptr) GTEST_SKIP() << "this user may not mount a file system";
  const std::vector<std::string> layout = {"--procs", "2",     "--strategy",
                                           "pp=2",    "--set", "parallel.microbatches=2"};
  std::vector<std::string> two_steps = layout;
  two_steps.insert(two_steps.end(), {"--set", "train.steps=2"});
  ASSERT_THAT(Losses(RunWithCheckpoints(two_steps)), SizeIs(2));
  std::vector<uint64_t> sizes;
  for (const auto& file : std::filesystem::directory_iterator(
           actors::CheckpointFolder::NewestOr(Path("disk/checkpoints")))) {
    if (file.path().extension() == ".safetensors") sizes.push_back(file.file_size());
  }
  ASSERT_THAT(sizes, SizeIs(2));
  // Room for either part, but not for both.
  disk->Fill(std::max(sizes[0], sizes[1]) + std::min(sizes[0], sizes[1]) / 2);
  std::vector<std::string> resume = layout;
  resume.insert(resume.end(), {"--resume", "--set", "train.steps=5"});
  const Outcome outcome = RunWithCheckpoints(resume);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("error: no checkpoint of step 4: node "),
                                 HasSubstr("(No space left on device)"),
                                 HasSubstr("the run is done, but its last checkpoint was not")));
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("\"step\": 5"), HasSubstr("\"summary\"")));
  EXPECT_THAT(Steps(), ElementsAre(2));
  EXPECT_EQ(Call({"checkpoint", "verify", Path("disk/checkpoints")}).status, 0);
  // What was written of the part that fitted is gone, so that the next attempt has its room.
  disk->Empty();
  EXPECT_THAT(Losses(RunWithCheckpoints(resume)), SizeIs(3));
  EXPECT_THAT(Steps(), ElementsAre(4, 5));
}

}  // namespace
}  // namespace penstock::cli
