// Minimising a sum of costs that each depend on one or two choices, infinite ones being forbidden:
// a weighted constraint network (Schiex, Fargier & Verfaillie, "Valued constraint satisfaction
// problems", 1995), with a limit on a sum of weights, such as memory.
//
// Example: two variables of two options with costs {0, 3} and {2, 0} and a pair with costs {{0, 5},
// {1, 0}} by option of the first and of the second. The four assignments cost 0+2+0, 0+0+5, 3+2+1
// and 3+0+0: the first is best.
//
// Minimize first eliminates variables that are in no more than two pairs, exactly: the least over
// their options becomes a cost of the others (Dechter, "Bucket elimination", 1999). So a chain of
// operators is solved without a search. What remains is an integer program over the local polytope
// (Wainwright & Jordan, "Graphical models, exponential families, and variational inference", 2008),
// whose relaxation is mostly integral.
//
// A limit is first given a price instead: costs plus price times weight, whose least is a bound for
// every assignment within the limit (Everett, "Generalized Lagrange multiplier method", 1963). The
// price follows from the best assignments found on either side of the limit. Where that leaves a
// larger gap than asked for, an integer program in which the limit is a row closes it.
//
// Thread rule: values and pure functions; the same network has the same assignment.

#ifndef PENSTOCK_PLANNER_SEARCH_COST_NETWORK_H_
#define PENSTOCK_PLANNER_SEARCH_COST_NETWORK_H_

#include <limits>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace penstock::planner {

struct CostNetwork {
  struct Variable {
    std::vector<double> costs;    // by option; at least one
    std::vector<double> weights;  // by option; empty: none
  };
  // Costs by option of `first` and, minor, of `second`. Several pairs may join the same variables.
  struct Pair {
    int first = 0;
    int second = 0;
    std::vector<double> costs;
  };
  std::vector<Variable> variables;
  std::vector<Pair> pairs;
  double weight_limit = std::numeric_limits<double>::infinity();
};

struct CostAssignment {
  std::vector<int> options;  // by variable
  double cost = 0;
  double weight = 0;
  double bound = 0;    // no assignment within the limit costs less
  int num_solved = 0;  // variables that elimination left
};

// REQUIRES: one option for each variable.
double CostOf(const CostNetwork& network, absl::Span<const int> options);
double WeightOf(const CostNetwork& network, absl::Span<const int> options);

// The cost of the answer is at most 1 + `max_gap` times the least, unless branch and bound ends
// early: `bound` tells. Nothing if no assignment is within the limit and costs less than infinity.
// Errors are those of SolveIntegerProgram. REQUIRES: costs and weights are not negative, weights
// are finite, and a pair joins two variables.
absl::StatusOr<std::optional<CostAssignment>> Minimize(const CostNetwork& network,
                                                       double max_gap = 0);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_COST_NETWORK_H_
