#include "planner/strategy/mixed_precision.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

#include "base/half.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::planner {
namespace {

using graph::Graph;
using graph::kNoNode;
using graph::kNoValue;
using graph::Node;
using graph::NodeId;
using graph::OpRole;
using graph::Phase;
using graph::ValueId;

enum class Kind : uint8_t { kLow, kFollow, kSum, kFull };

struct Rule {
  std::string_view op;
  Kind kind;
  // Operands that are f32 whatever the others are, a bit each.
  uint32_t f32_operands = 0;

  bool KeepsF32(size_t operand) const { return operand < 32 && (f32_operands >> operand & 1) != 0; }
};

constexpr uint32_t Bits(std::initializer_list<int> operands) {
  uint32_t bits = 0;
  for (int operand : operands) bits |= 1u << operand;
  return bits;
}

// Operators that are not listed are full.
constexpr Rule kRules[] = {
    // Products.
    {"matmul", Kind::kLow},
    {"einsum", Kind::kLow},
    {"einsum_bias", Kind::kLow},
    {"einsum_bias_gelu", Kind::kLow},
    {"einsum_gelu_grad", Kind::kLow},
    {"conv2d", Kind::kLow},
    {"conv2d_input_grad", Kind::kLow},
    {"conv2d_weight_grad", Kind::kLow},
    // Attention; the log-sum-exp is f32.
    {"attention", Kind::kLow},
    {"attention_grad", Kind::kLow, Bits({4})},
    {"qkv_attention", Kind::kLow},
    {"qkv_attention_grad", Kind::kLow, Bits({2})},
    // Norms; statistics are f32.
    {"layer_norm", Kind::kLow},
    {"layer_norm_grad", Kind::kLow, Bits({3, 4})},
    {"layer_norm_weight_grad", Kind::kLow, Bits({2, 3})},
    {"rms_norm", Kind::kLow},
    {"rms_norm_grad", Kind::kLow, Bits({3})},
    {"rms_norm_weight_grad", Kind::kLow, Bits({2})},
    {"batch_norm", Kind::kLow},
    {"batch_norm_inference", Kind::kLow, Bits({3, 4})},
    {"batch_norm_grad", Kind::kLow, Bits({3, 4, 5, 6})},
    {"batch_norm_weight_grad", Kind::kLow, Bits({2, 3})},
    // Losses are f32.
    {"cross_entropy", Kind::kLow},
    {"cross_entropy_grad", Kind::kLow, Bits({2, 3, 4})},
    // Tables and routes.
    {"embedding", Kind::kLow},
    {"embedding_grad", Kind::kLow},
    {"dispatch", Kind::kFollow},
    {"combine", Kind::kLow},
    {"combine_weight_grad", Kind::kLow},
    // Elementwise.
    {"add", Kind::kFollow},
    {"sub", Kind::kFollow},
    {"mul", Kind::kFollow},
    {"neg", Kind::kFollow},
    {"abs", Kind::kFollow},
    {"max", Kind::kFollow},
    {"min", Kind::kFollow},
    {"square", Kind::kFollow},
    {"bias_add", Kind::kFollow},
    {"bias_gelu", Kind::kFollow},
    {"bias_gelu_grad", Kind::kFollow},
    {"gelu", Kind::kFollow},
    {"gelu_grad", Kind::kFollow},
    {"relu", Kind::kFollow},
    {"sigmoid", Kind::kFollow},
    {"silu", Kind::kFollow},
    {"tanh", Kind::kFollow},
    {"greater", Kind::kFollow},  // which the gradient of relu reads
    {"dropout", Kind::kFollow},
    {"rotary", Kind::kFollow},
    {"where", Kind::kFollow},
    // Moves.
    {"broadcast", Kind::kFollow},
    {"concat", Kind::kFollow},
    {"copy", Kind::kFollow},
    {"pad", Kind::kFollow},
    {"reshape", Kind::kFollow},
    {"roll", Kind::kFollow},
    {"slice", Kind::kFollow},
    {"split", Kind::kFollow},
    {"transpose", Kind::kFollow},
    {"avg_pool2d", Kind::kFollow},
    {"avg_pool2d_grad", Kind::kFollow},
    {"max_pool2d", Kind::kFollow},
    {"max_pool2d_grad", Kind::kFollow},
    // Sums.
    {"reduce_sum", Kind::kSum},
    {"reduce_mean", Kind::kSum},
};

Rule RuleOf(const Node& node, bool residuals_in_f32) {
  const Rule full = {"", Kind::kFull};
  if (node.phase == Phase::kUpdate) return full;
  const std::string_view name = node.op->name();
  const bool is_residual =
      name == "embedding" || name.starts_with("layer_norm") || name.starts_with("rms_norm");
  if (residuals_in_f32 && is_residual) return full;
  const auto* found = std::find_if(std::begin(kRules), std::end(kRules),
                                   [name](const Rule& rule) { return rule.op == name; });
  return found == std::end(kRules) ? full : *found;
}

bool HasSumDType(const Node& node) {
  const std::vector<graph::AttrSpec> specs = node.op->attributes();
  return std::any_of(specs.begin(), specs.end(),
                     [](const graph::AttrSpec& spec) { return spec.name == "dtype"; });
}

bool IsF32(const TensorType& type) { return type.dtype == DType::kF32; }

class Mixer {
 public:
  Mixer(const graph::OpRegistry& ops, DType dtype, bool residuals_in_f32, const Graph& in)
      : cast_(*ops.Find("cast")),
        dtype_(dtype),
        residuals_in_f32_(residuals_in_f32),
        in_(in),
        out_(in.name()) {
    out_.mutable_meshes() = in.meshes();
    out_.ReserveNames(in);
  }

