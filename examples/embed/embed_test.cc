// The example does what it says, in one process and in two, with the same output.

#include <cstdio>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

std::string OutputOf(const std::string& arguments) {
  const std::string command = PENSTOCK_EXAMPLES "/example_embed" + arguments;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe.get())) > 0;) {
    text.append(buffer, n);
  }
  return text;
}

TEST(EmbedTest, TrainsInOneProcessAndInTwo) {
  const std::string one = OutputOf("");
  EXPECT_THAT(one, HasSubstr("step 9 loss "));
  EXPECT_EQ(OutputOf(" --procs"), one);
}

}  // namespace
}  // namespace penstock
