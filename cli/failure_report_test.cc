#include "cli/failure_report.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

TEST(DescribeLogTest, TheLastLinesAndTheFile) {
  EXPECT_EQ(DescribeLog({.rank = 3, .host = "a", .log_folder = "/l", .last_lines = {"x", "y"}}),
            "The last lines of node 3 on a (all are in a:/l/a.3.log):\n  x\n  y\n");
  EXPECT_EQ(DescribeLog({.rank = 3, .host = "10.0.0.7", .host_in_log = "a", .log_folder = "/l"}),
            "note: the log of node 3 is in 10.0.0.7:/l/a.3.log\n");
  EXPECT_EQ(DescribeLog({.rank = 3, .host = "a", .last_lines = {"x"}}),
            "The last lines of node 3 on a:\n  x\n");
  EXPECT_EQ(DescribeLog({.rank = 3, .log_folder = "/l"}),
            "note: the log of node 3 is in /l on its host, if it has begun\n");
  EXPECT_EQ(DescribeLog({.rank = 3, .host = "a"}), "");
}

TEST(MayHaveBegunTest, NotWhereSshOrAShellHasFailed) {
  for (const int status : {126, 127, 255}) EXPECT_FALSE(MayHaveBegun(status));
  for (const int status : {1, 2, 137}) EXPECT_TRUE(MayHaveBegun(status));
}

std::string Resume(std::vector<std::string> arguments) {
  return ResumeCommand({.arguments = std::move(arguments)});
}

TEST(ResumeCommandTest, IsTheCommandWithOneOptionMore) {
  EXPECT_EQ(Resume({"run", "my job.toml", "--set", "train.steps=5"}),
            "penstock run 'my job.toml' --set train.steps=5 --resume");
  EXPECT_EQ(Resume({"run", "job.toml", "--resume"}), "penstock run job.toml --resume");
  EXPECT_EQ(Resume({"launch", "-H", "a,b", "--", "job.toml"}),
            "penstock launch -H a,b -- job.toml --resume");
  EXPECT_EQ(Resume({"launch", "job.toml"}), "penstock launch job.toml -- --resume");
}

TEST(ResumeCommandTest, CallsTheProgramAsTheUserHas) {
  EXPECT_EQ(ResumeCommand({.program = "../my build/penstock", .arguments = {"run", "job.toml"}}),
            "'../my build/penstock' run job.toml --resume");
  EXPECT_EQ(ResumeCommand({.program = "bin/penstock",
                           .arguments = {"launch", "--", "job.toml"},
                           .starter = "srun"}),
            "srun ... bin/penstock launch -- job.toml --resume");
}

TEST(ResumeHintTest, NamesTheFolderAndTheHost) {
  const JobCommand command = {.arguments = {"run", "job.toml"}};
  EXPECT_EQ(ResumeHint("/ckpt", true, "/home/me", "a", command),
            "continue from the last checkpoint in /ckpt, on a, with: cd /home/me && penstock run "
            "job.toml --resume");
  EXPECT_EQ(ResumeHint("/ckpt", false, "/home/me", "a", command),
            "continue from the last checkpoint in /ckpt, on a, if one was written, with: cd "
            "/home/me && penstock run job.toml --resume");
  EXPECT_EQ(ResumeHint("", true, "/home/me", "a", command), "");
  EXPECT_EQ(
      ResumeHint("/ckpt", true, "/home/me", "a",
                 {.arguments = {"launch", "--", "job.toml"}, .needs_variables = true}),
      "continue from the last checkpoint in /ckpt, on a, with (in each of its processes, with "
      "the variables that it had): cd /home/me && penstock launch -- job.toml --resume");
}

}  // namespace
}  // namespace penstock::cli