  absl::StatusOr<Graph> Run() {
    FindReaders();
    for (NodeId id = 0; id < in_.num_nodes(); ++id) RETURN_IF_ERROR(Copy(id));
    for (const graph::Return& ret : in_.returns()) {
      const ValueId value = As(in_.value(ret.value).type.dtype, ret.value, in_.num_nodes() - 1);
      out_.mutable_returns().push_back({value, ret.sharding});
    }
    PlaceCasts();
    return std::move(out_);
  }

 private:
  // Which values only readers in f32 have: from the last node on, as a sum of two gradients of a
  // weight is one if its own readers are.
  void FindReaders() {
    wants_f32_.assign(in_.num_values(), true);
    std::vector<bool> is_read(in_.num_values(), false);
    for (const graph::Return& ret : in_.returns()) is_read[ret.value] = true;
    for (NodeId id = in_.num_nodes(); id-- > 0;) {
      const Node& node = in_.node(id);
      for (const ValueId result : node.results) {
        wants_f32_[result] = wants_f32_[result] && is_read[result];
      }
      const Rule rule = RuleOf(node, residuals_in_f32_);
      const bool follows_f32 = rule.kind == Kind::kFollow &&
                               std::all_of(node.results.begin(), node.results.end(),
                                           [&](ValueId result) { return wants_f32_[result]; });
      for (size_t o = 0; o < node.operands.size(); ++o) {
        const ValueId operand = node.operands[o];
        is_read[operand] = true;
        if (rule.kind == Kind::kFull || follows_f32 || rule.KeepsF32(o)) continue;
        wants_f32_[operand] = false;
      }
    }
  }

  // Whether a value can be had in 16 bits without loss of what it is computed for.
  bool IsLow(ValueId value) const { return out_.value(now_[value]).type.dtype == dtype_; }

  OpRole RoleOf(ValueId value) const { return in_.node(in_.value(value).producer).op->role(); }

  // Whether a node of the kind kFollow computes in 16 bits. Parameters, constants and scalars go
  // with what else there is.
  bool FollowsLow(const Node& node) const {
    bool any = false;
    for (const ValueId operand : node.operands) {
      const TensorType& type = in_.value(operand).type;
      if (!IsF32(type)) continue;
      if (IsLow(operand) || RoleOf(operand) == OpRole::kParameter) {
        any = true;
      } else if (RoleOf(operand) != OpRole::kConstant && !type.shape.empty()) {
        return false;
      }
    }
    return any;
  }

  // A graph of other floats than f32 is left as it is.
  bool MayBeLow(const Node& node) const {
    bool any = false;
    for (const ValueId operand : node.operands) {
      const DType dtype = in_.value(operand).type.dtype;
      if (IsFloat(dtype) && dtype != DType::kF32) return false;
      any = any || dtype == DType::kF32;
    }
    return any;
  }

