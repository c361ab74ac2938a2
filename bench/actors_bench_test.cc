#include "bench/actors_bench.h"

#include "gtest/gtest.h"

#include "bench/count_allocations.h"

namespace penstock::bench {
namespace {

class ActorsBench : public ::testing::TestWithParam<ActsShape> {
 protected:
  static ActsBenchResult Measure(uint32_t num_actors) {
    ActsBenchOptions options;
    options.shape = GetParam();
    options.num_actors = num_actors;
    options.seconds = 0;
    options.count_allocations = NumAllocations;
    const absl::StatusOr<ActsBenchResult> result = MeasureActs(options);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : ActsBenchResult();
  }
};

TEST_P(ActorsBench, Measures) {
  const ActsBenchResult result = Measure(1000);
  EXPECT_GE(result.acts_per_step, 1000);
  EXPECT_GT(result.ns_per_act, 0);
  EXPECT_GT(result.step_us * 1e3, result.ns_per_act);
  EXPECT_EQ(result.communication_us > 0, GetParam() == ActsShape::kCommunication);
}

// What a step takes from the heap (feeds, its report) does not depend on how many actors act in it.
TEST_P(ActorsBench, AnActAllocatesNothing) {
  if (!CountsAllocations()) GTEST_SKIP() << "the sanitizer owns operator new";
  const double few = Measure(100).allocations_per_step;
  const double many = Measure(20000).allocations_per_step;
  EXPECT_GE(few, 0);
  EXPECT_LT(many, few + 100);
  EXPECT_LT(many, 1000);
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
