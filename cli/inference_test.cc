#include "cli/inference.h"

#include <vector>

#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

SampleOptions AtTemperature(double temperature) {
  SampleOptions options;
  options.temperature = temperature;
  return options;
}

TEST(PickTokenTest, AtTemperatureZeroTheLikeliestWins) {
  EXPECT_EQ(PickToken({0.0, 3.0, 3.0, 1.0}, AtTemperature(0), 0.99), 1);
}

TEST(PickTokenTest, ADrawFallsIntoItsShare) {
  // Equal logits: a quarter each.
  const std::vector<double> logits(4, 7.0);
  EXPECT_EQ(PickToken(logits, {}, 0.0), 0);
  EXPECT_EQ(PickToken(logits, {}, 0.26), 1);
  EXPECT_EQ(PickToken(logits, {}, 0.74), 2);
  EXPECT_EQ(PickToken(logits, {}, 0.999), 3);
}

TEST(PickTokenTest, TopKLeavesTheLikeliest) {
  const std::vector<double> logits = {1, 3, 3, 2};
  SampleOptions options;
  options.top_k = 2;
  EXPECT_EQ(PickToken(logits, options, 0.49), 1);
  EXPECT_EQ(PickToken(logits, options, 0.51), 2);
  EXPECT_EQ(PickToken(logits, options, 0.999), 2);
  options.top_k = 1;
  EXPECT_EQ(PickToken(logits, options, 0.999), 1);
}

TEST(PickTokenTest, TokensBeyondBytesAreNotText) {
  std::vector<double> logits(300, 0.0);
  logits[299] = 100;
  logits[65] = 50;
  EXPECT_EQ(PickToken(logits, {}, 0.5), 65);
}

}  // namespace
}  // namespace penstock::cli
