// What is known of an operator independent of any device: one subclass in one file of graph/ops/.
//
// Thread rule: Op objects are immutable and shared.

#ifndef PENSTOCK_GRAPH_OP_H_
#define PENSTOCK_GRAPH_OP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "graph/graph.h"
#include "graph/op_role.h"

namespace penstock::graph {

class GraphBuilder;

// What happens to the results of an operator if a factor is split.
enum class FactorKind : uint8_t {
  kPassThrough,      // splitting it splits the work; nothing else
  kReduction,        // splitting it leaves the results partial with `reduction`
  kNeedReplication,  // may not be split when the kernel runs
  kPermutation,      // its elements move: where the rule has windows of it, its parts exchange what
                     // they lack; else treated as kNeedReplication
  kRoll,  // its parts move round: split wholly, over devices, they pass from one device to
          // another; else treated as kNeedReplication
};

// A factor is an index of the operator's iteration space. matmul f32[8,16] x f32[16,32] has the
// factors i=8 and j=32 (pass-through) and k=16 (reduction).
//
// A split reduction factor leaves partial exactly those results that do not contain it: the query
// sequence of attention_grad is a dimension of q, o, lse, do and of the result dq; the results dk
// and dv are sums over it. Where every result contains a factor, it is pass-through.
struct Factor {
  int64_t size = 1;                            // the extent of the index
  FactorKind kind = FactorKind::kPassThrough;  // what splitting it does
  Reduction reduction = Reduction::kSum;       // of kReduction: how partial results are combined
};

// Factors of each dimension, major first; their sizes multiply to the extent, where a minor-most
// one that needs replication may be rounded up (the keys in each of the parts of attention_parts).
// An empty list: the dimension follows no factor (it has size 1, or is not split ever).
using DimFactors = absl::InlinedVector<int, 2>;
using TensorFactors = std::vector<DimFactors>;  // of each dimension of a tensor

// How a part of the factor reads the operand: the dimension that follows the factor, and it alone,
// is then held in windows (graph/sharding.h). A factor that splits has a window of every operand
// that follows it and whose elements are not those of the factor.
struct OperandWindow {
  int operand = 0;  // index of the operand that is read
  int factor = 0;   // index of the factor that its dimension follows
  Window window;    // the elements that a part needs, relative to its own
};

// The sharding rule: an einsum-like map from every dimension of every operand and result to
// factors. Reshape f32[8] -> f32[2,4] has the factors a=2, b=4: the operand's dimension maps to
// [a, b], the result's to [a] and [b].
//
// `linear` lists groups of operands through which a sum-partial value passes: if exactly the
// operands of one group are partial over an axis, so are the results. add has the group {0, 1};
// mul has {0} and {1}; matmul has {0} and {1}; reshape has {0}.
//
// Windows. slice f32[8] -> f32[7] from 1 has one factor, a permutation, and the window {low = 1} of
// its operand: part p of the result needs the elements from one after where it begins itself. A
// convolution states {low = -padding, size = taps} of each dimension of its image.
struct ShardingRule {
  std::vector<Factor> factors;           // the indices of the iteration space
  std::vector<TensorFactors> operands;   // what each dimension of each operand follows
  std::vector<TensorFactors> results;    // likewise of all results, optional ones too
  std::vector<std::vector<int>> linear;  // groups of operands: see above
  std::vector<OperandWindow> windows;    // where parts read more than their own elements

  // An elementwise rule over `shape`: one pass-through factor a dimension; operands that are
  // scalars where the results are not follow no factor.
  static ShardingRule Elementwise(absl::Span<const TensorType> operands,
                                  absl::Span<const TensorType> results);
  // Appends a factor and returns its index.
  int AddFactor(int64_t size, FactorKind kind = FactorKind::kPassThrough,
                Reduction reduction = Reduction::kSum);
  // Null: the operand has the elements of the factor, or does not follow it.
  const Window* FindWindow(int operand, int factor) const;
  // Whether devices may split the factor: not one that has to be whole when the kernel runs. (One
  // that rolls may be split in one way only: see FactorKind.)
  bool MaySplit(int factor) const;
};

// How eagerly propagation applies an operator's rule ("op-priority"): elementwise and
// shape-preserving operators first.
enum class PropagationPriority : uint8_t {
  kFirst,         // elementwise and shape-preserving operators
  kFirstForward,  // as kFirst from operands to results, as kSecond back (dynamic slices)
  kSecond,        // all others
  kLast,          // as kSecond from results to operands, last of all forward (broadcast)
};

// Everything an Op sees of a node when it answers a question about it.
struct OpContext {
  const Attributes& attributes;           // those that were given, checked by CheckAttributes
  absl::Span<const TensorType> operands;  // of the operands, in order
  absl::Span<const TensorType> results;   // empty while types are inferred
};

// A factor and the number of equal parts that the mesh splits it into: part p of k of n covers
// [ceil(p n / k), ceil((p + 1) n / k)).
struct FactorSplit {
  int factor = 0;         // index into ShardingRule::factors
  int64_t num_parts = 1;  // of near-equal size
  // Of a pair of Op::PairedFactors: the other one, which the same axes split evenly into as many
  // parts; -1: the factor is split alone.
  int partner = -1;
  bool is_even = false;  // over devices alone, into parts of one size
};

// Work of one execution, for costs.
struct OpCost {
  double flops = 0;  // floating-point operations, as graph/ops/common.h counts them
  double bytes = 0;  // read and written, each operand and result once unless the op says otherwise
};

// One attribute that an operator takes.
struct AttrSpec {
  // The type of its value; kInts is a list of integers, kAny any of the others.
  enum class Kind : uint8_t { kInt, kDouble, kBool, kString, kDType, kInts, kAny };
  std::string_view name;     // as in the text format: "axes"
  Kind kind;                 // of the value
  bool is_required = false;  // whether a node without it is refused
};

// An operator: what a subclass answers is all that the planner knows of it. Kernels, which compute
// it on a kind of device, are found by its name (kernels/kernel.h).
class Op {
 public:
  virtual ~Op() = default;

