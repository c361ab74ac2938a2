#include "actors/cluster/host_agent.h"

#include <signal.h>

#include "gtest/gtest.h"

#include "actors/cluster/line_splitter.h"

namespace penstock::actors {
namespace {

TEST(AgentReportTest, IsReadAsItWasWritten) {
  const AgentReport line{AgentReport::Kind::kLine, 7, 0, "  step 1 of  2 "};
  const AgentReport empty{AgentReport::Kind::kLine, 0, 0, ""};
  const AgentReport exit{AgentReport::Kind::kExit, 12, SIGKILL, ", probably for lack of memory"};
  const AgentReport finished{AgentReport::Kind::kFinished, 65535, 0, ""};
  for (const AgentReport& report : {line, empty, exit, finished}) {
    const std::optional<AgentReport> read = ParseReport(ToLine(report));
    ASSERT_TRUE(read.has_value()) << ToLine(report);
    EXPECT_EQ(read->kind, report.kind);
    EXPECT_EQ(read->rank, report.rank);
    EXPECT_EQ(read->wait_status, report.wait_status);
    EXPECT_EQ(read->text, report.text);
  }
}

TEST(AgentReportTest, LongLinesAreToldInReportsThatAreNotCut) {
  constexpr size_t kMax = LineSplitter::kMaxLineBytes;
  for (const size_t size : {size_t{0}, size_t{1}, kMax - 16, kMax - 15, kMax, 3 * kMax}) {
    const std::string line(size, 'x');
    std::vector<std::string> told;
    LineSplitter splitter([&told](std::string_view part) { told.emplace_back(part); });
    for (const AgentReport& report : ReportsOfLine(4294967295u, line)) {
      splitter.Add(ToLine(report) + "\n");
    }
    std::string text;
    for (const std::string& part : told) {
      const std::optional<AgentReport> report = ParseReport(part);
      ASSERT_TRUE(report.has_value()) << part;
      EXPECT_EQ(report->rank, 4294967295u);
      text += report->text;
    }
    EXPECT_EQ(text, line);
    EXPECT_EQ(told.size() > 1, size > kMax - 16);
  }
}

TEST(AgentReportTest, OtherLinesAreNoReports) {
  for (const std::string line : {"", "L1 text", "Welcome to host1", "\x1f", "\x1fL", "\x1fL text",
                                 "\x1fX1", "\x1fX1 status", "\x1fQ1 x", "\x1fL99999999999 x"}) {
    EXPECT_FALSE(ParseReport(line).has_value()) << line;
  }
}

TEST(PinningNameTest, IsReadAsItWasWritten) {
  for (const auto sharing :
       {CpuTopology::Sharing::kNeighbours, CpuTopology::Sharing::kRoundRobin}) {
    EXPECT_EQ(ParsePinningName(PinningName(sharing)), sharing);
  }
  EXPECT_EQ(ParsePinningName(""), std::nullopt);
}

}  // namespace
}  // namespace penstock::actors
