#include "bench/actors_bench.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "gtest/gtest.h"

#include "bench/count_allocations.h"

namespace penstock::bench {
namespace {

class ActorsBench : public ::testing::TestWithParam<ActsShape> {
 protected:
  static ActsBenchResult Measure(uint32_t num_actors, uint32_t num_transfers = 4) {
    ActsBenchOptions options;
    options.shape = GetParam();
    options.num_actors = num_actors;
    options.num_transfers = num_transfers;
    options.seconds = 0;
    options.count_allocations = NumAllocations;
    const absl::StatusOr<ActsBenchResult> result = MeasureActs(options);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : ActsBenchResult();
  }

  // The fewest of several steps: threads that happen to wake each other once more send a message.
  static double MeasureAllocations(uint32_t num_actors, uint32_t num_transfers = 4) {
    double fewest = Measure(num_actors, num_transfers).allocations_per_step;
    for (int i = 0; i < 4; ++i) {
      fewest = std::min(fewest, Measure(num_actors, num_transfers).allocations_per_step);
    }
    return fewest;
  }
};

TEST_P(ActorsBench, Measures) {
  const ActsBenchResult result = Measure(1000);
  EXPECT_GE(result.acts_per_step, 1000);
  EXPECT_GT(result.ns_per_act, 0);
  EXPECT_GT(result.step_us * 1e3, result.ns_per_act);
  EXPECT_EQ(result.communication_us > 0, GetParam() == ActsShape::kCommunication);
}

// What a step takes from the heap (feeds, its report) does not depend on how many actors act in it,
// nor on how many of them communicate.
TEST_P(ActorsBench, AnActAllocatesNothing) {
  if (!CountsAllocations()) GTEST_SKIP() << "the sanitizer owns operator new";
  const double few = MeasureAllocations(100);
  EXPECT_GT(few, 0);
  EXPECT_LT(few, 100);
  EXPECT_NEAR(MeasureAllocations(20000), few, 2);
  if (GetParam() == ActsShape::kCommunication) {
    EXPECT_NEAR(MeasureAllocations(100, 8), few, 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ActorsBench, ::testing::ValuesIn(kActsShapes),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST(WakeLatency, IsMeasured) {
  const absl::StatusOr<WakeLatency> latency = MeasureWakeLatency(10);
  ASSERT_TRUE(latency.ok()) << latency.status();
  for (const Latency& measured : {latency->polling, latency->sleeping}) {
    EXPECT_GT(measured.fastest_us, 0);
    EXPECT_GE(measured.median_us, measured.fastest_us);
  }
}

TEST(CountAllocations, CountsNew) {
  if (!CountsAllocations()) GTEST_SKIP() << "the sanitizer owns operator new";
  const uint64_t before = NumAllocations();
  for (int i = 0; i < 5; ++i) delete ::new int(i);
  ::operator delete (::operator new (64, std::align_val_t{64}), std::align_val_t{64});
  EXPECT_GE(NumAllocations() - before, 1u);
}

}  // namespace
}  // namespace penstock::bench
