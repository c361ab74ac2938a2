#include "cli/option_checks.h"

#include <string>

#include "CLI/CLI.hpp"
#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

TEST(AtLeastTest, RefusesSmallerNumbersAndWhatIsNoInteger) {
  const CLI::Validator check = AtLeast(1);
  const auto error_of = [&check](std::string text) { return check(text); };
  EXPECT_EQ(error_of("1"), "");
  EXPECT_EQ(error_of("9000000000"), "");
  EXPECT_EQ(error_of("0"), "must be at least 1, not 0");
  EXPECT_EQ(error_of("-7"), "must be at least 1, not -7");
  EXPECT_EQ(error_of("two"), "expected an integer, not 'two'");
  EXPECT_EQ(error_of("1.5"), "expected an integer, not '1.5'");
}

}  // namespace
}  // namespace penstock::cli
