#include "cli/help_text.h"

#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

TEST(WrapTextTest, BreaksAtTheLastSpaceThatFits) {
  EXPECT_EQ(WrapText("", 10, 2), "");
  EXPECT_EQ(WrapText("one two", 7, 2), "one two");
  EXPECT_EQ(WrapText("one two", 6, 2), "one\n  two");
  EXPECT_EQ(WrapText("one two three", 8, 2), "one two\n  three");
  EXPECT_EQ(WrapText("a bb ccc dddd", 4, 0), "a bb\nccc\ndddd");
}

TEST(WrapTextTest, ALongWordHasALineOfItsOwn) {
  EXPECT_EQ(WrapText("a longer-than-that b", 5, 1), "a\n longer-than-that\n b");
}

TEST(WrapTextTest, KeepsLineBreaks) {
  EXPECT_EQ(WrapText("one\ntwo three", 20, 3), "one\n   two three");
  EXPECT_EQ(WrapText("one two\nthree four", 9, 0), "one two\nthree\nfour");
}

}  // namespace
}  // namespace penstock::cli
