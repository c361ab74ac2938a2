#include "bench/actors_bench.h"

#include "gtest/gtest.h"

#include "bench/count_allocations.h"

namespace penstock::bench {
namespace {

double AllocationsPerStep(uint32_t num_actors) {
  ActorsBenchOptions options;
  options.num_actors = num_actors;
  options.seconds = 0;
  options.count_allocations = NumAllocations;
  const absl::StatusOr<ActorsBenchResult> result = MeasureActs(options);
  EXPECT_TRUE(result.ok()) << result.status();
  if (!result.ok()) return -1;
  EXPECT_GT(result->ns_per_act, 0);
  return result->allocations_per_step;
}

// What a step takes from the heap (feeds, its report) does not depend on how many actors act in it.
TEST(ActorsBench, AnActAllocatesNothing) {
  if (!CountsAllocations()) GTEST_SKIP() << "the sanitizer owns operator new";
  const double few = AllocationsPerStep(100);
  const double many = AllocationsPerStep(20000);
  EXPECT_GE(few, 0);
  EXPECT_LT(many, few + 100);
  EXPECT_LT(many, 1000);
}

TEST(ActorsBench, CountsAllocations) {
  if (!CountsAllocations()) GTEST_SKIP() << "the sanitizer owns operator new";
  const uint64_t before = NumAllocations();
  for (int i = 0; i < 5; ++i) delete ::new int(i);
  ::operator delete (::operator new (64, std::align_val_t{64}), std::align_val_t{64});
  EXPECT_GE(NumAllocations() - before, 1u);
}

}  // namespace
}  // namespace penstock::bench