  absl::Status Copy(NodeId id) {
    const Node& node = in_.node(id);
    const Rule rule = RuleOf(node, residuals_in_f32_);
    const bool is_low = MayBeLow(node) && (rule.kind == Kind::kLow ||
                                           (rule.kind == Kind::kFollow && FollowsLow(node)));
    // A cast takes whatever there is.
    const bool takes_any = (rule.kind == Kind::kSum && MayBeLow(node)) || node.op->name() == "cast";
    Node copy = node;
    for (size_t o = 0; o < node.operands.size(); ++o) {
      const DType made = in_.value(node.operands[o]).type.dtype;
      if (takes_any && !(rule.kind == Kind::kSum && o > 0)) {
        copy.operands[o] = now_[node.operands[o]];
      } else {
        const bool casts = is_low && made == DType::kF32 && !rule.KeepsF32(o);
        copy.operands[o] = As(casts ? dtype_ : made, node.operands[o], id);
      }
    }
    const bool sums_f32 =
        rule.kind == Kind::kSum || (is_low && !node.results.empty() &&
                                    std::all_of(node.results.begin(), node.results.end(),
                                                [&](ValueId r) { return wants_f32_[r]; }));
    const std::vector<TensorType> operands = out_.OperandTypes(copy);
    if (sums_f32 && !operands.empty() && operands[0].dtype == dtype_ && HasSumDType(node)) {
      copy.attributes.Set("dtype", DType::kF32);
    }
    if (copy.forward != kNoNode) copy.forward = now_node_[copy.forward];
    std::vector<TensorType> types = in_.ResultTypes(node);
    if (!node.op->has_declared_type() && operands != in_.OperandTypes(node)) {
      ASSIGN_OR_RETURN(const std::vector<TensorType> inferred,
                       graph::InferResultTypes(*node.op, copy.attributes, operands));
      types.assign(inferred.begin(), inferred.begin() + static_cast<int64_t>(types.size()));
    }
    std::vector<std::string> names;
    for (const ValueId result : node.results) names.push_back(in_.value(result).name);
    copy.results.clear();
    const NodeId made = out_.AddTyped(std::move(copy), types, names);
    now_node_.push_back(made);
    now_.resize(in_.num_values(), kNoValue);
    for (size_t r = 0; r < node.results.size(); ++r) {
      const ValueId result = out_.node(made).results[r];
      now_[node.results[r]] = result;
      out_.mutable_value(result).sharding = in_.value(node.results[r]).sharding;
    }
    return absl::OkStatus();
  }

  // The value of the old graph as `dtype`, for a reader of the old graph.
  ValueId As(DType dtype, ValueId old, NodeId reader) {
    const ValueId value = now_[old];
    if (out_.value(value).type.dtype == dtype) return value;
    const auto [it, is_new] = casts_.try_emplace(old, kNoValue);
    if (!is_new) return it->second;
    const Node& producer = out_.node(out_.value(value).producer);
    Node cast;
    cast.op = &cast_;
    cast.attributes.Set("dtype", dtype);
    for (const char* attribute : {"per_use", "recompute"}) {
      const graph::AttrValue* set = producer.attributes.Find(attribute);
      if (set != nullptr) cast.attributes.Set(attribute, *set);
    }
    cast.operands = {value};
    cast.mesh = producer.mesh;
    cast.stage = producer.stage;
    cast.phase = producer.phase;
    cast.location = producer.location;
    // Of what the backward pass makes; of what it reads, see PlaceCasts.
    cast.forward = producer.forward;
    if (cast.forward == kNoNode && in_.node(reader).forward != kNoNode) {
      cast.forward = now_node_[in_.node(reader).forward];
    }
    const TensorType type = {dtype, out_.value(value).type.shape};
    const std::string names[] = {
        out_.UniqueName(absl::StrCat(out_.value(value).name, ".", ToAbsl(Name(dtype))))};
    const std::optional<graph::Sharding> sharding = out_.value(value).sharding;
    const NodeId id = out_.AddTyped(std::move(cast), {&type, 1}, names);
    it->second = out_.node(id).results[0];
    out_.mutable_value(it->second).sharding = sharding;
    return it->second;
  }

  // What the forward pass makes is cast in the phase of its first reader, so that nothing is kept
  // for longer. But nothing of the backward pass may flow to a later stage.
  void PlaceCasts() {
    const std::vector<std::vector<NodeId>> users = out_.Users();
    for (const auto& [old, value] : casts_) {
      Node& cast = out_.mutable_node(out_.value(value).producer);
      std::optional<Phase> first;
      bool flows_on = false;
      for (const NodeId user : users[value]) {
        const Node& reader = out_.node(user);
        first = first.has_value() ? std::min(*first, reader.phase) : reader.phase;
        flows_on |= reader.stage > cast.stage;
      }
      const bool may_move = first.has_value() && *first != Phase::kUpdate && !flows_on;
      if (cast.phase == Phase::kForward && may_move) cast.phase = *first;
      if (cast.phase == Phase::kForward || cast.phase == Phase::kUpdate) cast.forward = kNoNode;
    }
  }

  const graph::Op& cast_;
  const DType dtype_;
  const bool residuals_in_f32_;
  const Graph& in_;
  Graph out_;
  std::vector<bool> wants_f32_;                  // of values of in_
  std::vector<ValueId> now_;                     // likewise: as made in out_
  std::vector<NodeId> now_node_;                 // of nodes of in_
  absl::flat_hash_map<ValueId, ValueId> casts_;  // of values of in_: in the other type
};

}  // namespace

absl::Status MixPrecision(const graph::OpRegistry& ops, DType dtype, Graph& graph,
                          bool residuals_in_f32) {
  if (!IsHalf(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("mixed precision in ", ToAbsl(Name(dtype)), ": expected bf16 or f16"));
  }
  ASSIGN_OR_RETURN(graph, Mixer(ops, dtype, residuals_in_f32, graph).Run());
  return absl::OkStatus();
}

}  // namespace penstock::planner
