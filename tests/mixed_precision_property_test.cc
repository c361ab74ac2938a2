// Random programs in f32 have plans in mixed precision, however they are split over devices, in
// time and over stages. What their kernels compute is held against a reference elsewhere.

#include <cstdint>

#include "gtest/gtest.h"

#include "base/strings.h"
#include "kernels/kernel.h"
#include "penstock/penstock.h"
#include "planner/compile.h"
#include "tests/support/random_graph.h"

namespace penstock::testing {
namespace {

bool HasType(const graph::Graph& graph, DType dtype) {
  for (graph::ValueId value = 0; value < graph.num_values(); ++value) {
    if (graph.value(value).type.dtype == dtype) return true;
  }
  return false;
}

TEST(MixedPrecisionPropertyTest, RandomProgramsHavePlans) {
  constexpr uint64_t kSeeds = 9000;
  const Registries registries = BuiltinRegistries();
  const auto traits = TraitsOf(registries.kernels, 1);
  int num_compiled = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const absl::StatusOr<RandomCase> test = MakeRandomCase(registries.ops, seed);
    ASSERT_TRUE(test.ok()) << "seed " << seed << ": " << test.status();
    if (!HasType(test->graph, DType::kF32) || HasType(test->graph, DType::kF64)) continue;
    ++num_compiled;
    planner::CompileOptions options;
    options.policy = test->policy;
    options.policies = &registries.policies;
    options.kernels = traits;
    options.split_weight_gradients = test->split_weight_gradients;
    options.chunks_per_group = test->chunks_per_group;
    options.precision = DType::kBF16;
    const auto plan = planner::Compile(registries.ops, test->graph, options);
    EXPECT_TRUE(plan.ok()) << "seed " << seed << ": " << plan.status();
  }
  EXPECT_GE(num_compiled, 1000);
}

}  // namespace
}  // namespace penstock::testing
