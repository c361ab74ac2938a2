#include "planner/sharding/factor_propagation.h"

#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::Factor;

// Axes of a mesh [a=2, b=2, c=2, d=2, e=16].
constexpr AxisRef kA = {0, 1, 2};
constexpr AxisRef kB = {1, 1, 2};
constexpr AxisRef kC = {2, 1, 2};
constexpr AxisRef kD = {3, 1, 2};
constexpr AxisRef kE = {4, 1, 16};
constexpr AxisRef E(int64_t pre, int64_t size) { return {4, pre, size}; }

using Row = std::vector<std::optional<AxisList>>;  // axes a factor; none: not in the tensor

TensorProjection Tensor(const Row& row) {
  TensorProjection tensor;
  for (const std::optional<AxisList>& axes : row) {
    FactorSharding factor;
    factor.is_mapped = axes.has_value();
    factor.is_minor_most = true;
    if (axes.has_value()) factor.axes = *axes;
    tensor.factors.push_back(factor);
  }
  return tensor;
}

Projection Table(const std::vector<Row>& operands, const std::vector<Row>& results) {
  Projection projection;
  projection.num_operands = static_cast<int>(operands.size());
  for (const Row& row : operands) projection.tensors.push_back(Tensor(row));
  for (const Row& row : results) projection.tensors.push_back(Tensor(row));
  return projection;
}

std::vector<bool> Propagate(PropagationStrategy strategy, const std::vector<int64_t>& sizes,
                            Projection* projection, bool is_elementwise = false,
                            Direction direction = Direction::kBoth) {
  std::vector<Factor> factors;
  for (int64_t size : sizes) factors.push_back({size});
  const std::vector<Direction> directions(factors.size(), direction);
  return PropagateFactors(strategy, factors, directions, is_elementwise, projection);
}

AxisList Axes(const Projection& projection, int tensor, int factor) {
  return projection.tensors[tensor].factors[factor].axes;
}

TEST(CompatibleAxesTest, LongestListWithoutContradiction) {
  const auto agree = [](const std::vector<AxisList>& lists) {
    std::vector<Row> rows;
    for (const AxisList& list : lists) rows.push_back({list});
    return CompatibleAxes(Table(rows, {}), 0, Direction::kBoth);
  };
  EXPECT_EQ(agree({{kA}, {kA, kB}}), (AxisList{kA, kB}));
  EXPECT_EQ(agree({{kA, kB}, {kA, kC}}), (AxisList{kA}));
  EXPECT_EQ(agree({{kA, kB}, {kA, kC}, {kA, kB}}), (AxisList{kA}));
  EXPECT_EQ(agree({{kA}, {kB}}), (AxisList{}));
  EXPECT_EQ(agree({{}, {kA, kB}, {kA}}), (AxisList{kA, kB}));
  EXPECT_EQ(agree({{E(1, 2)}, {E(1, 4)}}), (AxisList{E(1, 4)}));
  EXPECT_EQ(agree({{E(1, 4)}, {E(1, 2)}}), (AxisList{E(1, 4)}));
  EXPECT_EQ(agree({{E(1, 2), kB}, {E(1, 4), kB}}), (AxisList{E(1, 2)}));
  EXPECT_EQ(agree({{E(1, 4), kB}, {E(1, 2), kB}}), (AxisList{E(1, 2)}));
  EXPECT_EQ(agree({{E(1, 2)}, {E(2, 2)}}), (AxisList{}));
}

TEST(CompatibleAxesTest, OnlyTheSourceSideExtends) {
  const Projection table = Table({{AxisList{kA}}}, {{AxisList{kA, kB}}});
  EXPECT_EQ(CompatibleAxes(table, 0, Direction::kForward), (AxisList{kA}));
  EXPECT_EQ(CompatibleAxes(table, 0, Direction::kBackward), (AxisList{kA, kB}));
  EXPECT_EQ(CompatibleAxes(table, 0, Direction::kNone), (AxisList{}));
  // The other side still contradicts.
  const Projection conflict = Table({{AxisList{kA, kB}}}, {{AxisList{kA, kC}}});
  EXPECT_EQ(CompatibleAxes(conflict, 0, Direction::kForward), (AxisList{kA}));
}

