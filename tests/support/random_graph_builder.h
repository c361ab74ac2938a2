// Builds a random graph node by node. A value has a bound on its magnitude, so that what is made
// stays finite, and is blocked if the loss cannot be differentiated through it.
//
// Thread rule: external synchronisation.

#ifndef PENSTOCK_TESTS_SUPPORT_RANDOM_GRAPH_BUILDER_H_
#define PENSTOCK_TESTS_SUPPORT_RANDOM_GRAPH_BUILDER_H_

#include <cstdint>
#include <set>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

#include "base/tensor.h"
#include "graph/attributes.h"
#include "graph/builder.h"
#include "graph/graph.h"
#include "graph/op.h"
#include "tests/support/random.h"
#include "tests/support/random_graph.h"

namespace penstock::testing {

using Values = std::vector<graph::ValueId>;

inline constexpr int64_t kMaxElements = 1500;
inline constexpr double kMaxBound = 24;  // of values that other operators read

class RandomGraphBuilder {
 public:
  RandomGraphBuilder(const graph::OpRegistry& ops, Random& random, RandomCase& result,
                     int64_t batch, DType dtype)
      : random_(random), case_(result), builder_(ops, result.graph), batch_(batch), dtype_(dtype) {}

  Random& random() { return random_; }
  DType dtype() const { return dtype_; }
  const absl::Status& status() const { return builder_.status(); }
  TensorType Type(graph::ValueId value) const { return builder_.type(value); }
  Shape ShapeOf(graph::ValueId value) const { return builder_.type(value).shape; }
  int Rank(graph::ValueId value) const {
    return static_cast<int>(builder_.type(value).shape.size());
  }
  double Bound(graph::ValueId value) const { return bounds_.at(value); }
  bool IsBlocked(graph::ValueId value) const { return blocked_.contains(value); }
  const Values& floats() const { return floats_; }
  const Values& others() const { return others_; }
  bool ok() const { return builder_.status().ok(); }

  int64_t Dim();

  Shape RandomShape(int min_rank, int max_rank);

  // --- Operands ---

  graph::ValueId Input(const TensorType& type, const InputRange& range);

  graph::ValueId Parameter(const TensorType& type);

  graph::ValueId State(const TensorType& type);

  graph::ValueId FreshFloat(const Shape& shape);

  // A float of the shape: an existing one, where there is one.
  graph::ValueId Float(const Shape& shape);

  graph::ValueId Float(int min_rank = 0, int max_rank = 5);

  // Indices in [0, limit).
  graph::ValueId Indices(const Shape& shape, int64_t limit);

  DType IntegerType();

  // An integer of the shape and dtype.
  graph::ValueId Integer(const TensorType& type);

  // Whether an operator that takes integers is given some.
  bool TakesIntegers() { return random_.Chance(0.15); }

  // For operators that only move elements: any type.
  graph::ValueId Any(int min_rank = 0, int max_rank = 5);

  // Of the shape, and the dtype of `like`.
  graph::ValueId AnyLike(graph::ValueId like, const Shape& shape);

  graph::ValueId Bool(const Shape& shape);

  // |x| + 0.5.
  graph::ValueId Positive(graph::ValueId x);

  graph::ValueId Scalar(double value);

  int64_t NewStream() { return ++num_streams_; }

  // --- Nodes ---

  Values Ops(std::string_view op, const Values& operands, graph::Attributes attributes,
             double bound, int num_results = -1);

  graph::ValueId Op(std::string_view op, const Values& operands, graph::Attributes attributes,
                    double bound);

  void Assign(graph::ValueId state, graph::ValueId value) {
    builder_.AddMulti("assign", {state, value});
  }

  // Offers a value to later operators, scaled down if it has grown.
  void Emit(graph::ValueId value);

 private:
  Random& random_;
  RandomCase& case_;
  graph::GraphBuilder builder_;
  const int64_t batch_;
  const DType dtype_;
  int64_t num_leaves_ = 0;
  int64_t num_streams_ = 0;
  absl::flat_hash_map<graph::ValueId, double> bounds_;
  std::set<graph::ValueId> blocked_;
  Values floats_;
  Values others_;
};

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_RANDOM_GRAPH_BUILDER_H_
