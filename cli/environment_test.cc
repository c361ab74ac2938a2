#include "cli/environment.h"

#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class HelpTest : public ::testing::Test {
 protected:
  std::string HelpOf(std::vector<std::string> arguments) {
    std::ostringstream out;
    std::ostringstream err;
    arguments.emplace_back("--help");
    EXPECT_EQ(RunCommandLine({registries_, out, err}, arguments), 0);
    EXPECT_EQ(err.str(), "");
    return out.str();
  }

  const Registries registries_ = BuiltinRegistries();
  const std::vector<std::string> commands_ = {"run",  "plan",  "show", "opt",   "eval",
                                              "list", "bench", "node", "doctor"};
};

TEST_F(HelpTest, ListsTheCommandsAndExamples) {
  const std::string help = HelpOf({});
  for (const std::string& command : commands_) {
    EXPECT_THAT(help, HasSubstr(StrCat("\n  ", command, " "))) << command;
  }
  EXPECT_THAT(help, HasSubstr("\nExamples:\n"));
}

TEST_F(HelpTest, OfACommandIsAboutThatCommand) {
  for (const std::string& command : commands_) {
    const std::string help = HelpOf({command});
    EXPECT_THAT(help, HasSubstr(StrCat("\nUsage: penstock ", command, " "))) << command;
    EXPECT_THAT(help, Not(HasSubstr("Examples:"))) << command;
  }
}

TEST_F(HelpTest, NamesTheValuesOfOptions) {
  EXPECT_THAT(HelpOf({"run"}), HasSubstr("\n  --set KEY=VALUE  "));
  for (const std::string& command : commands_) {
    // An option without a text of its own shows the type of its value.
    EXPECT_THAT(HelpOf({command}), Not(ContainsRegex("\n  -[-a-z,]+ (TEXT|U?INT|FLOAT)")))
        << command;
  }
}

TEST_F(HelpTest, FitsAHundredColumns) {
  std::string help = HelpOf({});
  for (const std::string& command : commands_) help += HelpOf({command});
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

}  // namespace
}  // namespace penstock::cli
