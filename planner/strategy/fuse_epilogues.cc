#include "planner/strategy/fuse_epilogues.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/ops/equation.h"
#include "planner/plan/recomputed_mark.h"
#include "planner/sharding/execution_sharding.h"

namespace penstock::planner {
namespace {

using graph::Attributes;
using graph::Graph;
using graph::kNoNode;
using graph::kNoValue;
using graph::Node;
using graph::NodeId;
using graph::OpRole;
using graph::Sharding;
using graph::ValueId;

// The indices of a product of two operands.
struct Equation {
  std::string left;
  std::string right;
  std::string result;

  std::string ToString() const { return StrCat(left, ",", right, "->", result); }
};

bool Has(std::string_view indices, char index) {
  return indices.find(index) != std::string_view::npos;
}

// The letters of `from` that are in `other`, or that are not.
std::string Common(std::string_view from, std::string_view other) {
  std::string common;
  for (char index : from) {
    if (Has(other, index)) common += index;
  }
  return common;
}
std::string Without(std::string_view from, std::string_view other) {
  std::string rest;
  for (char index : from) {
    if (!Has(other, index)) rest += index;
  }
  return rest;
}

// matmul as einsum writes it: leading dimensions A, B, ... and the matrices mk, kn and mn.
Equation MatmulEquation(const Graph& graph, const Node& node) {
  const size_t left_rank = graph.value(node.operands[0]).type.shape.size();
  const size_t right_rank = graph.value(node.operands[1]).type.shape.size();
  std::string leading;
  for (size_t i = 0; i + 2 < left_rank; ++i) leading += static_cast<char>('A' + i);
  const bool left_is_transposed = node.attributes.GetBool("transpose_a", false);
  const bool right_is_transposed = node.attributes.GetBool("transpose_b", false);
  return {StrCat(leading, left_is_transposed ? "km" : "mk"),
          StrCat(right_rank > 2 ? leading : "", right_is_transposed ? "nk" : "kn"),
          StrCat(leading, "mn")};
}

// None: the node is no product of two floats.
std::optional<Equation> ProductOf(const Graph& graph, const Node& node) {
  const std::string_view op = node.op->name();
  if (node.operands.size() != 2 || (op != "matmul" && op != "einsum")) return std::nullopt;
  if (!IsFloat(graph.value(node.operands[0]).type.dtype)) return std::nullopt;
  constexpr size_t kMostLeading = 'Z' - 'A';
  if (op == "matmul") {
    if (graph.value(node.operands[0]).type.shape.size() > kMostLeading) return std::nullopt;
    return MatmulEquation(graph, node);
  }
  const graph::ops::Equation equation = graph::ops::EquationOf(node.attributes);
  return Equation{equation.operands[0], equation.operands[1], equation.result};
}

bool IsTanhGelu(const Node& node) {
  return node.attributes.GetString("approximate", "tanh") == "tanh";
}

class Fuser {
 public:
  Fuser(const graph::OpRegistry& ops, const FusesStage& fuses, const Graph& in)
      : ops_(ops), in_(in), users_(in.Users()) {
    int last = 0;
    for (const Node& node : in.nodes()) last = std::max(last, node.stage);
    for (int stage = 0; stage <= last; ++stage) fuses_.push_back(fuses(in, stage));
  }

  absl::StatusOr<Graph> Run() {
    Find(/*with_bias_grads=*/true);
    if (std::optional<Graph> out = Copy(); out.has_value()) return *std::move(out);
    // Two gradients of biases would each have to come before the other, which no training step has:
    // they stay apart.
    Find(/*with_bias_grads=*/false);
    if (std::optional<Graph> out = Copy(); out.has_value()) return *std::move(out);
    return absl::InternalError("nodes that are joined would wait for each other");
  }

 private:
  // An operand of a node that is made anew: a value of the old graph, or what a product and its
  // bias make, of which the old graph has only the product.
  struct Source {
    ValueId value = kNoValue;
    bool is_biased = false;
  };
  // What becomes of a node.
  struct Fate {
    enum Kind : uint8_t {
      kKept,
      kReplaced,  // by a node with the operands `sources` and the results `results`
      kJoined,    // another node makes what it made
    };
    Kind kind = kKept;
    const graph::Op* op = nullptr;
    Attributes attributes = {};
    std::vector<Source> sources = {};
    std::vector<ValueId> results = {};
    NodeId joined = kNoNode;    // the node that is joined into this one
    ValueId biased = kNoValue;  // the product of which the biased one is a result, too
  };

