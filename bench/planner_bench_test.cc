#include "bench/planner_bench.h"

#include "gtest/gtest.h"

namespace penstock::bench {
namespace {

TEST(PlannerBenchTest, MeasuresPropagation) {
  const absl::StatusOr<double> seconds = MeasurePropagation(100);
  ASSERT_TRUE(seconds.ok()) << seconds.status();
  EXPECT_GT(*seconds, 0);
}

TEST(PlannerBenchTest, PlansOfMoreDevicesAreNoLarger) {
  PlanningCase planning = {"gpt3-125m", {2, 2, 2}, 64, 4};
  const absl::StatusOr<PlanningFigures> few = MeasurePlanning(planning);
  planning.strategy.dp = 16;
  const absl::StatusOr<PlanningFigures> many = MeasurePlanning(planning);
  ASSERT_TRUE(few.ok()) << few.status();
  ASSERT_TRUE(many.ok()) << many.status();
  EXPECT_GT(many->actors, 7 * few->actors);
  EXPECT_LT(static_cast<double>(many->file_bytes), 1.1 * static_cast<double>(few->file_bytes));
}

TEST(PlannerBenchTest, PlansImageClassifiers) {
  for (const planner::Strategy& strategy : {planner::Strategy{4, 1, 1}, {2, 2, 2}}) {
    const absl::StatusOr<PlanningFigures> figures = MeasurePlanning({"resnet18", strategy, 64, 2});
    ASSERT_TRUE(figures.ok()) << figures.status();
    EXPECT_GT(figures->actors, 8u * 100);
    EXPECT_LT(figures->arena_over_live, 2);
  }
}

TEST(PlannerBenchTest, RefusesAnUnknownPreset) {
  EXPECT_EQ(MeasurePlanning({.preset = "gpt9"}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace penstock::bench
