// Every policy, and an order from a file, trains in four processes, one a group of devices: with
// the losses of one device, and each group in the order that the plan has.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/strings.h"
#include "planner/plan/plan_io.h"
#include "tests/support/command_line_fixture.h"

namespace penstock::cli {
namespace {

constexpr int kGroups = 4;
constexpr int kMicrobatches = 8;
constexpr int kStep = 3;  // the last one of the job, of which the order is compared

class PoliciesInProcessesTest : public testing::CommandLineFixture,
                                public ::testing::WithParamInterface<std::string> {
 protected:
  // Options of a run and of its plan.
  static std::vector<std::string> Pipeline(const std::string& policy) {
    return {"--strategy", StrCat("pp=", kGroups),
            "--policy",   policy,
            "--set",      "model.layers=8",
            "--set",      StrCat("parallel.microbatches=", kMicrobatches),
            "--set",      StrCat("cluster.processes=", kGroups)};
  }

  std::vector<double> Losses(const std::vector<std::string>& options) const {
    std::vector<double> losses;
    for (const nlohmann::json& line : RunLines(options)) {
      if (line.contains("loss")) losses.push_back(line["loss"]);
    }
    return losses;
  }

  // Phases of a device in the order in which they began in a traced step: "F3", "B0 of chunk 1".
  static std::vector<std::string> MeasuredOrder(const nlohmann::json& trace, int device) {
    std::vector<std::pair<double, std::string>> phases;
    for (const nlohmann::json& event : trace["traceEvents"]) {
      if (event.value("cat", "") != "phase" || event["pid"] != device ||
          event["args"]["step"] != kStep) {
        continue;
      }
      const std::string name = event["name"];
      if (name != name.substr(0, 1) && name.substr(1, 10) != " of chunk ") continue;
      phases.push_back(
          {event["ts"],
           StrCat(name.substr(0, 1), event["args"]["microbatch"].get<int>(), name.substr(1))});
    }
    std::stable_sort(phases.begin(), phases.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<std::string> order;
    for (auto& [begin, phase] : phases) order.push_back(std::move(phase));
    return order;
  }
};

TEST_P(PoliciesInProcessesTest, TrainsInThePlannedOrder) {
  std::string policy = GetParam();
  if (policy == "csv") {
    const Outcome csv = Call({"schedule", "zb-h2", "--stages", StrCat(kGroups), "--microbatches",
                              StrCat(kMicrobatches), "--csv"});
    ASSERT_EQ(csv.status, 0) << csv.err;
    policy = Write("order.csv", csv.out);
  }
  std::vector<std::string> plan_options = {"plan", Path("job.toml"), "-o", Path("p.plan")};
  std::vector<std::string> run_options = {"--trace", Path("trace.json")};
  for (const std::string& option : Pipeline(policy)) {
    plan_options.push_back(option);
    run_options.push_back(option);
  }
  const Outcome planned = Call(plan_options);
  ASSERT_EQ(planned.status, 0) << planned.err;
  const auto plan = planner::ReadPlan(Path("p.plan"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->devices.size(), static_cast<size_t>(kGroups));

  const std::vector<double> losses = Losses(run_options);
  const std::vector<double> alone = Losses({"--set", "model.layers=8"});
  ASSERT_EQ(losses.size(), 3u);
  ASSERT_EQ(losses.size(), alone.size());
  for (size_t i = 0; i < alone.size(); ++i) {
    EXPECT_NEAR(losses[i], alone[i], 1e-8 * alone[i]) << "step " << i + 1;
  }
  const nlohmann::json trace = nlohmann::json::parse(Read("trace.json"));
  for (int device = 0; device < kGroups; ++device) {
    std::vector<std::string> order;
    for (const planner::PhaseChoice& phase : plan->stages[plan->devices[device].stage].order) {
      order.push_back(ToString(phase));
    }
    EXPECT_GE(order.size(), 2u * kMicrobatches);
    EXPECT_EQ(MeasuredOrder(trace, device), order) << "device " << device;
  }
}

INSTANTIATE_TEST_SUITE_P(All, PoliciesInProcessesTest,
                         ::testing::Values("gpipe", "1f1b", "eager-1f1b", "interleaved",
                                           "looped-bfs", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v",
                                           "v-half", "v-min", "dualpipev", "chimera", "dualpipe",
                                           "auto", "csv"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace penstock::cli