  const Node& ProducerOf(ValueId value) const { return in_.node(in_.value(value).producer); }

  bool IsReturned(ValueId value) const {
    return std::any_of(in_.returns().begin(), in_.returns().end(),
                       [value](const graph::Return& ret) { return ret.value == value; });
  }

  bool Fuses(const Node& node) const {
    return fuses_[static_cast<size_t>(std::max(node.stage, 0))];
  }

  static bool AreTogether(const Node& one, const Node& other) {
    return one.stage == other.stage && one.mesh == other.mesh && one.phase == other.phase;
  }

  Sharding ShardingOf(ValueId value) const {
    const auto mesh = static_cast<size_t>(ProducerOf(value).mesh);
    if (mesh >= in_.meshes().size()) return {};
    return ClosedSharding(in_.meshes()[mesh], in_.value(value));
  }
  // Whether devices hold the same parts of both, and all of these parts' sums.
  bool LieTogether(ValueId one, ValueId other) const {
    const Sharding sharding = ShardingOf(one);
    return !sharding.is_partial() && sharding == ShardingOf(other);
  }

  // Whether both are the same parameter, perhaps converted or gathered once for each.
  bool AreSame(ValueId one, ValueId other) const {
    if (one == other) return true;
    const Node& a = ProducerOf(one);
    const Node& b = ProducerOf(other);
    const OpRole role = a.op->role();
    const bool only_moves =
        role == OpRole::kAllGather || role == OpRole::kLocalSlice || a.op->name() == "cast";
    return only_moves && a.op == b.op && a.attributes == b.attributes && a.mesh == b.mesh &&
           a.operands.size() == 1 && b.operands.size() == 1 &&
           ShardingOf(one) == ShardingOf(other) && AreSame(a.operands[0], b.operands[0]);
  }

  Attributes WithEquation(const Equation& equation, const Node& node) const {
    Attributes attributes = {{"equation", equation.ToString()}};
    if (const graph::AttrValue* mark = node.attributes.Find(kRecomputedMark); mark != nullptr) {
      attributes.Set(kRecomputedMark, *mark);
    }
    return attributes;
  }

  void Find(bool with_bias_grads) {
    fates_.assign(in_.num_nodes(), {});
    for (NodeId id = 0; id < in_.num_nodes(); ++id) JoinBias(id);
    for (NodeId id = 0; id < in_.num_nodes(); ++id) JoinGeluGrad(id);
    for (NodeId id = 0; with_bias_grads && id < in_.num_nodes(); ++id) JoinBiasGrad(id);
  }

  // A product, with the bias and the gelu that read it.
  void JoinBias(NodeId id) {
    const Node& product = in_.node(id);
    const std::optional<Equation> equation = ProductOf(in_, product);
    if (!equation.has_value() || !Fuses(product)) return;
    const ValueId value = product.results[0];
    if (in_.value(value).type.dtype != in_.value(product.operands[0]).type.dtype) return;
    const std::vector<NodeId>& users = users_[value];
    NodeId first = kNoNode;
    for (const NodeId user : users) {
      const Node& node = in_.node(user);
      const std::string_view op = node.op->name();
      const bool is_gelu = op == "bias_gelu" || op == "bias_gelu_grad";
      const bool is_alone = op == "bias_add" && users.size() == 1;
      if (!is_alone && !(is_gelu && IsTanhGelu(node))) return;
      if (node.operands[0] != value ||
          std::count(node.operands.begin(), node.operands.end(), value) != 1 ||
          node.stage != product.stage || node.mesh != product.mesh ||
          !AreSame(node.operands[1], in_.node(users[0]).operands[1])) {
        return;
      }
      if (first == kNoNode && op != "bias_gelu_grad" && node.phase == product.phase) first = user;
    }
    if (first == kNoNode || IsReturned(value)) return;
    const Node& node = in_.node(first);
    if (!LieTogether(value, node.results[0])) return;

    Fate& fate = fates_[first];
    fate.kind = Fate::kReplaced;
    fate.op = ops_.Find(node.op->name() == "bias_add" ? "einsum_bias" : "einsum_bias_gelu");
    fate.attributes = WithEquation(*equation, node);
    fate.sources = {{product.operands[0]}, {product.operands[1]}, {node.operands[1]}};
    fate.results = {node.results[0]};
    fate.joined = id;
    fates_[id].kind = Fate::kJoined;
    if (users.size() == 1) return;
    fate.biased = value;
    for (const NodeId user : users) {
      if (user != first) ReadBiased(user);
    }
  }

