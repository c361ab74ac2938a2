#include "planner/strategy/fuse_epilogues.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
      : ops_(ops), in_(in), users_(in.Users()), fates_(in.num_nodes()) {
    int last = 0;
    for (const Node& node : in.nodes()) last = std::max(last, node.stage);
    for (int stage = 0; stage <= last; ++stage) fuses_.push_back(fuses(in, stage));
  }

  Graph Run() {
    for (NodeId id = 0; id < in_.num_nodes(); ++id) JoinBias(id);
    for (NodeId id = 0; id < in_.num_nodes(); ++id) JoinGeluGrad(id);
    for (NodeId id = 0; id < in_.num_nodes(); ++id) JoinAdd(id);
    Copy();
    return std::move(out_);
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
      kReplaced,  // by a node with the operands `sources`
      kJoined,    // another node makes what it made
    };
    Kind kind = kKept;
    const graph::Op* op = nullptr;
    Attributes attributes = {};
    std::vector<Source> sources = {};
    NodeId joined = kNoNode;    // the node that is joined into this one, which may have its own
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

  static Attributes WithEquation(const Equation& equation, const Node& node) {
    return WithMarkOf(node, {{"equation", equation.ToString()}});
  }

  static Attributes WithMarkOf(const Node& node, Attributes attributes) {
    if (const graph::AttrValue* mark = node.attributes.Find(kRecomputedMark); mark != nullptr) {
      attributes.Set(kRecomputedMark, *mark);
    }
    return attributes;
  }

  // A product, with the bias and the gelu that read it.
  void JoinBias(NodeId id) {
    const Node& product = in_.node(id);
    const std::optional<Equation> equation = ProductOf(in_, product);
    if (!equation.has_value() || !Fuses(product)) return;
    const ValueId value = product.results[0];
    if (in_.value(value).type.dtype != in_.value(product.operands[0]).type.dtype) return;
    const std::vector<NodeId>& users = users_[value];
    if (users.empty() || IsReturned(value)) return;
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
    }
    // The others read the biased product that it makes.
    const NodeId first = users[0];
    const Node& node = in_.node(first);
    if (node.op->name() == "bias_gelu_grad" || node.phase != product.phase ||
        !LieTogether(value, node.results[0])) {
      return;
    }

    Fate& fate = fates_[first];
    fate.kind = Fate::kReplaced;
    fate.op = ops_.Find(node.op->name() == "bias_add" ? "einsum_bias" : "einsum_bias_gelu");
    fate.attributes = WithEquation(*equation, node);
    fate.sources = {{product.operands[0]}, {product.operands[1]}, {node.operands[1]}};
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
    fate.joined = id_of_product;
    fates_[id_of_product].kind = Fate::kJoined;
  }

  // A sum of two tensors, with the node that makes the last of them.
  void JoinAdd(NodeId id) {
    const Node& node = in_.node(id);
    if (node.op->name() != "add" || !Fuses(node)) return;
    ValueId other = node.operands[0];
    ValueId term = node.operands[1];
    if (in_.value(other).producer > in_.value(term).producer) std::swap(other, term);
    const ValueId sum = node.results[0];
    const TensorType& type = in_.value(sum).type;
    const NodeId id_of_term = in_.value(term).producer;
    const Node& producer = in_.node(id_of_term);
    if (users_[term].size() != 1 || term == other || IsReturned(term) ||
        !AreTogether(producer, node) || in_.value(term).type != type ||
        in_.value(other).type != type || !LieTogether(sum, term) || !LieTogether(sum, other)) {
      return;
    }
    std::optional<Fate> fate = WithAddend(id_of_term, node);
    if (!fate.has_value()) return;
    fate->kind = Fate::kReplaced;
    fate->sources.push_back({other});
    fate->joined = id_of_term;
    fates_[id] = *std::move(fate);
    fates_[id_of_term].kind = Fate::kJoined;
  }

  // The operator that computes what the node does, and adds to it what is still missing: its last
  // operand. None: there is no such operator.
  std::optional<Fate> WithAddend(NodeId id, const Node& sum) const {
    const Node& node = in_.node(id);
    const std::string_view op = node.op->name();
    if (fates_[id].kind == Fate::kReplaced && op == "bias_add") {
      Fate fate = fates_[id];
      fate.attributes = WithMarkOf(sum, std::move(fate.attributes));
      return fate;
    }
    if (fates_[id].kind != Fate::kKept) return std::nullopt;
    Fate fate;
    for (const ValueId operand : node.operands) fate.sources.push_back({operand});
    if (op == "layer_norm_grad" || op == "rms_norm_grad") {
      if (static_cast<int>(node.operands.size()) == node.op->max_operands()) return std::nullopt;
      fate.op = node.op;
      fate.attributes = node.attributes;
      return fate;
    }
    const std::optional<Equation> equation = ProductOf(in_, node);
    if (!equation.has_value() || equation->result.empty() ||
        in_.value(node.operands[0]).type.dtype != in_.value(node.results[0]).type.dtype) {
      return std::nullopt;
    }
    fate.op = ops_.Find("einsum_bias");
    fate.attributes = WithEquation(*equation, sum);
    return fate;
  }

  void Copy() {
    out_ = Graph(in_.name());
    out_.mutable_meshes() = in_.meshes();
    out_.ReserveNames(in_);
    now_.assign(in_.num_values(), kNoValue);
    biased_.assign(in_.num_values(), kNoValue);
    now_node_.assign(in_.num_nodes(), kNoNode);
    for (NodeId id = 0; id < in_.num_nodes(); ++id) {
      if (fates_[id].kind != Fate::kJoined) Make(id);
    }
    for (const graph::Return& ret : in_.returns()) {
      out_.mutable_returns().push_back({now_[ret.value], ret.sharding});
    }
  }

  void Make(NodeId id) {
    const Fate& fate = fates_[id];
    const Node& old = in_.node(id);
    Node node = old;
    if (node.forward == kNoNode && fate.joined != kNoNode) {
      node.forward = in_.node(fate.joined).forward;
    }
    if (node.forward != kNoNode) node.forward = now_node_[node.forward];
    if (fate.kind == Fate::kKept) {
      for (ValueId& operand : node.operands) operand = now_[operand];
    } else {
      node.op = fate.op;
      node.attributes = fate.attributes;
      node.operands.clear();
      for (const Source& source : fate.sources) {
        node.operands.push_back(source.is_biased ? biased_[source.value] : now_[source.value]);
      }
    }
    std::vector<TensorType> types = in_.ResultTypes(old);
    std::vector<std::string> names;
    for (const ValueId result : old.results) names.push_back(in_.value(result).name);
    if (fate.biased != kNoValue) {
      types.push_back(in_.value(fate.biased).type);
      names.push_back(out_.UniqueName(StrCat(in_.value(fate.biased).name, ".biased")));
    }
    node.results.clear();
    const NodeId made = out_.AddTyped(std::move(node), types, names);
    now_node_[id] = made;
    for (NodeId n = fate.joined; n != kNoNode; n = fates_[n].joined) now_node_[n] = made;
    for (size_t r = 0; r < old.results.size(); ++r) {
      now_[old.results[r]] = out_.node(made).results[r];
      out_.mutable_value(now_[old.results[r]]).sharding = in_.value(old.results[r]).sharding;
    }
    if (fate.biased != kNoValue) {
      biased_[fate.biased] = out_.node(made).results.back();
      out_.mutable_value(biased_[fate.biased]).sharding = in_.value(fate.biased).sharding;
    }
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
  graph = Fuser(ops, fuses, graph).Run();
  return absl::OkStatus();
}

}  // namespace penstock::planner
