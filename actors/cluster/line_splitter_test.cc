#include "actors/cluster/line_splitter.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The lines of a text that comes `size` bytes at a time.
std::vector<std::string> Lines(const std::string& text, size_t size) {
  std::vector<std::string> lines;
  LineSplitter splitter([&lines](std::string_view line) { lines.emplace_back(line); });
  for (size_t at = 0; at < text.size(); at += size) {
    splitter.Add(std::string_view(text).substr(at, size));
  }
  splitter.End();
  return lines;
}

TEST(LineSplitterTest, LinesAreToldHoweverTheyCome) {
  for (const size_t size : {1, 2, 3, 5, 100}) {
    EXPECT_THAT(Lines("one\ntwo\n\nfour\n", size), ElementsAre("one", "two", "", "four"));
    EXPECT_THAT(Lines("\n", size), ElementsAre(""));
    EXPECT_THAT(Lines("", size), IsEmpty());
  }
}

TEST(LineSplitterTest, ALineIsToldWhenItEnds) {
  std::vector<std::string> lines;
  LineSplitter splitter([&lines](std::string_view line) { lines.emplace_back(line); });
  splitter.Add("half");
  EXPECT_THAT(lines, IsEmpty());
  splitter.Add(" a line\nand");
  EXPECT_THAT(lines, ElementsAre("half a line"));
  splitter.End();
  splitter.End();
  EXPECT_THAT(lines, ElementsAre("half a line", "and"));
}

TEST(LineSplitterTest, BytesAreTakenAsTheyAre) {
  const std::string binary("a\0b\xff\xfe\r\x1b[1m", 10);
  for (const size_t size : {1, 4, 100}) {
    EXPECT_THAT(Lines(binary + "\n" + binary, size), ElementsAre(binary, binary));
  }
}

TEST(LineSplitterTest, LongLinesAreToldInParts) {
  constexpr size_t kMax = LineSplitter::kMaxLineBytes;
  const std::string full(kMax, 'x');
  for (const size_t size : {size_t{1}, size_t{4096}, kMax, kMax + 1, 10 * kMax}) {
    EXPECT_THAT(Lines(full + "\nnext", size), ElementsAre(full, "next"));
    EXPECT_THAT(Lines(full + "y\nnext", size), ElementsAre(full, "y", "next"));
    EXPECT_THAT(Lines(full + full + full, size), ElementsAre(full, full, full));
    EXPECT_THAT(Lines(full, size), ElementsAre(full));
  }
}

}  // namespace
}  // namespace penstock::actors
