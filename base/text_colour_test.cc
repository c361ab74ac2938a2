#include "base/text_colour.h"

#include "gtest/gtest.h"

namespace penstock {
namespace {

TEST(TextColourTest, IsTheOneThatContrastsMore) {
  EXPECT_EQ(TextColourOn("#ffffff"), "#202124");
  EXPECT_EQ(TextColourOn("#f2dc9f"), "#202124");  // light yellow
  EXPECT_EQ(TextColourOn("#e4b43c"), "#202124");
  EXPECT_EQ(TextColourOn("#000000"), "#ffffff");
  EXPECT_EQ(TextColourOn("#2457a6"), "#ffffff");
}

TEST(TextColourTest, OfSomethingElseIsWhite) {
  EXPECT_EQ(TextColourOn(""), "#ffffff");
  EXPECT_EQ(TextColourOn("white"), "#ffffff");
  EXPECT_EQ(TextColourOn("#12x456"), "#ffffff");
}

}  // namespace
}  // namespace penstock
