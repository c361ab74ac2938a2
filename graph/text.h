// The text format of graphs (.pst): meshes, then one graph with its shardings and stages.
//
//     mesh m = [dp=2, tp=2]
//
//     graph mlp {
//       %x = input : f32[8, 16] @[dp, _]
//       %w = parameter : f32[16, 32] @[_, tp]
//       %h = matmul(%x, %w) : f32[8, 32] @[dp, tp] stage 0
//       return %h
//     }
//
// A statement is `results = op(operands) {attributes} : types`, each type followed by its sharding
// where it has one, then `on m` where several meshes exist, `stage N` where a stage is assigned and
// `phase backward`, `phase weight_backward` or `phase update` where the node is not forward. It may
// bind a prefix of an operator's results. Names with characters other than letters, digits, `_` and
// `.` are quoted: %"a b". Comments run from # to the end of the line.
//
// Thread rule: pure functions.
// Invariants: parsing never crashes, whatever the text; parsing a printed graph that verifies gives
// an equal graph (GraphsEqual). Node::forward is not part of the text.

#ifndef PENSTOCK_GRAPH_TEXT_H_
#define PENSTOCK_GRAPH_TEXT_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "graph/graph.h"
#include "graph/op.h"

namespace penstock::graph {

// Limits on what is accepted, so that a hostile file costs no more than its size.
inline constexpr size_t kMaxTextBytes = size_t{1} << 28;
inline constexpr int kMaxAttributeDepth = 32;  // of lists in lists
inline constexpr int kMaxStage = 1 << 20;      // the highest number

// `file` names the text in errors, which read
//
//     mlp.pst:6:8: unknown operator 'matmull'; did you mean 'matmul'?
//       %h = matmull(%x, %w) : f32[8, 32]
//            ^
//
// The operators of the result belong to `ops`, which must outlive it.
absl::StatusOr<Graph> ParseGraph(std::string_view text, std::string_view file,
                                 const OpRegistry& ops);

// A sharding such as "@[mb.dp, _] replicated(tp)" of a value of that shape. `file` names the text
// in errors.
absl::StatusOr<Sharding> ParseSharding(std::string_view text, std::string_view file,
                                       const Mesh& mesh, const Shape& shape);

// Ends with a newline. Also prints graphs that do not verify, for error reports.
std::string PrintGraph(const Graph& graph);

// One statement of PrintGraph, without indentation.
std::string PrintNode(const Graph& graph, const Node& node);

// The mesh of the node's results, or `none` where the graph has no such mesh. The result refers to
// one of the arguments.
inline const Mesh& MeshOf(const Graph& graph, const Node& node, const Mesh& none) {
  const bool exists = node.mesh >= 0 && node.mesh < static_cast<int>(graph.meshes().size());
  return exists ? graph.meshes()[node.mesh] : none;
}

// "{axes=[1], keepdims=true}"; empty when there are none. Exact: parsing it gives equal attributes.
std::string PrintAttributes(const Attributes& attributes);

// Equality as graphs: the same values by name, each made by the same operator from the same
// operands, with equal types, shardings, meshes, stages and phases; the same returns in order; the
// same statements without results. The order of statements does not count, nor do two ways to write
// one sharding. `difference`, when not null, receives the first difference found in words.
bool GraphsEqual(const Graph& a, const Graph& b, std::string* difference = nullptr);

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_TEXT_H_