  // The name in the text format and in registries, such as "matmul": letters, digits, _ and . of
  // ASCII.
  virtual std::string_view name() const = 0;
  // What the operator does beside computing; operators of users compute.
  virtual OpRole role() const { return OpRole::kCompute; }

  // The least number of operands.
  virtual int min_operands() const = 0;
  // The largest number of operands; -1: no bound.
  virtual int max_operands() const { return min_operands(); }
  // Results that a node must bind.
  virtual int num_results(const OpContext&) const { return 1; }
  // How many more it may bind, behind those.
  virtual int num_optional_results() const { return 0; }

  // The attributes that it takes; a node with any other one is refused.
  virtual std::vector<AttrSpec> attributes() const { return {}; }

  // The types of all results, optional ones last. Errors say what was expected and what came, in
  // words a user can act on; the caller (InferResultTypes) adds the operator's name. Operand counts
  // and attribute kinds have been checked.
  virtual absl::StatusOr<std::vector<TensorType>> InferTypes(const OpContext& context) const = 0;

  // True for operators whose result type is declared (input, parameter, state): InferTypes is not
  // called; the statement's type is taken.
  virtual bool has_declared_type() const { return false; }

  // Sets those attributes left out that the result type written in a statement tells: the shape and
  // dtype of "constant {value=0.0} : f32[4]". The parser calls it before types are inferred.
  virtual void CompleteAttributes(const TensorType& /*declared*/,
                                  Attributes& /*attributes*/) const {}

  // REQUIRES: the node verified. `results` holds the bound results only; the rule covers them all.
  virtual ShardingRule Rule(const OpContext& context) const = 0;

  // When propagation applies the rule; elementwise operators answer kFirst.
  virtual PropagationPriority propagation_priority() const { return PropagationPriority::kSecond; }

  // Whether Gradient may be called. Operators on integers or without a gradient: false, and
  // nothing flows back through them.
  virtual bool is_differentiable() const { return false; }

  // Optional results that the gradient needs bound in the forward node (e.g. the log-sum-exp of
  // attention): the gradient transformation rebuilds the node with this many optional results.
  virtual int num_residuals() const { return 0; }

  // Appends nodes that compute the gradient of each operand from those of the results (kNoValue:
  // that result has none; at least one has). Returns one value an operand, kNoValue where none
  // flows. `node` is a copy, as the graph grows; its values are those of the builder's graph.
  // `builder` marks the nodes as backward; gradients that only parameters need are moved to the W
  // phase by the transformation, so each operand's gradient is computed by nodes of its own where
  // sharing is not a win.
  virtual absl::StatusOr<std::vector<ValueId>> Gradient(GraphBuilder& builder, const Node& node,
                                                        absl::Span<const ValueId> grads) const;

  // Rewrites the node into others when a factor is to be split although the rule says
  // kNeedReplication: appends the replacement and returns its results.
  virtual absl::StatusOr<std::vector<ValueId>> Decompose(GraphBuilder& builder, const Node& node,
                                                         const FactorSplit& split) const;
  // Factors for which Decompose has an answer; any other is gathered.
  virtual std::vector<int> DecomposableFactors(const OpContext&) const { return {}; }
  // Pairs of a factor that may be split and one that needs replication, for which Decompose has an
  // answer if one list of axes splits both: queries and keys of one sequence. FactorSplit::factor
  // is then the second.
  virtual std::vector<std::pair<int, int>> PairedFactors(const OpContext&) const { return {}; }

  // The work of one device: of types that are tiles where the node is split. Collectives count what
  // a device reads and writes; their time is the planner's (planner/cost/communication_cost.h).
  // Defaults to no flops and the bytes of every operand and result.
  virtual OpCost Cost(const OpContext& context) const;

  // Of an optimiser: for each result, the operand whose next version it is and over which its
  // kernel may write it. Empty: none.
  virtual std::vector<int> updated_operands() const { return {}; }

  // Draws random numbers (has the attribute `stream`).
  virtual bool is_random() const { return false; }
};

// Refuses an attribute that the operator does not take (naming the nearest that it does), one of
// the wrong kind, and a missing required one. The message begins with the operator's name, as those
// of InferResultTypes do.
absl::Status CheckAttributes(const Op& op, const Attributes& attributes);

// Checks operand count and attributes and infers the types of all results, optional ones last.
// REQUIRES: the operator's type is not declared.
absl::StatusOr<std::vector<TensorType>> InferResultTypes(const Op& op, const Attributes& attributes,
                                                         absl::Span<const TensorType> operands);

// The operators of a program by name. Built by main() or an embedding application.
class OpRegistry {
 public:
  // An error if the name is taken.
  absl::Status Add(std::unique_ptr<const Op> op);
  const Op* Find(std::string_view name) const;  // null when unknown
  std::vector<std::string_view> Names() const;  // sorted

 private:
  absl::flat_hash_map<std::string, std::unique_ptr<const Op>> ops_;
};

// Every operator of graph/ops/.
OpRegistry BuiltinOps();

// The known name at the least edit distance (Levenshtein 1966), for "did you mean"; empty when none
// is near.
std::string NearestName(std::string_view name, absl::Span<const std::string_view> known);

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_OP_H_
