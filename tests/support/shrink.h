// Makes a failing random case small before it is shown.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_TESTS_SUPPORT_SHRINK_H_
#define PENSTOCK_TESTS_SUPPORT_SHRINK_H_

#include <functional>
#include <vector>

#include "graph/graph.h"
#include "tests/support/random_graph.h"

namespace penstock::testing {

// Of each node: whether something returned or assigned depends on it.
std::vector<bool> LiveNodes(const graph::Graph& graph);

// Greedily takes away what the failure does not need: steps, returns, assignments, nodes from the
// end, from the beginning and in between, shardings, stages, mesh axes. The result fails too.
// `fails` is asked at most `max_attempts` times.
RandomCase Shrink(const RandomCase& failing, const std::function<bool(const RandomCase&)>& fails,
                  int max_attempts);

// The case in the text format, headed by what else it takes to run it.
std::string Describe(const RandomCase& test);

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_SHRINK_H_
