// Linear programs over binary and continuous variables, solved to a proven gap by COIN-OR CBC
// (Forrest & Lougee-Heimer, "CBC user guide", 2005): branch and bound over a simplex solver.
//
// Example: least cost 3 x + 2 y with x + y >= 1, both binary: costs {3, 2}, one row {{0, 1}, {1,
// 1}} from 1 to infinity. The solution is x = 0, y = 1, of cost 2.
//
// Thread rule: pure functions; one thread; the same program has the same solution.

#ifndef PENSTOCK_PLANNER_SEARCH_INTEGER_PROGRAM_H_
#define PENSTOCK_PLANNER_SEARCH_INTEGER_PROGRAM_H_

#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock::planner {

struct IntegerProgram {
  struct Column {
    double cost = 0;         // infinite: the column is 0
    bool is_binary = false;  // otherwise any number from 0 to 1
  };
  struct Row {
    std::vector<std::pair<int, double>> terms;  // column and coefficient, no column twice
    double lower = -std::numeric_limits<double>::infinity();
    double upper = std::numeric_limits<double>::infinity();
  };
  std::vector<Column> columns;
  std::vector<Row> rows;
};

struct IntegerSolution {
  std::vector<double> values;  // by column
  double cost = 0;
  double bound = 0;  // no solution costs less
};

struct IntegerOptions {
  double max_gap = 0;  // of the cost, as a part of it: a solution this close is good enough
  // Solutions that do not cost less are not looked for.
  double cutoff = std::numeric_limits<double>::infinity();
  int max_nodes = 100000;  // of branch and bound
};

// Nothing if no solution satisfies the rows and the cutoff. kResourceExhausted: none was found
// within the nodes.
absl::StatusOr<std::optional<IntegerSolution>> SolveIntegerProgram(
    const IntegerProgram& program, const IntegerOptions& options = {});

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_INTEGER_PROGRAM_H_
