#include "graph/rotary_scaling.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock::graph {
namespace {

using ::testing::HasSubstr;

// Expected values are those of the package transformers 5.24.

TEST(RotaryScalingTest, LinearDividesAllFrequencies) {
  const std::vector<double> frequencies =
      RotaryFrequencies(RotaryAttributes(1e4, {.type = "linear", .factor = 4}), 16);
  const std::vector<double> expected = {0.25,   0.07905694,   0.025,   0.0079056947,
                                        0.0025, 0.0007905695, 0.00025, 0.00007905695};
  ASSERT_EQ(frequencies.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(frequencies[i], expected[i], 1e-6 * expected[i]) << i;
  }
}

TEST(RotaryScalingTest, Llama3KeepsFastFrequencies) {
  const RotaryScaling scaling = {
      .type = "llama3", .factor = 8, .low_factor = 1, .high_factor = 4, .context = 8192};
  const Attributes attributes = RotaryAttributes(5e5, scaling);
  EXPECT_EQ(RotaryScalingOf(attributes), scaling);
  const std::vector<double> frequencies = RotaryFrequencies(attributes, 128);
  ASSERT_EQ(frequencies.size(), 64u);
  // Kept; blended from 30 to 34; divided.
  for (const auto& [i, expected] : std::vector<std::pair<size_t, double>>{{0, 1.0},
                                                                          {20, 0.01656044},
                                                                          {28, 0.003211446},
                                                                          {30, 0.0013718937},
                                                                          {32, 0.000524846},
                                                                          {35, 9.5562122e-05},
                                                                          {40, 3.4281024e-05},
                                                                          {63, 3.0689259e-07}}) {
    EXPECT_NEAR(frequencies[i], expected, 2e-6 * expected) << i;
  }
}

TEST(RotaryScalingTest, OthersChangeNothing) {
  for (const char* type : {"none", "dynamic"}) {
    EXPECT_EQ(RotaryAttributes(7, {.type = type, .factor = 3}), Attributes({{"base", 7.0}}));
  }
  EXPECT_EQ(RotaryFrequencies({}, 4), (std::vector<double>{1.0, 0.01}));
}

TEST(RotaryScalingTest, WrongScalingsAreRefused) {
  const auto error = [](const RotaryScaling& scaling, int64_t context = 64) {
    return std::string(ToStd(CheckRotaryScaling(scaling, context, "rotary_").message()));
  };
  EXPECT_EQ(error({}), "");
  EXPECT_EQ(error({.type = "linear", .factor = 2}), "");
  EXPECT_EQ(error({.type = "yarn"}),
            "rotary_scaling = \"yarn\": expected \"none\", \"linear\", \"dynamic\" or \"llama3\"");
  EXPECT_EQ(error({.type = "linear", .factor = 0.5}), "rotary_factor = 0.5: must be at least 1");
  EXPECT_EQ(error({.type = "llama3", .factor = 2, .low_factor = 0}),
            "rotary_low_factor = 0: must be positive");
  EXPECT_EQ(error({.type = "llama3", .factor = 2, .low_factor = 4}),
            "rotary_high_factor = 4: must be more than rotary_low_factor = 4");
  EXPECT_EQ(error({.type = "llama3", .factor = 2, .context = 0}),
            "rotary_context = 0: must be positive");
  EXPECT_EQ(error({.type = "dynamic", .factor = 2, .context = 64}), "");
  EXPECT_THAT(error({.type = "dynamic", .factor = 2, .context = 63}),
              HasSubstr("sequences of 64 tokens are longer than rotary_context = 63"));
}

}  // namespace
}  // namespace penstock::graph
