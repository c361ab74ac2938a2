// `penstock schedule` as a script and a person meet it.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/strings.h"
#include "planner/policy/policy.h"
#include "tests/support/command_line_fixture.h"
#include "tests/support/test_policies.h"

namespace penstock::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class CmdScheduleTest : public testing::CommandLineFixture {
 protected:
  nlohmann::json Json(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "schedule");
    arguments.push_back("--json");
    const Outcome outcome = Call(arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }
  std::string ErrorOf(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "schedule");
    const Outcome outcome = Call(arguments);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  }
};

TEST_F(CmdScheduleTest, PrintsFigures) {
  const nlohmann::json h1 =
      Json({"zb-h1", "--stages", "4", "--microbatches", "8", "--comm", "0.1"});
  EXPECT_NEAR(h1["makespan"].get<double>(), 28.2, 1e-9);
  EXPECT_EQ(h1["peak_activations"], (std::vector<double>{4, 4, 4, 4}));
  const nlohmann::json interleaved =
      Json({"interleaved", "--stages", "4", "--microbatches", "8", "--chunks", "2"});
  EXPECT_NEAR(interleaved["makespan"].get<double>(), 28.5, 1e-9);
  EXPECT_EQ(interleaved["peak_activations"], (std::vector<double>{5.5, 4.5, 3.5, 2.5}));
  const Outcome text = Call({"schedule", "1f1b", "--stages", "4", "--microbatches", "8"});
  EXPECT_THAT(text.out,
              StartsWith("1f1b: 4 stages, 8 micro-batches: makespan 33, bubble 27.3 %\n"));
}

TEST_F(CmdScheduleTest, ReadsTheCsvThatItWrites) {
  const Outcome csv = Call({"schedule", "zb-h2", "--stages", "3", "--microbatches", "6", "--csv"});
  EXPECT_THAT(csv.out, StartsWith("0F0,0F1,0F2,"));
  const std::string file = Write("orders.csv", csv.out);
  nlohmann::json read = Json({file, "--w", "0.5"});
  nlohmann::json planned = Json({"zb-h2", "--stages", "3", "--microbatches", "6", "--w", "0.5"});
  read.erase("policy");
  planned.erase("policy");
  EXPECT_EQ(read, planned);
  EXPECT_THAT(ErrorOf({file, "--stages", "4"}), HasSubstr("--stages 4: the orders in"));
}

TEST_F(CmdScheduleTest, DrawsTheTimeline) {
  const Outcome outcome =
      Call({"schedule", "auto", "--stages", "2", "--microbatches", "3", "--svg", Path("t.svg")});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const std::string svg = Read("t.svg");
  EXPECT_THAT(svg, StartsWith("<svg "));
  EXPECT_THAT(svg, HasSubstr("<title>W2 of stage 1"));
  EXPECT_THAT(svg, HasSubstr("peak "));
}

