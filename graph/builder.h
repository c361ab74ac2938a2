// Appends nodes to a graph in C++: what layers, gradients and decompositions are written with.
// Errors stick: after the first one every call returns kNoValue and status() tells it, so that
// model code reads as a plain sequence.
//
// Thread rule: one thread.

#ifndef PENSTOCK_GRAPH_BUILDER_H_
#define PENSTOCK_GRAPH_BUILDER_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "graph/graph.h"
#include "graph/op.h"

namespace penstock::graph {

// Adds nodes to a graph.
class GraphBuilder {
 public:
  // Both outlive the builder.
  GraphBuilder(const OpRegistry& ops, Graph& graph) : ops_(ops), graph_(graph) {}

  // The graph that nodes are added to.
  Graph& graph() { return graph_; }
  // The operators that nodes may have.
  const OpRegistry& ops() const { return ops_; }
  // The first error, after which nothing is added.
  const absl::Status& status() const { return status_; }
  // Makes this the error, unless there is one already.
  void Fail(absl::Status status);

  // The single result of a new node. `name` is made unique; empty: named after the operator.
  ValueId Add(std::string_view op, absl::Span<const ValueId> operands, Attributes attributes = {},
              std::string_view name = "");
  // All results; `num_results` as in Graph::Add.
  std::vector<ValueId> AddMulti(std::string_view op, absl::Span<const ValueId> operands,
                                Attributes attributes = {}, std::string_view name = "",
                                int num_results = -1);
  // input, parameter, state: a value whose type is declared.
  ValueId Declare(std::string_view op, std::string_view name, TensorType type,
                  Attributes attributes = {});
  // constant of a scalar; `dtype` must be a float or integer.
  ValueId Constant(double value, TensorType type);

  // The type of a value.
  const TensorType& type(ValueId value) const { return graph_.value(value).type; }

  // New nodes get these until changed: the gradient transformation, optimizer and stage marks.
  void set_phase(Phase phase) { phase_ = phase; }
  // The forward node that new backward nodes belong to.
  void set_forward(NodeId node) { forward_ = node; }
  // The pipeline stage of new nodes.
  void set_stage(int stage) { stage_ = stage; }
  // A prefix for names, such as "h3.attn."; layers set and restore it.
  void set_scope(std::string scope) { scope_ = std::move(scope); }
  // The prefix that names have now.
  const std::string& scope() const { return scope_; }

 private:
  const OpRegistry& ops_;
  Graph& graph_;
  absl::Status status_;
  Phase phase_ = Phase::kForward;
  NodeId forward_ = kNoNode;
  int stage_ = -1;
  std::string scope_;
};

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_BUILDER_H_