  // bias_gelu and its gradient at a product whose sum with the bias is there.
  void ReadBiased(NodeId id) {
    const Node& node = in_.node(id);
    Fate& fate = fates_[id];
    fate.kind = Fate::kReplaced;
    fate.op = ops_.Find(node.op->name() == "bias_gelu" ? "gelu" : "gelu_grad");
    fate.attributes = node.attributes;
    fate.sources = {{node.operands[0], true}};
    if (node.operands.size() > 2) fate.sources.push_back({node.operands[2]});
    fate.results = {node.results[0]};
  }

  // A gradient of gelu, with the product that it multiplies.
  void JoinGeluGrad(NodeId id) {
    const Node& node = in_.node(id);
    Fate& fate = fates_[id];
    const bool reads_biased = fate.kind == Fate::kReplaced && fate.op->name() == "gelu_grad";
    if (!reads_biased && (node.op->name() != "gelu_grad" || !IsTanhGelu(node))) return;
    const Source at = reads_biased ? fate.sources[0] : Source{node.operands[0]};
    const ValueId dy = node.operands.back();
    const NodeId id_of_product = in_.value(dy).producer;
    const Node& product = in_.node(id_of_product);
    const std::optional<Equation> equation = ProductOf(in_, product);
    if (!equation.has_value() || !Fuses(node) || !AreTogether(product, node) ||
        users_[dy].size() != 1 || at.value == dy || IsReturned(dy) ||
        in_.value(dy).type.dtype != in_.value(product.operands[0]).type.dtype ||
        !LieTogether(dy, node.results[0])) {
      return;
    }
    fate.kind = Fate::kReplaced;
    fate.op = ops_.Find("einsum_gelu_grad");
    fate.attributes = WithEquation(*equation, node);
    fate.sources = {{product.operands[0]}, {product.operands[1]}, at};
    fate.results = {node.results[0]};
    fate.joined = id_of_product;
    fates_[id_of_product].kind = Fate::kJoined;
  }

  // The gradient of a bias, with that of the weight beside it.
  void JoinBiasGrad(NodeId id) {
    const Node& sum = in_.node(id);
    if (sum.op->name() != "reduce_sum" || !Fuses(sum)) return;
    if (sum.attributes.GetBool("keepdims", false)) return;
    const ValueId dy = sum.operands[0];
    for (const NodeId user : users_[dy]) {
      const Node& product = in_.node(user);
      const std::optional<Equation> equation = ProductOf(in_, product);
      if (!equation.has_value() || fates_[user].kind != Fate::kKept || !AreTogether(product, sum) ||
          product.operands[0] == product.operands[1] ||
          in_.value(product.results[0]).type.dtype != in_.value(sum.results[0]).type.dtype) {
        continue;
      }
      const bool is_left = product.operands[0] == dy;
      const std::string& of_dy = is_left ? equation->left : equation->right;
      const std::string& of_x = is_left ? equation->right : equation->left;
      if (!IsWeightGrad(of_x, of_dy, equation->result) ||
          !SumsOver(sum, Without(of_dy, equation->result), of_dy)) {
        continue;
      }
      Fate& fate = fates_[user];
      fate.kind = Fate::kReplaced;
      fate.op = ops_.Find("einsum_bias_grad");
      fate.attributes = WithEquation({of_x, of_dy, equation->result}, product);
      if (const graph::AttrValue* dtype = product.attributes.Find("dtype"); dtype != nullptr) {
        fate.attributes.Set("dtype", *dtype);
      }
      fate.sources = {{product.operands[is_left ? 1 : 0]}, {dy}};
      fate.results = {product.results[0], sum.results[0]};
      fate.joined = id;
      fates_[id].kind = Fate::kJoined;
      return;
    }
  }

  // Whether the product has the indices of x and then those of dy, or the other way round, and is
  // summed over all that they share.
  static bool IsWeightGrad(const std::string& x, const std::string& dy, const std::string& result) {
    const std::string kept_x = Common(x, result);
    const std::string kept_dy = Common(dy, result);
    const std::string summed = Without(dy, result);
    return Common(kept_x, kept_dy).empty() && !kept_dy.empty() && !summed.empty() &&
           Without(Without(x, result), dy).empty() &&
           (result == kept_x + kept_dy || result == kept_dy + kept_x);
  }

