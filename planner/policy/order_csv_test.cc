#include "planner/policy/order_csv.h"

#include <string>
#include <string_view>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "planner/policy/policy.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kF = PhaseKind::kForward;
constexpr auto kB = PhaseKind::kBackward;
constexpr auto kW = PhaseKind::kWeight;

std::string ErrorOf(std::string_view text) {
  return std::string(ParseOrdersCsv(text, "o.csv").status().message());
}

TEST(OrderCsvTest, ReadsActionsAndIdleSteps) {
  const absl::StatusOr<CsvOrders> csv =
      ParseOrdersCsv("0F0,0F1,,,0I0,0W0,0I1, 0W1\n,1F0,1I0,1F1,1I1,1W0,1W1\n\n", "o.csv");
  ASSERT_TRUE(csv.ok()) << csv.status();
  EXPECT_EQ(csv->placement, (StagePlacement{2, 1, Placement::kLoop}));
  EXPECT_EQ(csv->num_microbatches, 2);
  EXPECT_TRUE(csv->splits_backward);
  EXPECT_THAT(csv->orders[1],
              ElementsAre(PhaseChoice{kF, 0}, PhaseChoice{kB, 0}, PhaseChoice{kF, 1},
                          PhaseChoice{kB, 1}, PhaseChoice{kW, 0}, PhaseChoice{kW, 1}));
}

TEST(OrderCsvTest, ReadsPairsAndLeavesOutCommunication) {
  const absl::StatusOr<CsvOrders> csv = ParseOrdersCsv(
      "0UNSHARD,0F0,0SEND_F0,0RECV_B0,(0F1;0B0)OVERLAP_F_B,0B1,0REDUCE_GRAD\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1RESHARD\n",
      "o.csv");
  ASSERT_TRUE(csv.ok()) << csv.status();
  EXPECT_FALSE(csv->splits_backward);
  EXPECT_THAT(csv->orders[0], ElementsAre(PhaseChoice{kF, 0}, PhaseChoice{kF, 1},
                                          PhaseChoice{kB, 0}, PhaseChoice{kB, 1}));
}

// As ScheduleDualPipeV of PyTorch 2.15 writes it: some backwards are whole, others are split.
TEST(OrderCsvTest, AWholeBackwardBesideSplitOnesIsIAndW) {
  const absl::StatusOr<CsvOrders> csv = ParseOrdersCsv(
      "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,"
      "(3F3;0B1)OVERLAP_F_B,3B3,0I2,0W2,0I3,0W3\n"
      "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,(2F3;1B1)OVERLAP_F_B,2B2,"
      "1B2,2I3,1I3,2W3,1W3\n",
      "o.csv");
  ASSERT_TRUE(csv.ok()) << csv.status();
  EXPECT_EQ(csv->placement, (StagePlacement{2, 2, Placement::kVee}));
  EXPECT_TRUE(csv->splits_backward);
  ASSERT_EQ(csv->orders.size(), 2u);
  for (const std::vector<PhaseChoice>& order : csv->orders) EXPECT_EQ(order.size(), 2 * 4 * 3u);
  // 3F1, 0F3, 3B1 as I and W, 3F2.
  EXPECT_THAT(std::vector<PhaseChoice>(csv->orders[0].begin() + 6, csv->orders[0].begin() + 11),
              ElementsAre(PhaseChoice{kF, 1, 1}, PhaseChoice{kF, 3, 0}, PhaseChoice{kB, 1, 1},
                          PhaseChoice{kW, 1, 1}, PhaseChoice{kF, 2, 1}));
}

TEST(OrderCsvTest, FindsThePlacement) {
  EXPECT_EQ(ParseOrdersCsv("0F0,3F0\n1F0,2F0\n", "o.csv")->placement.placement, Placement::kVee);
  EXPECT_EQ(ParseOrdersCsv("0F0,2F0\n1F0,3F0\n", "o.csv")->placement.placement, Placement::kLoop);
  const absl::StatusOr<CsvOrders> both = ParseOrdersCsv("0F0,1F1\n1F0,0F1\n", "o.csv");
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->placement.placement, Placement::kBidirectional);
  EXPECT_EQ(both->num_microbatches, 1);
}

TEST(OrderCsvTest, ErrorsNameThePlace) {
  EXPECT_EQ(ErrorOf("0F0,0X1\n"),
            "o.csv:1:5: '0X1': expected an action such as 0F3: a stage, F, B, I or W, and a "
            "micro-batch");
  EXPECT_THAT(ErrorOf("0F0\n1F0,1F\n"), HasSubstr("o.csv:2:5: '1F'"));
  EXPECT_THAT(ErrorOf("0F0,(0F1;0B0)\n"), HasSubstr("o.csv:1:5: '(0F1;0B0)': expected"));
  EXPECT_THAT(ErrorOf("\n"), HasSubstr("no rows"));
  EXPECT_THAT(ErrorOf("0F1,0F0\n"),
              HasSubstr("o.csv:1:1: the order of group 0 has F of micro-batch 1, expected"));
  EXPECT_THAT(ErrorOf("0F0\n2F0\n1F0\n"), HasSubstr("in no known way"));
  EXPECT_THAT(ErrorOf("0F0,0F99999999999\n"), HasSubstr("o.csv:1:5: '0F99999999999'"));
}

