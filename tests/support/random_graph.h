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
#include <random>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "base/tensor.h"
#include "graph/graph.h"
#include "graph/op.h"
#include "graph/sharding.h"

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
};

// Every case favours one operator, `seed` modulo their number, so that a run of n cases holds each
// operator at least n / number of operators times. Errors come from the code under test: the
// gradient transformation or a builder that refuses a valid node.
absl::StatusOr<RandomCase> MakeRandomCase(const graph::OpRegistry& ops, uint64_t seed);

// What an input named `name` is fed in a step.
Tensor MakeInput(const TensorType& type, const InputRange& range, uint64_t seed,
                 std::string_view name, int step);

// Draws that are the same on every platform.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  int64_t Below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  int64_t Between(int64_t low, int64_t high) { return low + Below(high - low + 1); }  // inclusive
  bool Chance(double probability) { return Unit() < probability; }
  double Unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }  // [0, 1)
  template <typename List>
  const auto& Pick(const List& list) {
    return list[Below(static_cast<int64_t>(list.size()))];
  }
  template <typename List>
  void Shuffle(List& list) {
    for (size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[Below(i)]);
  }

 private:
  std::mt19937_64 engine_;
};

// A mesh of one to three spatial axes over at most `max_devices` devices, some of sizes that are no
// power of two. `num_microbatches` above 1 adds a temporal axis of that size.
graph::Mesh RandomMesh(Random& random, int64_t max_devices, int64_t num_microbatches);

// A closed sharding of the shape over axes and sub-axes of the mesh that CheckSharding accepts.
// Uneven and empty parts occur; a temporal axis only where it divides.
graph::Sharding RandomSharding(Random& random, const graph::Mesh& mesh, const Shape& shape);

// The axes of `sharding` moved about between and inside dimensions, without partials: what permutes
// and all-to-alls are made of. A random sharding where that cannot be.
graph::Sharding RearrangedSharding(Random& random, const graph::Mesh& mesh, const Shape& shape,
                                   graph::Sharding sharding);

// Adds a partial over an unused spatial axis or sub-axis, if there is one; over a temporal one too
// where `allow_temporal`.
void AddRandomPartial(Random& random, const graph::Mesh& mesh, graph::Reduction reduction,
                      bool allow_temporal, graph::Sharding* sharding);

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_RANDOM_GRAPH_H_