TEST(BasicTest, SharesPerFactor) {
  // The table of the published design: F0 shares a.b, F1 the common c, F2 nothing.
  Projection table = Table({{AxisList{kA}, AxisList{}, AxisList{kE}},
                            {AxisList{kA, kB}, AxisList{kC, kD}, std::nullopt}},
                           {{AxisList{}, AxisList{kC, E(1, 2)}, std::nullopt}});
  EXPECT_EQ(Propagate(PropagationStrategy::kBasic, {8, 8, 8}, &table),
            (std::vector<bool>{true, false, true}));
  EXPECT_EQ(Axes(table, 0, 0), (AxisList{kA, kB}));
  EXPECT_EQ(Axes(table, 2, 0), (AxisList{kA, kB}));
  EXPECT_EQ(Axes(table, 0, 1), (AxisList{kC}));
  EXPECT_EQ(Axes(table, 1, 1), (AxisList{kC, kD}));
}

TEST(BasicTest, OtherFactorsTakePartOfAnAxis) {
  // Tensor 1 has e:(4)2 on its other factor: only e:(1)4 fits everywhere.
  Projection table = Table({{AxisList{kE}, AxisList{}}, {AxisList{E(1, 2)}, AxisList{E(4, 2)}}},
                           {{AxisList{}, AxisList{kB}}});
  Propagate(PropagationStrategy::kBasic, {32, 8}, &table);
  EXPECT_EQ(Axes(table, 1, 0), (AxisList{E(1, 4)}));
  EXPECT_EQ(Axes(table, 2, 0), (AxisList{E(1, 4)}));
  EXPECT_EQ(Axes(table, 0, 1), (AxisList{}));
}

TEST(BasicTest, ClosedAndBlockedStopThePropagationForAll) {
  Projection table = Table({{AxisList{kA, kB}}, {AxisList{}}}, {{AxisList{}}});
  table.tensors[1].blocked = {kB};
  Propagate(PropagationStrategy::kBasic, {8}, &table);
  EXPECT_EQ(Axes(table, 2, 0), (AxisList{kA}));

  table = Table({{AxisList{kA, kB}}, {AxisList{kA}}}, {{AxisList{}}});
  table.tensors[1].factors[0].is_closed = true;
  Propagate(PropagationStrategy::kBasic, {8}, &table);
  EXPECT_EQ(Axes(table, 1, 0), (AxisList{kA}));
  EXPECT_EQ(Axes(table, 2, 0), (AxisList{kA}));
}

TEST(BasicTest, FactorsThatAreNotMinorMostNeedDivisors) {
  Projection table = Table({{AxisList{kE}}}, {{AxisList{}}});
  table.tensors[1].factors[0].is_minor_most = false;
  Propagate(PropagationStrategy::kBasic, {12}, &table);
  EXPECT_EQ(Axes(table, 1, 0), (AxisList{E(1, 4)}));

  table = Table({{AxisList{kA, kE}}}, {{AxisList{}}});
  table.tensors[1].factors[0].is_minor_most = false;
  Propagate(PropagationStrategy::kBasic, {6}, &table);
  EXPECT_EQ(Axes(table, 1, 0), (AxisList{kA}));
}

