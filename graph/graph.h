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

using ValueId = int32_t;                 // index of a value in its graph, from 0
using NodeId = int32_t;                  // index of a node in its graph, from 0
inline constexpr ValueId kNoValue = -1;  // no value
inline constexpr NodeId kNoNode = -1;    // no node

// Which part of a training step a node belongs to. Forward unless the gradient transformation or
// the optimizer said otherwise.
enum class Phase : uint8_t {
  kForward,         // F
  kBackward,        // gradients of activations (B), and what is not told apart
  kWeightBackward,  // gradients of parameters only (W)
  kUpdate,          // the optimizer, once a step
};

// Where a node was written; line 0 when it was built by code.
struct SourceLocation {
  std::string file;  // as it was given to the parser
  int line = 0;      // from 1
  int column = 0;    // from 1
};

// A tensor that a node computes.
struct Value {
  std::string name;                  // without the %
  NodeId producer = kNoNode;         // the node that computes it
  int result_index = 0;              // which of the node's results it is
  TensorType type;                   // of the whole tensor, however it is split
  std::optional<Sharding> sharding;  // none: every dimension open
};

// An operator applied to values.
struct Node {
  const Op* op = nullptr;                    // owned by an OpRegistry that outlives the graph
  Attributes attributes;                     // those that were given or completed
  absl::InlinedVector<ValueId, 4> operands;  // in the operator's order
  absl::InlinedVector<ValueId, 2> results;   // those that are bound, likewise
  int mesh = 0;                              // index into Graph::meshes(), of its results
  int stage = -1;                            // of a pipeline, from 0; -1: not assigned
  Phase phase = Phase::kForward;             // the part of the step that it belongs to
  NodeId forward = kNoNode;                  // of a backward node: the forward node it belongs to
  SourceLocation location;                   // for messages
};

// A value that the program returns each step.
struct Return {
  ValueId value = kNoValue;          // which one
  std::optional<Sharding> sharding;  // that was asked for; none: nothing was
};

// A program: nodes in an order in which they can run, and what is returned of their values.
class Graph {
 public:
  // A graph without nodes. The name is that of the statement `graph NAME {` of the text format.
  explicit Graph(std::string name = "main") : name_(std::move(name)) {}

  // The name of the program.
  const std::string& name() const { return name_; }
  // Renames it.
  void set_name(std::string name) { name_ = std::move(name); }

  // The arrays of devices that values are split over; Node::mesh counts them.
  const std::vector<Mesh>& meshes() const { return meshes_; }
  // The same, to be changed. Shardings of values name axes of these meshes.
  std::vector<Mesh>& mutable_meshes() { return meshes_; }

  // Nodes have the ids 0 to num_nodes() - 1, in the order in which they were added.
  int num_nodes() const { return static_cast<int>(nodes_.size()); }
  // Values have the ids 0 to num_values() - 1.
  int num_values() const { return static_cast<int>(values_.size()); }
  // The node of an id. REQUIRES: there is one. The reference holds until a node is added.
  const Node& node(NodeId id) const { return nodes_[id]; }
  // The same, to be changed.
  Node& mutable_node(NodeId id) { return nodes_[id]; }
  // The value of an id. REQUIRES: there is one. The reference holds until a node is added.
  const Value& value(ValueId id) const { return values_[id]; }
  // The same, to be changed; its name stays, as the graph finds it by that.
  Value& mutable_value(ValueId id) { return values_[id]; }
  // All nodes, by id.
  absl::Span<const Node> nodes() const { return nodes_; }

  // What is returned each step, in the order of the text's `return`.
  const std::vector<Return>& returns() const { return returns_; }
  // The same, to be changed.
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
  // Types of the node's bound results, in order.
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
