// `penstock simulate` as a script meets it.

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/strings.h"
#include "planner/plan/plan_io.h"
#include "tests/support/command_line_fixture.h"

namespace penstock::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class CmdSimulateTest : public testing::CommandLineFixture {
 protected:
  nlohmann::json Json(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "simulate");
    arguments.push_back("--json");
    const Outcome outcome = Call(arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }
};

TEST_F(CmdSimulateTest, PrintsFiguresOfAJobAndOfItsPlan) {
  const std::vector<std::string> options = {"--strategy", "pp=2", "--set",
                                            "parallel.microbatches=4"};
  std::vector<std::string> job = {Path("job.toml"), "--cluster", "hgx-h100:1"};
  job.insert(job.end(), options.begin(), options.end());
  nlohmann::json json = Json(job);
  EXPECT_GT(json["step_time_s"].get<double>(), 0);
  EXPECT_GT(json["mfu"].get<double>(), 0);
  EXPECT_EQ(json["hfu"], json["mfu"]);
  EXPECT_GT(json["exposed_comm_s"].get<double>(), 0);
  EXPECT_LT(json["exposed_comm_s"].get<double>(), json["step_time_s"].get<double>());
  EXPECT_GT(json["bubble"].get<double>(), 0);
  EXPECT_LT(json["bubble"].get<double>(), 1);
  EXPECT_EQ(json["peak_memory_bytes"].size(), 2u);
  EXPECT_GT(json["events"].get<uint64_t>(), 1000u);

  std::vector<std::string> plan = {"plan", Path("job.toml"), "--cluster", "hgx-h100:1",
                                   "-o",   Path("job.plan")};
  plan.insert(plan.end(), options.begin(), options.end());
  ASSERT_EQ(Call(plan).status, 0);
  nlohmann::json again = Json({Path("job.plan"), "--cluster", "hgx-h100:1"});
  for (nlohmann::json* each : {&json, &again}) each->erase("wall_s");
  EXPECT_EQ(json, again);
}

// Such a step is not estimated: its prediction is a simulation.
TEST_F(CmdSimulateTest, PlansOfMicrobatchesFromBothEndsAreSimulated) {
  const auto arguments = [&](const std::string& policy, std::vector<std::string> more) {
    std::vector<std::string> job = {Path("job.toml"), "--cluster", "hgx-h100:1", "--policy",
                                    policy};
    job.insert(job.end(), more.begin(), more.end());
    return job;
  };
  const auto plan = [&](const std::string& policy, std::vector<std::string> more) {
    std::vector<std::string> call = arguments(policy, std::move(more));
    call.insert(call.begin(), "plan");
    return Call(call);
  };
  const std::vector<std::string> four = {"--strategy", "pp=2", "--set", "parallel.microbatches=4"};
  std::vector<std::string> explained = four;
  explained.insert(explained.end(), {"--json", "--explain"});
  const Outcome outcome = plan("dualpipe", explained);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const nlohmann::json json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["microbatches"], 4);  // two from each end
  EXPECT_EQ(json["devices"], 2);
  EXPECT_EQ(json["strategy"], "dp=1,tp=1,pp=2");
  EXPECT_DOUBLE_EQ(json["predicted_step_time_s"].get<double>(),
                   Json(arguments("dualpipe", four))["step_time_s"].get<double>());
  EXPECT_THAT(json["explanation"].get<std::string>(),
              HasSubstr("stages that lie on two groups of devices: their parts of a step are not"));

  EXPECT_THAT(plan("chimera", {"--strategy", "auto"}).err,
              HasSubstr("the strategy \"auto\" does not consider"));
  EXPECT_THAT(plan("chimera", {"--strategy", "pp=2", "--set", "parallel.microbatches=2"}).err,
              HasSubstr("--set parallel.microbatches=2: micro-batches that enter at both ends of a "
                        "pipeline must be an even number, at least 4; there are 2"));
  EXPECT_THAT(plan("chimera", {"--strategy", "pp=2,vpp=2", "--set", "parallel.microbatches=4"}).err,
              HasSubstr("runs each pipeline stage on two groups of devices, as a chunk of each"));
  EXPECT_THAT(plan("chimera", {"--strategy", "pp=3", "--set", "parallel.microbatches=4"}).err,
              HasSubstr("needs an even number of pipeline stages; there are 3"));
}