TEST_F(CmdScheduleTest, MistakesAreNamed) {
  EXPECT_THAT(ErrorOf({"zb-h3", "--stages", "4", "--microbatches", "8"}),
              HasSubstr("there is no policy 'zb-h3'; did you mean 'zb-h1'?"));
  EXPECT_THAT(ErrorOf({"1f1b", "--stages", "4"}), HasSubstr("--microbatches is missing"));
  EXPECT_THAT(ErrorOf({"1f1b", "--stages", "0", "--microbatches", "8"}),
              HasSubstr("--stages: must be at least 1, not 0"));
  EXPECT_THAT(ErrorOf({"1f1b", "--stages", "4294967297", "--microbatches", "8"}),
              HasSubstr("--stages: Value 4294967297 not in range"));
  EXPECT_THAT(ErrorOf({"1f1b", "--stages", "1000", "--microbatches", "20000"}),
              HasSubstr("stages x micro-batches x chunks: 20000000, expected at most 16777216"));
  EXPECT_THAT(ErrorOf({"1f1b", "--stages", "4", "--microbatches", "8", "--f", "1e308"}),
              HasSubstr("--f: Value 1e308 not in range"));
  EXPECT_THAT(ErrorOf({"zb-h1", "--stages", "4", "--microbatches", "8", "--chunks", "2"}),
              HasSubstr("policy 'zb-h1' orders 1 chunk a group; there are 2"));
  EXPECT_THAT(ErrorOf({"gpipe", "--stages", "4", "--microbatches", "8", "--memory-limit", "4"}),
              HasSubstr("'gpipe' keeps 8 activations on group 0, more than --memory-limit 4"));
  EXPECT_THAT(ErrorOf({"1f1b", "--stages", "4", "--microbatches", "8", "--f", "-1"}),
              HasSubstr("--f: expected a number of at least 0, not -1"));
  EXPECT_THAT(ErrorOf({"1f1b", "--stages", "4", "--microbatches", "8", "--json", "--csv"}),
              HasSubstr("--csv"));
  const std::string bad = Write("bad.csv", "0F0,0Z0\n");
  EXPECT_THAT(ErrorOf({bad}), HasSubstr("bad.csv:1:5: '0Z0'"));
  // Not even a name that is not UTF-8 keeps figures from being JSON.
  const std::string latin = Write("caf\xe9.csv", "0F0,0B0\n");
  const Outcome outcome = Call({"schedule", latin, "--json"});
  EXPECT_THAT(nlohmann::json::parse(outcome.out)["policy"].get<std::string>(),
              HasSubstr("caf\xef\xbf\xbd.csv"));
  const std::string stuck = Write("stuck.csv", "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n");
  EXPECT_THAT(ErrorOf({stuck}),
              HasSubstr("stuck.csv: the orders of the groups wait for each other: group 0 waits"));
}

// Whatever the layout of the named policy is, and within the memory that it takes.
TEST_F(CmdScheduleTest, AutoIsNoSlowerThanNamedPoliciesWithinTheirMemory) {
  for (const std::string name : {"1f1b", "interleaved", "zb-v", "v-min"}) {
    const nlohmann::json named = Json({name, "--stages", "4", "--microbatches", "8"});
    const std::vector<double> peaks = named["peak_activations"];
    const double limit = *std::max_element(peaks.begin(), peaks.end());
    const nlohmann::json best =
        Json({"auto", "--stages", "4", "--microbatches", "8", "--memory-limit", StrCat(limit)});
    EXPECT_LE(best["bubble"].get<double>(), named["bubble"].get<double>() + 1e-9) << name;
    EXPECT_LE(best["span"].get<double>(), named["span"].get<double>() + 1e-9) << name;
  }
}

// GPipe takes any placement, too, and has one chunk unless it is asked for more.
TEST_F(CmdScheduleTest, OnlyAutoChoosesItsLayout) {
  EXPECT_EQ(Json({"gpipe", "--stages", "4", "--microbatches", "8"})["makespan"], 33);
}

TEST_F(CmdScheduleTest, ShowsPoliciesThatDecideAsTheyGo) {
  // 1F1B, decided by what is ready: B before F, and no more in flight than there are stages left.
  ASSERT_TRUE(
      registries_.policies
          .Add(std::make_shared<testing::DynamicPolicy>(
              "lately",
              [](const planner::StageContext& context,
                 const planner::StageView& view) -> std::optional<planner::PhaseChoice> {
                const planner::ChunkView& chunk = view.chunks[0];
                if (chunk.ready[1] > 0) {
                  return planner::PhaseChoice{planner::PhaseKind::kBackward, chunk.issued[1]};
                }
                const int in_flight = chunk.issued[0] - chunk.completed[1];
                if (chunk.ready[0] > 0 && in_flight < context.num_stages - context.stage) {
                  return planner::PhaseChoice{planner::PhaseKind::kForward, chunk.issued[0]};
                }
                return std::nullopt;
              }))
          .ok());
  const auto csv = [&](const std::string& name) {
    return Call({"schedule", name, "--stages", "4", "--microbatches", "8", "--csv"});
  };
  const Outcome decided = csv("lately");
  EXPECT_EQ(decided.status, 0) << decided.err;
  EXPECT_EQ(decided.out, csv("1f1b").out);
  ASSERT_TRUE(registries_.policies.Add(testing::SilentPolicy()).ok());
  EXPECT_THAT(csv("silent").err, HasSubstr("policy 'silent' chooses nothing on stage 0 though a "
                                           "phase could run, and nothing is under way"));
}

}  // namespace
}  // namespace penstock::cli
