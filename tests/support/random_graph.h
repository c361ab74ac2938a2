// Random programs for the property tests: graphs over every operator, on a random mesh with random
// shardings, stages and schedule. A case is a pure function of its seed.
//
// Values stay finite: results that grow are scaled down, and operators with poles get operands away
// from them. Most cases are in f64, so that a difference is a wrong number, not rounding.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_TESTS_SUPPORT_RANDOM_GRAPH_H_
#define PENSTOCK_TESTS_SUPPORT_RANDOM_GRAPH_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "base/tensor.h"
#include "graph/graph.h"
#include "graph/op.h"

namespace penstock::testing {

// Elements of an input: floats lie in (low, high), integers in [low, high), bools are either.
struct InputRange {
  double low = -2;
  double high = 2;
};

struct RandomCase {
  uint64_t seed = 0;
  graph::Graph graph;  // with its mesh, shardings and stages
  std::map<std::string, InputRange> inputs;
  std::string policy = "gpipe";
  int chunks_per_group = 1;
  bool split_weight_gradients = false;
  int num_steps = 1;
  bool may_be_empty = false;  // tensors may have no elements
};

// Every case favours one operator, `seed` modulo their number, so that a run of n cases holds each
// operator at least n / number of operators times. Errors come from the code under test: the
// gradient transformation or a builder that refuses a valid node.
absl::StatusOr<RandomCase> MakeRandomCase(const graph::OpRegistry& ops, uint64_t seed);

// What an input named `name` is fed in a step.
Tensor MakeInput(const TensorType& type, const InputRange& range, uint64_t seed,
                 std::string_view name, int step);

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_RANDOM_GRAPH_H_
