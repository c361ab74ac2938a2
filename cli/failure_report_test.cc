#include "cli/failure_report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

TEST(DescribeLogTest, TheLastLinesAndTheFile) {
  EXPECT_EQ(DescribeLog({.rank = 3, .host = "a", .log_folder = "/l", .last_lines = {"x", "y"}}),
            "The last lines of node 3 on a (all are in a:/l/a.3.log):\n  x\n  y\n");
  EXPECT_EQ(DescribeLog({.rank = 3, .host = "a", .last_lines = {"x"}}),
            "The last lines of node 3 on a:\n  x\n");
  EXPECT_EQ(DescribeLog({.rank = 3, .log_folder = "/l"}),
            "note: the log of node 3 is in /l on its host\n");
  EXPECT_EQ(DescribeLog({.rank = 3, .host = "a"}), "");
}

TEST(ResumeCommandTest, IsTheCommandWithOneOptionMore) {
  EXPECT_EQ(ResumeCommand({"run", "my job.toml", "--set", "train.steps=5"}),
            "penstock run 'my job.toml' --set train.steps=5 --resume");
  EXPECT_EQ(ResumeCommand({"run", "job.toml", "--resume"}), "penstock run job.toml --resume");
  EXPECT_EQ(ResumeCommand({"launch", "-H", "a,b", "--", "job.toml"}),
            "penstock launch -H a,b -- job.toml --resume");
  EXPECT_EQ(ResumeCommand({"launch", "job.toml"}), "penstock launch job.toml -- --resume");
}

TEST(ResumeHintTest, NamesTheFolderAndTheHost) {
  EXPECT_EQ(ResumeHint("/ckpt", "/home/me", "a", {"run", "job.toml"}),
            "continue from the last checkpoint in /ckpt, on a, with: cd /home/me && penstock run "
            "job.toml --resume");
  EXPECT_EQ(ResumeHint("", "/home/me", "a", {"run", "job.toml"}), "");
}

}  // namespace
}  // namespace penstock::cli
