#include "planner/policy/decide_orders.h"

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "tests/support/test_policies.h"

namespace penstock::planner {
namespace {

using ::testing::HasSubstr;

Pipeline UniformOf(int num_groups, double latency_s = 0, bool splits_backward = true) {
  return *MakePipeline({.num_groups = num_groups,
                        .num_microbatches = 6,
                        .latency_s = latency_s,
                        .splits_backward = splits_backward});
}

absl::StatusOr<PipelineOrders> Decide(const Policy& policy, const Pipeline& pipeline) {
  const absl::StatusOr<PipelineOrders> orders = PlanPipeline(policy, pipeline);
  EXPECT_TRUE(orders.ok()) << orders.status();
  return DecideOrders(policy, pipeline, *orders);
}

// The last kind of phase that is ready: W, else B, else F.
std::optional<PhaseChoice> LastReady(const StageContext&, const StageView& view) {
  for (int kind = kNumPolicyKinds - 1; kind >= 0; --kind) {
    if (view.chunks[0].ready[kind] == 0) continue;
    return PhaseChoice{static_cast<PhaseKind>(kind), view.chunks[0].issued[kind]};
  }
  return std::nullopt;
}

std::string TextOf(const std::vector<PhaseChoice>& order) {
  std::string text;
  for (const PhaseChoice& phase : order) StrAppend(&text, text.empty() ? "" : " ", ToString(phase));
  return text;
}

TEST(DecideOrdersTest, AGroupIsAskedAsItIsIdle) {
  const testing::DynamicPolicy policy("last", LastReady);
  const auto alone = Decide(policy, UniformOf(1));
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(TextOf((*alone)[0]), "F0 B0 W0 F1 B1 W1 F2 B2 W2 F3 B3 W3 F4 B4 W4 F5 B5 W5");
  // The first group goes on with F until a gradient comes: after F of both groups, B of the other
  // one and a latency each way.
  const auto two = Decide(policy, UniformOf(2));
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_THAT(TextOf((*two)[0]), ::testing::StartsWith("F0 F1 F2 B0 W0 "));
  const auto later = Decide(policy, UniformOf(2, 1.5));
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_THAT(TextOf((*later)[0]), ::testing::StartsWith("F0 F1 F2 F3 F4 F5 B0 W0 "));
  for (const auto& [orders, pipeline] :
       {std::pair(*two, UniformOf(2)), std::pair(*later, UniformOf(2, 1.5))}) {
    EXPECT_TRUE(RunPipeline(pipeline, orders).ok());
  }
}

TEST(DecideOrdersTest, OrdersThatAreGivenAreKept) {
  const testing::DynamicPolicy policy("last", LastReady);
  const Pipeline pipeline = UniformOf(2);
  PipelineOrders given(2);
  for (int m = 0; m < 6; ++m) given[0].push_back({PhaseKind::kForward, m});
  for (int m = 0; m < 6; ++m) given[0].push_back({PhaseKind::kBackward, m});
  for (int m = 0; m < 6; ++m) given[0].push_back({PhaseKind::kWeight, m});
  const auto orders = DecideOrders(policy, pipeline, given);
  ASSERT_TRUE(orders.ok()) << orders.status();
  EXPECT_EQ((*orders)[0], given[0]);
  EXPECT_EQ(TextOf((*orders)[1]), "F0 B0 W0 F1 B1 W1 F2 B2 W2 F3 B3 W3 F4 B4 W4 F5 B5 W5");
}

TEST(DecideOrdersTest, WhatIsWrongWithAPolicyIsSaid) {
  const auto error = [](const Policy& policy) {
    return std::string(Decide(policy, UniformOf(2)).status().message());
  };
  EXPECT_THAT(error(*testing::SilentPolicy()),
              HasSubstr("policy 'silent' chooses nothing on stage 0 though a phase could run"));
  EXPECT_THAT(error(testing::DynamicPolicy(
                  "throwing",
                  [](const StageContext&, const StageView&) -> std::optional<PhaseChoice> {
                    throw std::runtime_error("no idea");
                  })),
              HasSubstr("policy 'throwing' threw at stage 0: no idea"));
  EXPECT_THAT(error(testing::DynamicPolicy(
                  "skipping",
                  [](const StageContext&, const StageView&) -> std::optional<PhaseChoice> {
                    return PhaseChoice{PhaseKind::kForward, 1};
                  })),
              HasSubstr("policy 'skipping' chose F1 on stage 0, which is not the next"));
  // Gradients first: none comes before an F.
  EXPECT_THAT(error(testing::DynamicPolicy(
                  "backwards",
                  [](const StageContext&, const StageView& view) -> std::optional<PhaseChoice> {
                    return PhaseChoice{PhaseKind::kBackward, view.chunks[0].issued[1]};
                  })),
              HasSubstr("policy 'backwards': stage 0 waits for ever for what B0 reads"));
}

}  // namespace
}  // namespace penstock::planner
