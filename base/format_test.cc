#include "base/format.h"

#include "gtest/gtest.h"

namespace penstock {
namespace {

TEST(FormatTest, BytesHaveOneDecimalFromOneKibibyteOn) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(uint64_t{1} << 40), "1.0 TiB");
  EXPECT_EQ(FormatBytes(UINT64_MAX), "16.0 EiB");
}

TEST(FormatTest, SecondsHaveThreeDigits) {
  EXPECT_EQ(FormatSeconds(0), "0.00 us");
  EXPECT_EQ(FormatSeconds(12.5e-6), "12.5 us");
  EXPECT_EQ(FormatSeconds(3.4e-3), "3.40 ms");
  EXPECT_EQ(FormatSeconds(1.25), "1.25 s");
  EXPECT_EQ(FormatSeconds(0.206), "206 ms");
  EXPECT_EQ(FormatSeconds(552.4e-6), "552 us");
  EXPECT_EQ(FormatSeconds(99.96e-3), "100 ms");
  EXPECT_EQ(FormatSeconds(0.99996e-3), "1.00 ms");
  EXPECT_EQ(FormatSeconds(4921), "4921 s");
  EXPECT_EQ(FormatSeconds(2e-9), "0.00 us");
}

}  // namespace
}  // namespace penstock