TEST_F(CmdSimulateTest, ASlowerClusterTakesLonger) {
  const auto step_s = [&](const char* cluster) {
    return Json({Path("job.toml"), "--strategy", "dp=16", "--set", "train.batch=16", "--cluster",
                 cluster})["step_time_s"]
        .get<double>();
  };
  EXPECT_GT(step_s("v100-ib100:2"), step_s("hgx-h100:2"));
}

TEST_F(CmdSimulateTest, DrawsAndTraces) {
  const Outcome outcome =
      Call({"simulate", Path("job.toml"), "--strategy", "pp=2", "--set", "parallel.microbatches=2",
            "--svg", Path("s.svg"), "--trace", Path("s.json")});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("exposed communication"));
  EXPECT_THAT(Read("s.svg"), StartsWith("<svg "));
  EXPECT_THAT(Read("s.svg"), HasSubstr("device 1"));
  const nlohmann::json trace = nlohmann::json::parse(Read("s.json"));
  EXPECT_FALSE(trace.empty());
}

TEST_F(CmdSimulateTest, WritesChakraTracesAndSimulatesThem) {
  const nlohmann::json plan = Json(
      {Path("job.toml"), "--strategy", "dp=2,pp=2", "--set", "parallel.microbatches=4", "--cluster",
       "hgx-h100:1", "--aggregate", "--chakra", Path("traces"), "--chakra-steps", "4"});
  EXPECT_EQ(plan["chakra"]["traces"], 4);
  EXPECT_EQ(plan["peak_memory_bytes"].size(), 4u);
  EXPECT_LE(plan["simulated_devices"].get<int>(), 4);
  const nlohmann::json traces = Json({Path("traces"), "--cluster", "hgx-h100:1"});
  EXPECT_EQ(traces["ranks"], 4);
  EXPECT_EQ(traces["steps"], 4);
  EXPECT_NEAR(traces["step_time_s"].get<double>() / plan["step_time_s"].get<double>(), 1, 0.01);

  EXPECT_THAT(Call({"simulate", Path("traces"), "--strategy", "dp=2"}).err,
              HasSubstr("is simulated as it is"));
  EXPECT_THAT(Call({"simulate", Path("traces"), "--aggregate"}).err, HasSubstr("--aggregate"));
  EXPECT_THAT(Call({"simulate", Path("traces"), "--cluster", "hgx-h100:1"}).out,
              HasSubstr("traces: 4 ranks, 4 traces: step "));
  for (const char* option : {"--chakra-steps", "--chakra-ranks"}) {
    EXPECT_THAT(Call({"simulate", Path("job.toml"), option, "1"}).err,
                HasSubstr(StrCat(option, " requires --chakra")));
  }
  EXPECT_THAT(
      Call({"simulate", Path("job.toml"), "--chakra", Path("none"), "--chakra-ranks", "5"}).err,
      HasSubstr("--chakra-ranks 5: there is no rank 5: the plan has 1 rank, numbered"));
  EXPECT_FALSE(std::filesystem::exists(Path("none")));
  EXPECT_THAT(Call({"simulate", Path("job.toml"), "--svg", Path("s"), "--trace", Path("s")}).err,
              HasSubstr("--trace and --svg both write"));
  EXPECT_THAT(Call({"simulate", Path("job.toml"), "--devices", "1000000"}).err,
              HasSubstr("--devices: Value 1000000 not in range"));
  EXPECT_THAT(Call({"simulate", ""}).err, HasSubstr("'': expected the name of a file"));
  EXPECT_THAT(
      Call({"simulate", Path("job.toml"), "--chakra", Path("traces"), "--chakra-ranks", "0,x"}).err,
      HasSubstr("'x' is no rank; expected all, programs, or ranks such as 0,8"));
  EXPECT_THAT(Call({"simulate", Path("job.toml"), "--aggregate", "--svg", Path("s.svg")}).err,
              HasSubstr("--aggregate goes without --trace and --svg"));
}

