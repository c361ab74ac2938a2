#include "base/random.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;

// Known answers published with Random123: counter words, key words, result.
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_THAT(PhiloxBlock({.seed = 0, .stream = 0, .step = 0}, 0),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(PhiloxBlock({.seed = ~uint64_t{0}, .stream = ~0u, .step = ~0u}, ~uint64_t{0}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  // Counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0.
  EXPECT_THAT(PhiloxBlock({.seed = 0x299f31d0a4093822, .stream = 0x13198a2e, .step = 0x03707344},
                          0x85a308d3243f6a88),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(RandomTest, AWordBelongsToItsElementAlone) {
  const RandomKey key{5, 6, 7};
  for (uint64_t index : {uint64_t{0}, uint64_t{3}, uint64_t{4}, uint64_t{1} << 40}) {
    EXPECT_EQ(RandomWord(key, index), PhiloxBlock(key, index / 4)[index % 4]);
  }
  EXPECT_NE(RandomWord({5, 6, 7}, 0), RandomWord({4, 6, 7}, 0));
  EXPECT_NE(RandomWord({5, 6, 7}, 0), RandomWord({5, 5, 7}, 0));
  EXPECT_NE(RandomWord({5, 6, 7}, 0), RandomWord({5, 6, 6}, 0));
}

TEST(RandomTest, UniformRange) {
  EXPECT_EQ(WordToUniform(0), 0.0f);
  EXPECT_EQ(WordToUniform(0xffffffff), 1.0f - 0x1p-24f);
}

// Chi-squared over 256 bins: 255 degrees of freedom, whose 99.9th percentile is 330.5.
TEST(RandomTest, UniformIsUniform) {
  constexpr int kBins = 256;
  constexpr int kDraws = 1 << 20;
  for (uint32_t stream : {0u, 1u, 9u}) {
    std::vector<int> bins(kBins);
    for (int i = 0; i < kDraws; ++i) {
      ++bins[static_cast<int>(RandomUniform({1, stream, 0}, i) * kBins)];
    }
    double chi_squared = 0;
    const double expected = static_cast<double>(kDraws) / kBins;
    for (int count : bins) chi_squared += (count - expected) * (count - expected) / expected;
    EXPECT_LT(chi_squared, 330.5) << "stream " << stream;
  }
}

TEST(RandomTest, NormalHasItsMomentsAndTails) {
  constexpr int kDraws = 1 << 20;
  double sum = 0, sum2 = 0, sum3 = 0, sum4 = 0, neighbours = 0;
  int beyond_2 = 0;
  double previous = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = RandomNormal({3, 4, 5}, i);
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    sum2 += x * x;
    sum3 += x * x * x;
    sum4 += x * x * x * x;
    neighbours += x * previous;
    previous = x;
    if (std::abs(x) > 2) ++beyond_2;
  }
  // About five standard errors each.
  EXPECT_NEAR(sum / kDraws, 0, 0.005);
  EXPECT_NEAR(sum2 / kDraws, 1, 0.007);
  EXPECT_NEAR(sum3 / kDraws, 0, 0.02);
  EXPECT_NEAR(sum4 / kDraws, 3, 0.05);
  EXPECT_NEAR(neighbours / kDraws, 0, 0.005);
  EXPECT_NEAR(static_cast<double>(beyond_2) / kDraws, 0.0455, 0.001);
}

}  // namespace
}  // namespace penstock
