#include "base/divisors.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;

TEST(DivisorsTest, AreAllAndInOrder) {
  EXPECT_THAT(DivisorsOf(1), ElementsAre(1));
  EXPECT_THAT(DivisorsOf(7), ElementsAre(1, 7));
  EXPECT_THAT(DivisorsOf(36), ElementsAre(1, 2, 3, 4, 6, 9, 12, 18, 36));
}

}  // namespace
}  // namespace penstock