// Every policy's orders survive.
TEST(OrderCsvTest, WhatIsWrittenIsRead) {
  const PolicyRegistry policies = BuiltinPolicies();
  for (const std::string_view name : policies.Names()) {
    const Policy& policy = *policies.Find(name);
    const PolicyNeeds needs = policy.needs();
    Pipeline pipeline = *MakePipeline({.num_groups = 4,
                                       .num_microbatches = 8,
                                       .num_chunks = needs.min_chunks,
                                       .placement = needs.placement.value_or(Placement::kLoop),
                                       .splits_backward = needs.splits_backward});
    pipeline.effort = 0;
    const PipelineOrders orders = *PlanPipeline(policy, pipeline);
    for (const bool pairs : {needs.pairs_phases, !needs.pairs_phases}) {
      const std::string text = OrdersToCsv(pipeline, orders, pairs);
      const absl::StatusOr<CsvOrders> csv = ParseOrdersCsv(text, "o.csv");
      ASSERT_TRUE(csv.ok()) << name << ": " << csv.status() << "\n" << text;
      EXPECT_EQ(csv->orders, orders) << name;
      EXPECT_EQ(csv->placement, pipeline.placement) << name;
      EXPECT_EQ(csv->num_microbatches, pipeline.num_microbatches) << name;
      if (!pairs) {
        EXPECT_FALSE(csv->has_pairs) << name;
      }
    }
  }
}

// The brackets of the example in dual_pipe_order.h.
TEST(OrderCsvTest, PoliciesThatPairPhasesAreWrittenWithTheirPairs) {
  const PolicyRegistry policies = BuiltinPolicies();
  for (const std::string_view name : {"dualpipev", "dualpipe"}) {
    const Policy& policy = *policies.Find(name);
    const bool is_vee = name == "dualpipev";
    const Pipeline pipeline = *MakePipeline({.num_groups = is_vee ? 2 : 4,
                                             .num_microbatches = is_vee ? 4 : 8,
                                             .num_chunks = 2,
                                             .placement = *policy.needs().placement});
    const PipelineOrders orders = *PlanPipeline(policy, pipeline);
    const std::string text = OrdersToCsv(pipeline, orders, policy.needs().pairs_phases);
    const absl::StatusOr<CsvOrders> csv = ParseOrdersCsv(text, "o.csv");
    ASSERT_TRUE(csv.ok()) << csv.status() << "\n" << text;
    EXPECT_TRUE(csv->has_pairs);
    EXPECT_EQ(csv->orders, orders) << text;
    // Whoever reads it, writes the same.
    const auto again = MakeOrdersPolicy("o.csv", *csv);
    EXPECT_EQ(OrdersToCsv(pipeline, *PlanPipeline(*again, pipeline), again->needs().pairs_phases),
              text);
    // Of the first group, three; a pair stands for an I and a W besides the F.
    const std::string first = text.substr(0, text.find('\n'));
    std::string actions;
    for (size_t at = first.find('('); at != std::string::npos; at = first.find('(', at + 1)) {
      actions += first.substr(at, first.find(')', at) + 1 - at);
    }
    EXPECT_EQ(actions, is_vee ? "(0F3;3B1)(3F2;0B0)(3F3;0B1)" : "(0F3;3B5)(3F6;0B0)(3F7;0B1)");
  }
}

TEST(OrderCsvTest, BackwardsThatAreNotSplitArePairedWhole) {
  const std::string text =
      "0F0,0F1,3F0,(0F2;3B0)OVERLAP_F_B,3F1,3B1,3F2,3B2,0B0,0B1,0B2\n"
      "1F0,2F0,1F1,2F1,1F2,2B0,2F2,2B1,1B0,2B2,1B1,1B2\n";
  const absl::StatusOr<CsvOrders> csv = ParseOrdersCsv(text, "o.csv");
  ASSERT_TRUE(csv.ok()) << csv.status();
  EXPECT_FALSE(csv->splits_backward);
  const Pipeline pipeline = *MakePipeline({.num_groups = 2,
                                           .num_microbatches = 3,
                                           .num_chunks = 2,
                                           .placement = Placement::kVee,
                                           .splits_backward = false});
  const std::string written = OrdersToCsv(pipeline, csv->orders, csv->has_pairs);
  EXPECT_THAT(written, HasSubstr("(0F2;3B0)OVERLAP_F_B"));
  EXPECT_EQ(ParseOrdersCsv(written, "o.csv")->orders, csv->orders);
}

TEST(OrderCsvTest, PhasesStandInTheirTimeStep) {
  const Pipeline pipeline =
      *MakePipeline({.num_groups = 2, .num_microbatches = 2, .splits_backward = false});
  const PolicyRegistry policies = BuiltinPolicies();
  EXPECT_EQ(OrdersToCsv(pipeline, *PlanPipeline(*policies.Find("1f1b"), pipeline)),
            "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n");
}

TEST(OrderCsvTest, OrdersAreAPolicyForTheirPipeline) {
  const absl::StatusOr<CsvOrders> csv =
      ParseOrdersCsv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", "o.csv");
  ASSERT_TRUE(csv.ok()) << csv.status();
  const auto policy = MakeOrdersPolicy("o.csv", *csv);
  const UniformPipeline uniform = {
      .num_groups = 2, .num_microbatches = 2, .splits_backward = false};
  EXPECT_EQ(*PlanPipeline(*policy, *MakePipeline(uniform)), csv->orders);
  UniformPipeline other = uniform;
  other.num_microbatches = 3;
  EXPECT_EQ(PlanPipeline(*policy, *MakePipeline(other)).status().message(),
            "policy 'o.csv': its orders are for 2 stages and 2 micro-batches; there are 2 and 3");
}

}  // namespace
}  // namespace penstock::planner
