#include "planner/search/integer_program.h"

#include <CbcHeuristic.hpp>
#include <CbcModel.hpp>
#include <CglKnapsackCover.hpp>
#include <CoinPackedMatrix.hpp>
#include <OsiClpSolverInterface.hpp>

#include <algorithm>
#include <cmath>

#include "base/strings.h"

namespace penstock::planner {
namespace {

// Costs are scaled so that the largest is this: the solver's tolerances are absolute.
constexpr double kLargestCost = 1e4;

void Load(const IntegerProgram& program, double scale, OsiClpSolverInterface* solver) {
  std::vector<int> rows;
  std::vector<int> columns;
  std::vector<double> elements;
  std::vector<double> lower;
  std::vector<double> upper;
  const auto bounded = [](double bound) {
    return std::isinf(bound) ? std::copysign(COIN_DBL_MAX, bound) : bound;
  };
  for (const IntegerProgram::Row& row : program.rows) {
    for (const auto& [column, coefficient] : row.terms) {
      rows.push_back(static_cast<int>(lower.size()));
      columns.push_back(column);
      elements.push_back(coefficient);
    }
    lower.push_back(bounded(row.lower));
    upper.push_back(bounded(row.upper));
  }
  const auto num_columns = static_cast<int>(program.columns.size());
  CoinPackedMatrix matrix(/*colordered=*/true, rows.data(), columns.data(), elements.data(),
                          static_cast<int>(elements.size()));
  matrix.setDimensions(static_cast<int>(lower.size()), num_columns);
  std::vector<double> costs;
  std::vector<double> most;
  for (const IntegerProgram::Column& column : program.columns) {
    costs.push_back(std::isinf(column.cost) ? 0 : column.cost * scale);
    most.push_back(std::isinf(column.cost) ? 0 : 1);
  }
  const std::vector<double> zero(program.columns.size(), 0);
  solver->loadProblem(matrix, zero.data(), most.data(), costs.data(), lower.data(), upper.data());
  for (int c = 0; c < num_columns; ++c) {
    if (program.columns[static_cast<size_t>(c)].is_binary) solver->setInteger(c);
  }
}

}  // namespace

absl::StatusOr<std::optional<IntegerSolution>> SolveIntegerProgram(const IntegerProgram& program,
                                                                   const IntegerOptions& options) {
  if (program.columns.empty()) return IntegerSolution();
  double largest = 0;
  for (const IntegerProgram::Column& column : program.columns) {
    if (!std::isinf(column.cost)) largest = std::max(largest, std::abs(column.cost));
  }
  const double scale = largest > 0 ? kLargestCost / largest : 1;

  OsiClpSolverInterface solver;
  solver.messageHandler()->setLogLevel(0);
  Load(program, scale, &solver);
  CbcModel model(solver);
  model.messageHandler()->setLogLevel(0);
  model.setLogLevel(0);
  model.solver()->messageHandler()->setLogLevel(0);
  model.setMaximumNodes(options.max_nodes);
  model.setAllowableGap(0);
  model.setAllowableFractionGap(options.max_gap);
  if (!std::isinf(options.cutoff)) model.setCutoff(options.cutoff * scale);
  CglKnapsackCover knapsack_cuts;
  model.addCutGenerator(&knapsack_cuts, -1, "knapsack");
  CbcRounding rounding(model);
  model.addHeuristic(&rounding);
  model.initialSolve();
  if (model.isInitialSolveProvenPrimalInfeasible()) return std::optional<IntegerSolution>();
  model.branchAndBound();
  if (model.isProvenInfeasible()) return std::optional<IntegerSolution>();
  if (model.bestSolution() == nullptr) {
    return absl::ResourceExhaustedError(StrCat("no solution of an integer program of ",
                                               program.columns.size(), " columns was found within ",
                                               options.max_nodes, " nodes of branch and bound"));
  }
  IntegerSolution solution;
  solution.values.assign(model.bestSolution(), model.bestSolution() + program.columns.size());
  for (size_t c = 0; c < program.columns.size(); ++c) {
    if (program.columns[c].is_binary) solution.values[c] = std::round(solution.values[c]);
    if (solution.values[c] > 0) solution.cost += program.columns[c].cost * solution.values[c];
  }
  const bool is_best = model.isProvenOptimal() && options.max_gap == 0;
  solution.bound =
      is_best ? solution.cost : std::min(solution.cost, model.getBestPossibleObjValue() / scale);
  return std::optional<IntegerSolution>(std::move(solution));
}

}  // namespace penstock::planner
