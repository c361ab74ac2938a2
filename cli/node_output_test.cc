#include "cli/node_output.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock::cli {
namespace {

using ::testing::ElementsAre;

class NodeOutputTest : public ::testing::Test {
 protected:
  absl::Time now_ = absl::UnixEpoch();
  std::vector<std::string> printed_;
  NodeOutput output_{[this](std::string text) { printed_.push_back(std::move(text)); },
                     [this] { return now_; }};
};

TEST_F(NodeOutputTest, ALineThatSeveralNodesPrintIsShownOnce) {
  for (const uint32_t rank : {2u, 0u, 1u, 3u, 5u}) output_.Add(rank, "node1", "loading");
  EXPECT_THAT(printed_, ElementsAre("[2 node1] loading\n"));
  output_.Add(0, "node1", "ready");
  EXPECT_THAT(printed_, ElementsAre("[2 node1] loading\n", "[0 node1] ready\n"));
  now_ += NodeOutput::kWindow;
  output_.Add(0, "node1", "working");
  EXPECT_THAT(printed_, ElementsAre("[2 node1] loading\n", "[0 node1] ready\n",
                                    "[0-1, 3, 5] loading (4 more times)\n", "[0 node1] working\n"));
}

TEST_F(NodeOutputTest, ALineThatComesAgainLaterIsShownAgain) {
  output_.Add(0, "node1", "saved");
  now_ += NodeOutput::kWindow;
  output_.Add(0, "node1", "saved");
  EXPECT_THAT(printed_, ElementsAre("[0 node1] saved\n", "[0 node1] saved\n"));
}

TEST_F(NodeOutputTest, WhatIsToldIsNoLineOfANode) {
  for (int i = 0; i < 2; ++i) output_.Tell("joined: rank 0\n");
  EXPECT_THAT(printed_, ElementsAre("joined: rank 0\n", "joined: rank 0\n"));
  EXPECT_THAT(output_.LastLines(0), ElementsAre());
}

TEST_F(NodeOutputTest, RepetitionsAreToldAtTheEnd) {
  output_.Add(1, "node1", "slow");
  output_.Add(1, "node1", "slow");
  output_.Flush();
  EXPECT_THAT(printed_, ElementsAre("[1 node1] slow\n", "[1] slow (1 more time)\n"));
  output_.Flush();
  EXPECT_EQ(printed_.size(), 2u);
}

TEST_F(NodeOutputTest, WhatIsKeptIsBounded) {
  for (size_t i = 0; i < 2 * NodeOutput::kMaxWatched; ++i) output_.Add(0, "h", StrCat("line ", i));
  // The first ones are forgotten, the last ones are not.
  output_.Add(0, "h", "line 0");
  output_.Add(0, "h", StrCat("line ", 2 * NodeOutput::kMaxWatched - 1));
  EXPECT_EQ(printed_.size(), 2 * NodeOutput::kMaxWatched + 1);
  const std::vector<std::string> last = output_.LastLines(0);
  ASSERT_EQ(last.size(), NodeOutput::kMaxLast);
  EXPECT_EQ(last.back(), StrCat("line ", 2 * NodeOutput::kMaxWatched - 1));
  EXPECT_EQ(last[last.size() - 2], "line 0");
  EXPECT_THAT(output_.LastLines(1), ElementsAre());
}

}  // namespace
}  // namespace penstock::cli
