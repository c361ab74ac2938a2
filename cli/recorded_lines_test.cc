#include "cli/recorded_lines.h"

#include <sstream>
#include <string>

#include "gmock/gmock.h"

#include "base/strings.h"

namespace penstock::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RecordedLinesTest, NotesAreKeptAndAllIsPassedOn) {
  std::ostringstream out;
  RecordedLines lines(out);
  lines.stream() << "plan: dp=2\nnote: two devices" << ' ' << "share a core" << std::endl
                 << "\rstep 1/2  loss 3\rwarning: the loss is not finite\n"
                 << "a note: no\nerror: no checkpoint\nnote: not yet complete" << std::flush;
  EXPECT_EQ(out.str(),
            "plan: dp=2\nnote: two devices share a core\n\rstep 1/2  loss 3\rwarning: the loss is "
            "not finite\na note: no\nerror: no checkpoint\nnote: not yet complete");
  EXPECT_THAT(lines.lines(),
              ElementsAre("note: two devices share a core", "warning: the loss is not finite",
                          "error: no checkpoint"));
  lines.stream() << "\n";
  EXPECT_EQ(lines.lines().size(), 4u);
}

TEST(RecordedLinesTest, WhatIsKeptIsBounded) {
  std::ostringstream out;
  RecordedLines lines(out);
  EXPECT_THAT(lines.lines(), IsEmpty());
  lines.stream() << "note: " << std::string(2 * RecordedLines::kMaxLineBytes, 'x') << "\n";
  ASSERT_EQ(lines.lines().size(), 1u);
  EXPECT_EQ(lines.lines()[0].size(), RecordedLines::kMaxLineBytes);
  for (size_t i = 0; i < RecordedLines::kMaxLines + 5; ++i) {
    lines.stream() << "note: " << i << "\nnote: again\n";
  }
  EXPECT_EQ(lines.lines().size(), RecordedLines::kMaxLines);
  EXPECT_GT(lines.num_left_out(), 5);
}

TEST(RecordedLinesTest, AStreamThatFailsIsNoticed) {
  std::ostringstream out;
  out.setstate(std::ios::badbit);
  RecordedLines lines(out);
  lines.stream() << "note: lost\n";
  EXPECT_FALSE(lines.stream());
}

}  // namespace
}  // namespace penstock::cli
