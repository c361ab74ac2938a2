#include "bench/simulator_bench.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::bench {
namespace {

TEST(SimulatorBenchTest, AnAggregatedSimulationFiresAsMuchForMoreDevices) {
  SimulatorCase simulated;
  simulated.aggregates = true;
  const absl::StatusOr<SimulatorFigures> few = MeasureSimulator(simulated);
  ASSERT_TRUE(few.ok()) << few.status();
  simulated.strategy.dp = 256;
  const absl::StatusOr<SimulatorFigures> many = MeasureSimulator(simulated);
  ASSERT_TRUE(many.ok()) << many.status();
  EXPECT_EQ(many->devices, 1024u);
  EXPECT_LE(many->fired_devices, 8u);
  EXPECT_LT(many->firings, 2 * few->firings);
  EXPECT_GT(many->step_s, 0);
  EXPECT_THAT(SimulatorTable({simulated}, {*many}), ::testing::HasSubstr("1024"));
}

TEST(SimulatorBenchTest, RefusesAnUnknownPreset) {
  EXPECT_EQ(MeasureSimulator({.preset = "gpt9"}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace penstock::bench
