#include "planner/search/integer_program.h"

#include <limits>

#include "gtest/gtest.h"

namespace penstock::planner {
namespace {

constexpr double kIntegerProgramInfinity = std::numeric_limits<double>::infinity();

TEST(IntegerProgramTest, TheExampleOfTheHeader) {
  IntegerProgram program;
  program.columns = {{3, true}, {2, true}};
  program.rows = {{{{0, 1}, {1, 1}}, 1, kIntegerProgramInfinity}};
  const auto solution = SolveIntegerProgram(program);
  ASSERT_TRUE(solution.ok()) << solution.status();
  ASSERT_TRUE(solution->has_value());
  EXPECT_EQ((*solution)->values, (std::vector<double>{0, 1}));
  EXPECT_EQ((*solution)->cost, 2);
  EXPECT_EQ((*solution)->bound, 2);
}

TEST(IntegerProgramTest, BinaryColumnsAreNotHalved) {
  // Of items worth 5, 4 and 3 that weigh 4, 3 and 2, as much as weighs 5: the last two. A
  // relaxation would take a part of the first.
  IntegerProgram program;
  program.columns = {{-5, true}, {-4, true}, {-3, true}};
  program.rows = {{{{0, 4}, {1, 3}, {2, 2}}, -kIntegerProgramInfinity, 5}};
  const auto solution = SolveIntegerProgram(program);
  ASSERT_TRUE(solution.ok()) << solution.status();
  EXPECT_EQ((*solution)->values, (std::vector<double>{0, 1, 1}));
  EXPECT_EQ((*solution)->cost, -7);
}

TEST(IntegerProgramTest, SaysThatNothingSatisfiesTheRows) {
  IntegerProgram program;
  program.columns = {{1, true}, {1, true}};
  program.rows = {{{{0, 1}, {1, 1}}, 3, kIntegerProgramInfinity}};
  auto solution = SolveIntegerProgram(program);
  ASSERT_TRUE(solution.ok()) << solution.status();
  EXPECT_FALSE(solution->has_value());
  // Neither does one that costs too much.
  program.rows[0].lower = 2;
  solution = SolveIntegerProgram(program, {.cutoff = 2});
  ASSERT_TRUE(solution.ok()) << solution.status();
  EXPECT_FALSE(solution->has_value());
}

TEST(IntegerProgramTest, AnInfiniteCostForbids) {
  IntegerProgram program;
  program.columns = {{kIntegerProgramInfinity, true}, {7, true}};
  program.rows = {{{{0, 1}, {1, 1}}, 1, 1}};
  const auto solution = SolveIntegerProgram(program);
  ASSERT_TRUE(solution.ok()) << solution.status();
  EXPECT_EQ((*solution)->values, (std::vector<double>{0, 1}));
}

}  // namespace
}  // namespace penstock::planner
