// What makes a node of each operator on random operands, for random programs.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_TESTS_SUPPORT_RANDOM_OPS_H_
#define PENSTOCK_TESTS_SUPPORT_RANDOM_OPS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "graph/op.h"
#include "tests/support/random_graph_builder.h"

namespace penstock::testing {

struct Maker {
  std::string_view op;
  void (*make)(RandomGraphBuilder& g, std::string_view op);
};

// One for every operator, but for those without a maker whose test cases do not read floats of
// either sign.
std::vector<Maker> Makers(const graph::OpRegistry& ops);

// The operator that a case favours: each in turn, or those of a plug-in under test.
const Maker& FavouriteMaker(const std::vector<Maker>& makers, uint64_t seed);

// An identity whose sharding is chosen when the graph is annotated.
void MakeReshard(RandomGraphBuilder& g, std::string_view op);

// A scalar that depends on up to three values; kNoValue where none can be differentiated.
graph::ValueId MakeLoss(RandomGraphBuilder& g);

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_RANDOM_OPS_H_
