#include "planner/calibrate.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "planner/cluster/cluster_file.h"
#include "tests/support/cluster_text.h"

namespace penstock::planner {
namespace {

using ::testing::HasSubstr;

constexpr char kHeader[] =
    "gpus,global_batch,micro_batch,hidden,heads,layers,seq,tp,dp,pp,iteration_ms\n";

std::string ErrorOf(const std::string& rows) {
  return std::string(ParseMeasuredSteps(kHeader + rows, "r.csv").status().message());
}

TEST(CalibrateTest, RowsAreRead) {
  const auto steps = ParseMeasuredSteps(
      "pp,gpus,global_batch,micro_batch,hidden,heads,layers,seq,tp,dp,note,iteration_ms\r\n"
      "2,8,16,2,1024,16,20,1024,4,1,slow,326.5\r\n\r\n",
      "r.csv");
  ASSERT_TRUE(steps.ok()) << steps.status();
  ASSERT_EQ(steps->size(), 1u);
  EXPECT_EQ((*steps)[0].pp, 2);
  EXPECT_EQ((*steps)[0].tp, 4);
  EXPECT_EQ((*steps)[0].context, 1024);
  EXPECT_DOUBLE_EQ((*steps)[0].seconds, 0.3265);
  EXPECT_EQ((*steps)[0].line, 2);
}

TEST(CalibrateTest, WrongRowsAreNamed) {
  EXPECT_EQ(ErrorOf("1,2,3\n"), "r.csv:2:1: 3 values, expected 11");
  EXPECT_EQ(ErrorOf("2,8,4,1024,16,20,1024,2,1,x,143\n"),
            "r.csv:2:27: 'x': expected an integer above 0 for pp");
  EXPECT_EQ(ErrorOf("2,8,4,1024,16,20,1024,2,1,1,-5\n"),
            "r.csv:2:29: '-5': expected milliseconds above 0 for iteration_ms");
  EXPECT_THAT(ErrorOf(""), HasSubstr("no rows"));
  EXPECT_THAT(std::string(ParseMeasuredSteps("a,b\n1,2\n", "r.csv").status().message()),
              HasSubstr("r.csv:1:1: there is no column 'iteration_ms'"));
}

class FitTest : public ::testing::Test {
 protected:
  FitTest() {
    options_.ops = &ops_;
    options_.models = &models_;
    options_.devices_per_node = 4;
    options_.vocabulary = 1024;
  }
  static MeasuredStep Step(int64_t width, int64_t micro_batch, int64_t tp, int64_t dp, int64_t pp) {
    return {.num_devices = tp * dp * pp,
            .global_batch = 16,
            .micro_batch = micro_batch,
            .width = width,
            .heads = 16,
            .layers = 4,
            .context = 256,
            .tp = tp,
            .dp = dp,
            .pp = pp,
            .seconds = 1,
            .line = 2};
  }
  const graph::OpRegistry ops_ = graph::BuiltinOps();
  const graph::ModelRegistry models_ = graph::BuiltinModels();
  CalibrationOptions options_;
};

// Steps that a known cluster "measures" are predicted by what is fitted to them.
TEST_F(FitTest, FindsRatesThatExplainTheSteps) {
  const Cluster truth = *ParseCluster(
      testing::ClusterText(
          {.memory_bytes = 1'000'000'000'000,
           .memory_bytes_per_s = 8e11,
           .f32_flops_per_s = 100e12,
           .more = "efficiency = [[1e9, 0.2], [1e11, 0.7]]\n"
                   "launch_s = 2e-5\nstep_s = 1e-2\n",
           .levels = {{"node", 4, 1e11, 1e-5}, {"pod", 2, 1e10, 3e-5, "uplinks = \"device\"\n"}}}),
      "truth.toml");
  std::vector<MeasuredStep> steps = {Step(512, 1, 1, 1, 1),  Step(512, 4, 2, 1, 1),
                                     Step(1024, 2, 1, 2, 1), Step(2048, 4, 2, 2, 1),
                                     Step(1024, 2, 1, 1, 2), Step(2048, 2, 4, 2, 1),
                                     Step(512, 2, 1, 8, 1),  Step(2048, 4, 2, 1, 2)};
  const auto measured = PredictSteps(steps, truth, options_);
  ASSERT_TRUE(measured.ok()) << measured.status();
  for (size_t i = 0; i < steps.size(); ++i) steps[i].seconds = (*measured)[i];
  int trials = 0;
  options_.on_trial = [&](int num_trials, double) { trials = num_trials; };
  options_.least_devices = 30;
  const auto calibration = Calibrate(steps, options_);
  ASSERT_TRUE(calibration.ok()) << calibration.status();
  EXPECT_EQ(calibration->cluster.num_devices(), 32);  // whole nodes
  EXPECT_LT(calibration->mean_error, 0.05);
  EXPECT_LE(calibration->mean_error, calibration->max_error);
  EXPECT_GT(trials, 100);
  // Between the steps of the host, which no rate of a device explains.
  EXPECT_NEAR(calibration->cluster.spec().kinds[0].step_s, 1e-2, 2e-3);
  // What is written is read back.
  const auto again = ParseCluster(FormatCluster(calibration->cluster), "again.toml");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->spec(), calibration->cluster.spec());
}

TEST_F(FitTest, StepsThatCannotBeAreNamedByTheirLine) {
  MeasuredStep step = Step(512, 1, 2, 1, 1);
  step.num_devices = 4;
  EXPECT_EQ(Calibrate({step}, options_).status().message(),
            "line 2: tp * dp * pp is 2, expected the 4 of gpus");
  step = Step(512, 3, 1, 1, 1);
  EXPECT_EQ(Calibrate({step}, options_).status().message(),
            "line 2: dp * micro_batch is 3, which does not divide global_batch = 16");
  step = Step(512, 1, 1, 1, 8);
  EXPECT_EQ(Calibrate({step}, options_).status().message(),
            "line 2: pp is 8, expected at most the 4 of layers");
}

TEST_F(FitTest, AModelOfOneLayerNeedsNoPipeline) {
  MeasuredStep step = Step(512, 1, 1, 2, 1);
  step.layers = 1;
  options_.max_trials = 2;
  EXPECT_EQ(Calibrate({step}, options_).status(), absl::OkStatus());
}

}  // namespace
}  // namespace penstock::planner
