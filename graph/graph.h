// The IR: an append-only list of nodes in SSA form. A node is an operator, its attributes, its
// operands and its typed results.
//
// Thread rule: build on one thread; a finished graph is safe to read from many.
// Invariants: an operand's producer comes before its user; ids are dense and never reused; names of
// values are unique.

#ifndef PENSTOCK_GRAPH_GRAPH_H_
#define PENSTOCK_GRAPH_GRAPH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "base/tensor.h"
#include "graph/attributes.h"
#include "graph/sharding.h"

namespace penstock::graph {

class Op;

using ValueId = int32_t;
using NodeId = int32_t;
inline constexpr ValueId kNoValue = -1;
inline constexpr NodeId kNoNode = -1;

// Which part of a training step a node belongs to. Forward unless the gradient transformation or
// the optimizer said otherwise.
enum class Phase : uint8_t {
  kForward,
  kBackward,        // gradients of activations (B), and what is not told apart
  kWeightBackward,  // gradients of parameters only (W)
  kUpdate,          // optimizer
};

// Where a node was written; line 0 when it was built by code.
struct SourceLocation {
  std::string file;
  int line = 0;
  int column = 0;
};

struct Value {
  std::string name;  // without the %
  NodeId producer = kNoNode;
  int result_index = 0;
  TensorType type;
  std::optional<Sharding> sharding;  // none: every dimension open
};

struct Node {
  const Op* op = nullptr;  // owned by an OpRegistry that outlives the graph
  Attributes attributes;
  absl::InlinedVector<ValueId, 4> operands;
  absl::InlinedVector<ValueId, 2> results;
  int mesh = 0;    // index into Graph::meshes(), of its results
  int stage = -1;  // -1: not assigned
  Phase phase = Phase::kForward;
  NodeId forward = kNoNode;  // of a backward node: the forward node it belongs to
  SourceLocation location;
};

struct Return {
  ValueId value = kNoValue;
  std::optional<Sharding> sharding;
};

class Graph {
 public:
  explicit Graph(std::string name = "main") : name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }

  const std::vector<Mesh>& meshes() const { return meshes_; }
  std::vector<Mesh>& mutable_meshes() { return meshes_; }

  int num_nodes() const { return static_cast<int>(nodes_.size()); }
  int num_values() const { return static_cast<int>(values_.size()); }
  const Node& node(NodeId id) const { return nodes_[id]; }
  Node& mutable_node(NodeId id) { return nodes_[id]; }
  const Value& value(ValueId id) const { return values_[id]; }
  Value& mutable_value(ValueId id) { return values_[id]; }
  absl::Span<const Node> nodes() const { return nodes_; }

  const std::vector<Return>& returns() const { return returns_; }
  std::vector<Return>& mutable_returns() { return returns_; }

  // Appends a node: checks it (InferResultTypes in op.h), names its results and returns its id.
  // A result beyond `names` is named after names[0], or after the operator where there is none:
  // "split", "split.1", made unique; names beyond the results are ignored. `num_results` below the
  // operator's count leaves trailing optional results unbound; -1 means the operator's required
  // results.
  absl::StatusOr<NodeId> Add(const Op* op, absl::Span<const ValueId> operands,
                             Attributes attributes = {}, absl::Span<const std::string> names = {},
                             int num_results = -1);

  // Adds a node whose types the caller knows (parser and passes); names as for Add.
  // REQUIRES: it verifies, and the names are free.
  NodeId AddTyped(Node node, absl::Span<const TensorType> types,
                  absl::Span<const std::string> names);

  // A name not used yet, derived from `base`.
  std::string UniqueName(std::string_view base) const;
  // Keeps UniqueName from giving out the names of `other`: for passes that copy it node by node,
  // with its names, and add nodes in between.
  void ReserveNames(const Graph& other);
  ValueId FindValue(std::string_view name) const;  // kNoValue when absent

  // Types of the node's operands, in order.
  std::vector<TensorType> OperandTypes(const Node& node) const;
  std::vector<TensorType> ResultTypes(const Node& node) const;

  // For each value, the nodes that read it (each once).
  std::vector<std::vector<NodeId>> Users() const;

 private:
  std::string name_;
  std::vector<Mesh> meshes_;
  std::vector<Node> nodes_;
  std::vector<Value> values_;
  std::vector<Return> returns_;
  absl::flat_hash_map<std::string, ValueId> by_name_;
  absl::flat_hash_set<std::string> reserved_names_;
  mutable absl::flat_hash_map<std::string, int> next_suffix_;
};

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_GRAPH_H_