TEST(AggressiveTest, LargerSourceWins) {
  // matmul x[8, 4] w[4, 16]; factors i, k, j.
  Projection table = Table(
      {{AxisList{kA, kB}, AxisList{}, std::nullopt}, {std::nullopt, AxisList{}, AxisList{kA, kC}}},
      {{AxisList{}, std::nullopt, AxisList{}}});
  Projection basic = table;
  EXPECT_EQ(Propagate(PropagationStrategy::kBasic, {8, 4, 16}, &basic),
            (std::vector<bool>{false, false, false}));
  EXPECT_EQ(Propagate(PropagationStrategy::kAggressive, {8, 4, 16}, &table),
            (std::vector<bool>{false, false, true}));
  EXPECT_EQ(Axes(table, 2, 0), (AxisList{}));
  EXPECT_EQ(Axes(table, 2, 2), (AxisList{kA, kC}));
}

TEST(AggressiveTest, FirstTensorWinsAmongEqualSizes) {
  const std::vector<Row> operands = {{AxisList{kA}, AxisList{}, std::nullopt},
                                     {std::nullopt, AxisList{}, AxisList{kB, kA}}};
  Projection table = Table(operands, {{AxisList{}, std::nullopt, AxisList{}}});
  Propagate(PropagationStrategy::kAggressive, {8, 8, 8}, &table);
  EXPECT_EQ(Axes(table, 2, 0), (AxisList{kA}));
  EXPECT_EQ(Axes(table, 2, 2), (AxisList{kB}));
}

TEST(AggressiveTest, ElementwisePrefersTheMostSplitFactor) {
  const auto run = [](bool is_elementwise) {
    Projection table = Table({{AxisList{}, AxisList{kA}}, {AxisList{kB, kA}, AxisList{}}},
                             {{AxisList{}, AxisList{}}});
    for (int t : {0, 1}) {
      for (FactorSharding& factor : table.tensors[t].factors) factor.is_closed = true;
    }
    Propagate(PropagationStrategy::kAggressive, {8, 8}, &table, is_elementwise);
    return table;
  };
  EXPECT_EQ(Axes(run(true), 2, 0), (AxisList{kB, kA}));
  EXPECT_EQ(Axes(run(true), 2, 1), (AxisList{}));
  EXPECT_EQ(Axes(run(false), 2, 0), (AxisList{kB}));
  EXPECT_EQ(Axes(run(false), 2, 1), (AxisList{kA}));
}

TEST(AggressiveTest, ElementwiseOperandsTakeNoMoreThanTheResult) {
  const auto run = [](bool is_elementwise) {
    Projection table = Table({{AxisList{kA, kB}}, {AxisList{}}}, {{AxisList{kA}}});
    table.tensors[2].factors[0].is_closed = true;
    Propagate(PropagationStrategy::kAggressive, {8}, &table, is_elementwise);
    return Axes(table, 1, 0);
  };
  EXPECT_EQ(run(true), (AxisList{kA}));
  EXPECT_EQ(run(false), (AxisList{kA, kB}));
}

TEST(AggressiveTest, ClosedTensorsDoNotStopOthers) {
  Projection table = Table({{AxisList{kA}}, {AxisList{}}}, {{AxisList{}}});
  table.tensors[1].factors[0].is_closed = true;
  Propagate(PropagationStrategy::kAggressive, {8}, &table, /*is_elementwise=*/true);
  EXPECT_EQ(Axes(table, 1, 0), (AxisList{}));
  EXPECT_EQ(Axes(table, 2, 0), (AxisList{kA}));
}

TEST(AggressiveTest, ContradictionWithinAFactorIsLeftAlone) {
  Projection table = Table({{AxisList{kA}}, {AxisList{kB}}}, {{AxisList{}}});
  EXPECT_EQ(Propagate(PropagationStrategy::kAggressive, {8}, &table, true),
            (std::vector<bool>{false, false, false}));
}

TEST(AggressiveTest, FixedDimensionsKeepTheirAxes) {
  Projection table = Table({{AxisList{kA, kB}}}, {{AxisList{}}});
  table.tensors[1].fixed = {kB};
  Propagate(PropagationStrategy::kAggressive, {8}, &table);
  EXPECT_EQ(Axes(table, 1, 0), (AxisList{kA}));
}

}  // namespace
}  // namespace penstock::planner
