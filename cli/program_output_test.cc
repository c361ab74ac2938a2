#include "cli/program_output.h"

#include <sys/wait.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

using ::testing::HasSubstr;

TEST(ProgramOutputTest, IsThatOfBothStreamsWithoutTheLastNewlines) {
  const absl::StatusOr<std::string> output =
      OutputOf({"sh", "-c", "cat; echo an error >&2; echo"}, "one\ntwo\n");
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ(*output, "one\ntwo\nan error");
  EXPECT_EQ(OutputOf({"true"}, "").value_or("?"), "");
}

TEST(ProgramOutputTest, AnErrorNamesTheProgramAndSaysWhatItHasPrinted) {
  const absl::Status failed = OutputOf({"sh", "-c", "echo no such host; exit 3"}, "").status();
  EXPECT_EQ(failed, absl::UnavailableError("sh exited with status 3: no such host"));
  const absl::Status killed = OutputOf({"sh", "-c", "kill -9 $$"}, "").status();
  EXPECT_THAT(killed.message(), HasSubstr("sh was killed by signal 9"));
  const absl::Status missing = OutputOf({"no-such-program"}, "").status();
  EXPECT_THAT(missing.message(), HasSubstr("no-such-program"));
}

TEST(ProgramOutputTest, AnEndThatIsNoSuccessHasAnOutputToo) {
  const absl::StatusOr<ProgramOutput> end = EndOf({"sh", "-c", "cat; exit 17"}, "a line\n");
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->text, "a line");
  EXPECT_TRUE(WIFEXITED(end->wait_status));
  EXPECT_EQ(WEXITSTATUS(end->wait_status), 17);
}

TEST(ProgramOutputTest, LongOutputIsCut) {
  const absl::StatusOr<std::string> output = OutputOf({"sh", "-c", "yes | head -c 100000"}, "");
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_GE(output->size(), 65'535u);  // without the last newline
  EXPECT_LT(output->size(), 70'000u);
}

}  // namespace
}  // namespace penstock::cli