  // Whether the node sums over the dimensions that `indices` of `all` name, and no others.
  bool SumsOver(const Node& sum, std::string_view indices, std::string_view all) const {
    std::string summed;
    for (int64_t axis : sum.attributes.GetInts("axes")) {
      if (axis < 0) axis += static_cast<int64_t>(all.size());
      summed += all[static_cast<size_t>(axis)];
    }
    return Without(summed, indices).empty() && Without(indices, summed).empty();
  }

  // None: nodes wait for each other.
  std::optional<Graph> Copy() {
    out_ = Graph(in_.name());
    out_.mutable_meshes() = in_.meshes();
    out_.ReserveNames(in_);
    now_.assign(in_.num_values(), kNoValue);
    biased_.assign(in_.num_values(), kNoValue);
    now_node_.assign(in_.num_nodes(), kNoNode);
    std::vector<NodeId> waiting;
    for (NodeId id = 0; id < in_.num_nodes(); ++id) {
      bool is_made = Make(id);
      if (!is_made) waiting.push_back(id);
      while (is_made && !waiting.empty()) {
        is_made = false;
        std::vector<NodeId> still;
        for (const NodeId other : waiting) {
          const bool is_ready = Make(other);
          is_made |= is_ready;
          if (!is_ready) still.push_back(other);
        }
        waiting = std::move(still);
      }
    }
    if (!waiting.empty()) return std::nullopt;
    for (const graph::Return& ret : in_.returns()) {
      out_.mutable_returns().push_back({now_[ret.value], ret.sharding});
    }
    return std::move(out_);
  }

  // False, with nothing done, if the node needs what is not made yet.
  bool Make(NodeId id) {
    const Fate& fate = fates_[id];
    if (fate.kind == Fate::kJoined) return true;
    Node node = in_.node(id);
    if (node.forward != kNoNode) {
      node.forward = now_node_[node.forward];
      if (node.forward == kNoNode) return false;
    }
    std::vector<Source> sources = fate.sources;
    std::vector<ValueId> results = fate.results;
    if (fate.kind == Fate::kKept) {
      for (const ValueId operand : node.operands) sources.push_back({operand});
      results.assign(node.results.begin(), node.results.end());
    } else {
      node.op = fate.op;
      node.attributes = fate.attributes;
    }
    node.operands.clear();
    for (const Source& source : sources) {
      const ValueId operand = source.is_biased ? biased_[source.value] : now_[source.value];
      if (operand == kNoValue) return false;
      node.operands.push_back(operand);
    }
    std::vector<TensorType> types;
    std::vector<std::string> names;
    for (const ValueId result : results) {
      types.push_back(in_.value(result).type);
      names.push_back(in_.value(result).name);
    }
    if (fate.biased != kNoValue) {
      types.push_back(in_.value(fate.biased).type);
      names.push_back(out_.UniqueName(StrCat(in_.value(fate.biased).name, ".biased")));
    }
    node.results.clear();
    const NodeId made = out_.AddTyped(std::move(node), types, names);
    now_node_[id] = made;
    if (fate.joined != kNoNode) now_node_[fate.joined] = made;
    for (size_t r = 0; r < results.size(); ++r) {
      now_[results[r]] = out_.node(made).results[r];
      out_.mutable_value(now_[results[r]]).sharding = in_.value(results[r]).sharding;
    }
    if (fate.biased != kNoValue) {
      biased_[fate.biased] = out_.node(made).results.back();
      out_.mutable_value(biased_[fate.biased]).sharding = in_.value(fate.biased).sharding;
    }
    return true;
  }

  const graph::OpRegistry& ops_;
  const Graph& in_;
  const std::vector<std::vector<NodeId>> users_;  // of values of in_
  std::vector<bool> fuses_;                       // by stage
  std::vector<Fate> fates_;                       // of nodes of in_
  Graph out_;
  std::vector<ValueId> now_;      // of values of in_: as made in out_
  std::vector<ValueId> biased_;   // likewise: their sum with the bias
  std::vector<NodeId> now_node_;  // of nodes of in_
};

}  // namespace

absl::Status FuseEpilogues(const graph::OpRegistry& ops, const FusesStage& fuses, Graph& graph) {
  ASSIGN_OR_RETURN(graph, Fuser(ops, fuses, graph).Run());
  return absl::OkStatus();
}

}  // namespace penstock::planner
