// The page of `penstock run --report FILE.html`, of jobs that lack something.
// tests/report_html_test compares the numbers of a whole one with those of --json.

#include <string>
#include <vector>

#include "gmock/gmock.h"

#include "base/strings.h"
#include "tests/support/run_fixture.h"
#include "tests/support/xml_error.h"

namespace penstock::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CmdRunReportTest : public RunFixture {
 protected:
  // The page of a run that ends with `status`.
  std::string Page(std::vector<std::string> arguments, int status = 0) const {
    arguments.insert(arguments.begin(), "run");
    arguments.insert(arguments.end(), {"--report", Path("page.html")});
    const Outcome outcome = Call(arguments);
    EXPECT_EQ(outcome.status, status) << outcome.err;
    std::string page = Read("page.html");
    EXPECT_EQ(XmlError(page), "");
    EXPECT_THAT(page, HasSubstr("<section id=\"timeline\">"));
    return page;
  }
};

// One device, one step, no text, no validation, and names that are markup.
TEST_F(CmdRunReportTest, OfAGraphWithAnyNames) {
  Write("odd.pst",
        "graph \"<b>&\" {\n  %\"</script>\" = input : f64[4, 3]\n"
        "  %\"w'\\\"\" = parameter {std=0.5} : f64[3, 2]\n"
        "  %\"<i>\" = matmul(%\"</script>\", %\"w'\\\"\") : f64[4, 2]\n"
        "  %l = reduce_mean(%\"<i>\") {axes=[0, 1]} : f64[]\n  return %l\n}\n");
  const std::string job = Write("odd.toml",
                                "[model]\nfile = \"odd.pst\"\n[data]\ninputs = \"random\"\n"
                                "[train]\nsteps = 1\n");
  const std::string page = Page({job});
  EXPECT_THAT(page, HasSubstr("&lt;b&gt;&amp;"));
  EXPECT_THAT(page, Not(HasSubstr("<b>&")));
  EXPECT_THAT(page, HasSubstr("no communication was recorded"));
  EXPECT_THAT(page, Not(HasSubstr("Validation loss")));
  EXPECT_THAT(page, Not(HasSubstr(">nan")));
  EXPECT_THAT(page, HasSubstr("1 device of "));
}

TEST_F(CmdRunReportTest, APlanHasItsGraphFromTheJob) {
  const std::string plan = Path("job.plan");
  const std::vector<std::string> strategy = {"--set", "parallel.strategy=\"dp=2\""};
  const Outcome compiled = Call({"plan", Path("job.toml"), "-o", plan, strategy[0], strategy[1]});
  ASSERT_EQ(compiled.status, 0) << compiled.err;
  const std::string alone = Page(
      {plan, "--set", StrCat("data.text=[\"", Path("text.txt"), "\"]"), "--set", "train.steps=2"});
  EXPECT_THAT(alone, HasSubstr("A plan file does not hold the graph"));
  EXPECT_THAT(alone, HasSubstr("note: a plan file does not hold train.seed"));
  const std::string with_job = Page({Path("job.toml"), "--plan", plan, strategy[0], strategy[1]});
  EXPECT_THAT(with_job, HasSubstr("<article class=\"card\""));
  EXPECT_THAT(with_job, HasSubstr("@[dp"));
}

// A run that fails tells of the steps that it ran, and why it ended.
TEST_F(CmdRunReportTest, AFailedRunHasAPage) {
  const std::string page = Page({Path("job.toml"), "--set", "train.learning_rate=1e30", "--set",
                                 "train.dtype=\"f32\"", "--set", "train.steps=20"},
                                1);
  EXPECT_THAT(page, HasSubstr("The run ended early: the loss of step "));
  EXPECT_THAT(page, HasSubstr("not finite"));
}

TEST_F(CmdRunReportTest, OtherNamesAreMarkdown) {
  const Outcome outcome = Call({"run", Path("job.toml"), "--report", Path("report.md")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(Read("report.md"), HasSubstr("# Run of gpt"));
  EXPECT_THAT(Read("report.md"), Not(HasSubstr("<html")));
}

}  // namespace
}  // namespace penstock::testing
