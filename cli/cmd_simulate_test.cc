// `penstock simulate` as a script meets it.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

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
  EXPECT_GE(json["exposed_comm_s"].get<double>(), 0);
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

}  // namespace
}  // namespace penstock::cli
