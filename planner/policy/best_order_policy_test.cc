#include <algorithm>
#include <optional>
#include <string_view>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/random.h"
#include "planner/policy/improve_orders.h"
#include "planner/policy/pipeline.h"
#include "planner/policy/policy.h"

namespace penstock::planner {
namespace {

using ::testing::Each;
using ::testing::Le;

// Stages whose times differ by up to half.
Pipeline Unequal(int num_groups, int num_microbatches, uint64_t seed) {
  Pipeline pipeline = *MakePipeline(
      {.num_groups = num_groups, .num_microbatches = num_microbatches, .latency_s = 0.05});
  for (size_t v = 0; v < pipeline.stages.size(); ++v) {
    for (size_t k = 0; k < 3; ++k) {
      const auto word = static_cast<double>(RandomWord({seed, 0, 0}, 3 * v + k) % 1000);
      pipeline.stages[v].seconds[k] = 0.75 + word / 2000;
    }
  }
  return pipeline;
}

std::optional<Timeline> BestOrderTimeline(std::string_view policy, const Pipeline& pipeline) {
  const PolicyRegistry policies = BuiltinPolicies();
  const absl::StatusOr<PipelineOrders> orders = PlanPipeline(*policies.Find(policy), pipeline);
  if (!orders.ok()) return std::nullopt;
  return *RunPipeline(pipeline, *orders);
}

TEST(BestOrderPolicyTest, IsNeverWorseThanANamedPolicyWithinTheLimit) {
  for (const uint64_t seed : {1, 2, 3}) {
    Pipeline pipeline = Unequal(4, 8, seed);
    pipeline.effort = 0.1;
    pipeline.overlaps_steps = seed != 2;
    for (const double limit : {0.0, 3.0, 4.0, 6.0}) {
      pipeline.memory_limit = limit;
      const std::optional<Timeline> best = BestOrderTimeline("auto", pipeline);
      ASSERT_TRUE(best.has_value());
      if (limit > 0) {
        EXPECT_THAT(best->peak_activations, Each(Le(limit)));
      }
      for (const std::string_view policy :
           {"gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2", "zb-1p", "zb-2p"}) {
        const std::optional<Timeline> named = BestOrderTimeline(policy, pipeline);
        if (!named.has_value()) continue;
        const double peak =
            *std::max_element(named->peak_activations.begin(), named->peak_activations.end());
        if (limit > 0 && peak > limit) continue;
        EXPECT_LE(CostOf(pipeline, *best), CostOf(pipeline, *named))
            << policy << ", limit " << limit;
      }
    }
  }
}

// Worked out by hand for unit times: H1's bubble of 3 with as much memory, 1 less with one
// activation more, and so on to none.
TEST(BestOrderPolicyTest, EachActivationMoreShortensTheBubbleByOne) {
  Pipeline pipeline = *MakePipeline({.num_groups = 4, .num_microbatches = 8});
  pipeline.effort = 0.1;
  for (const double limit : {4.0, 5.0, 6.0, 7.0}) {
    pipeline.memory_limit = limit;
    EXPECT_DOUBLE_EQ(BestOrderTimeline("auto", pipeline)->span_s, 24 + (7 - limit)) << limit;
  }
}

TEST(BestOrderPolicyTest, ImprovesUponThePlannersForEqualStages) {
  Pipeline pipeline = Unequal(4, 8, 7);
  pipeline.memory_limit = 6;
  const std::optional<Timeline> best = BestOrderTimeline("auto", pipeline);
  const std::optional<Timeline> planned = BestOrderTimeline("zb-2p", pipeline);
  ASSERT_TRUE(best.has_value() && planned.has_value());
  EXPECT_LT(best->span_s, 0.99 * planned->span_s);
}

// One micro-batch at a time keeps the least, whatever the chunks.
TEST(BestOrderPolicyTest, FindsAnOrderIfThereIsOne) {
  for (const Placement placement : {Placement::kLoop, Placement::kVee}) {
    for (const int chunks : {2, 3}) {
      Pipeline pipeline = *MakePipeline(
          {.num_groups = 4, .num_microbatches = 6, .num_chunks = chunks, .placement = placement});
      pipeline.effort = 0.01;
      pipeline.memory_limit = 1;
      const std::optional<Timeline> best = BestOrderTimeline("auto", pipeline);
      ASSERT_TRUE(best.has_value());
      EXPECT_THAT(best->peak_activations, Each(Le(1 + 1e-9)));
    }
  }
}

TEST(BestOrderPolicyTest, IsDeterministic) {
  Pipeline pipeline = Unequal(3, 6, 5);
  pipeline.effort = 0.05;
  const PolicyRegistry policies = BuiltinPolicies();
  EXPECT_EQ(*PlanPipeline(*policies.Find("auto"), pipeline),
            *PlanPipeline(*policies.Find("auto"), pipeline));
}

}  // namespace
}  // namespace penstock::planner