TEST_F(CmdSimulateTest, APlanIsSimulatedAsItIs) {
  ASSERT_EQ(Call({"plan", Path("job.toml"), "--strategy", "dp=2", "-o", Path("job.plan")}).status,
            0);
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--strategy", "dp=1"}, {"--policy", "gpipe"}, {"--set", "train.steps=1"}}) {
    std::vector<std::string> arguments = {"simulate", Path("job.plan")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    EXPECT_EQ(Call(arguments).status, 2) << more[0];
  }
  EXPECT_THAT(Call({"simulate", Path("job.plan"), "--cluster", "tpu-v4:1x1x1"}).err,
              HasSubstr("the cluster has 1 device, and the job needs 2"));
}

// What was read from a file is trusted no more than by `penstock run`.
TEST_F(CmdSimulateTest, APlanIsVerified) {
  ASSERT_EQ(Call({"plan", Path("job.toml"), "--strategy", "dp=2", "-o", Path("job.plan")}).status,
            0);
  const absl::StatusOr<planner::Plan> plan = planner::ReadPlan(Path("job.plan"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto simulate = [&](const planner::Plan& changed, std::string* error) {
    ASSERT_TRUE(planner::WritePlan(changed, Path("changed.plan")).ok());
    for (const bool writes_traces : {false, true}) {
      std::vector<std::string> arguments = {"simulate", Path("changed.plan")};
      if (writes_traces) arguments.insert(arguments.end(), {"--chakra", Path("traces")});
      const Outcome outcome = Call(arguments);
      EXPECT_EQ(outcome.status, 2);
      *error = outcome.err;
    }
  };
  std::string error;
  planner::Plan changed = *plan;
  changed.devices[0].channels[0].produce = 0;
  simulate(changed, &error);
  EXPECT_THAT(error, HasSubstr("produce 0,"));

  changed = *plan;
  changed.devices[0].channels[0].initial = changed.devices[0].channels[0].capacity + 1;
  simulate(changed, &error);
  EXPECT_THAT(error, HasSubstr("do not go with a capacity of"));

  // As many bytes, so that nothing but the operator can tell.
  changed = *plan;
  for (planner::KernelPlan& kernel : changed.kernels) {
    if (kernel.op != "matmul" && kernel.op != "einsum") continue;
    Shape& shape = kernel.inputs[0].shape;
    std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  }
  ASSERT_NE(changed, *plan);
  simulate(changed, &error);
  EXPECT_THAT(error, HasSubstr("does not fit its tiles"));
}

TEST_F(CmdSimulateTest, JsonHoldsWhatIsNotUtf8) {
  ASSERT_EQ(Call({"plan", Path("job.toml"), "--strategy", "dp=2", "-o", Path("job.plan")}).status,
            0);
  absl::StatusOr<planner::Plan> plan = planner::ReadPlan(Path("job.plan"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  plan->strategy = "dp\xff";
  ASSERT_TRUE(planner::WritePlan(*plan, Path("job.plan")).ok());
  EXPECT_EQ(Json({Path("job.plan")})["strategy"], "dp\xef\xbf\xbd");
  const Outcome shown = Call({"show", Path("job.plan"), "--json"});
  EXPECT_EQ(nlohmann::json::parse(shown.out)["strategy"], "dp\xef\xbf\xbd");
}

}  // namespace
}  // namespace penstock::cli
