#include "planner/sharding/widen_sums.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/half.h"
#include "base/strings.h"

namespace penstock::planner {
namespace {

using graph::Graph;
using graph::kNoNode;
using graph::kNoValue;
using graph::Node;
using graph::NodeId;
using graph::OpRole;
using graph::Value;
using graph::ValueId;

// Whether the operator can give a sum in another type than that of its terms.
bool CanWiden(const graph::Op& op) {
  const std::vector<graph::AttrSpec> specs = op.attributes();
  return std::any_of(specs.begin(), specs.end(),
                     [](const graph::AttrSpec& spec) { return spec.name == "dtype"; });
}

class SumWidener {
 public:
  SumWidener(const graph::OpRegistry& ops, const Graph& in)
      : cast_(*ops.Find("cast")), in_(in), out_(in.name()) {
    out_.mutable_meshes() = in.meshes();
    out_.ReserveNames(in);
  }

  Graph Run() {
    FindParts();
    FindWideValues();
    narrow_.assign(in_.num_values(), kNoValue);
    wide_.assign(in_.num_values(), kNoValue);
    for (const Node& node : in_.nodes()) Copy(node);
    for (const graph::Return& ret : in_.returns()) {
      out_.mutable_returns().push_back({Narrow(ret.value), ret.sharding});
    }
    return std::move(out_);
  }

 private:
  // Parts in 16 bits of sums that the program does not round itself.
  void FindParts() {
    std::vector<bool> is_rounded(in_.num_values(), false);
    is_part_.assign(in_.num_values(), false);
    for (const Node& node : in_.nodes()) {
      for (const ValueId result : node.results) {
        is_rounded[result] = node.op == &cast_ ||
                             (node.op->role() == OpRole::kReshard && is_rounded[node.operands[0]]);
        const Value& value = in_.value(result);
        is_part_[result] = IsHalf(value.type.dtype) && !is_rounded[result] &&
                           value.sharding.has_value() && value.sharding->is_partial() &&
                           std::all_of(value.sharding->partials.begin(),
                                       value.sharding->partials.end(), [](const auto& partial) {
                                         return partial.reduction == graph::Reduction::kSum;
                                       });
      }
    }
  }

  // From the last node on: a part is f32 if what is made of it is.
  void FindWideValues() {
    const std::vector<std::vector<NodeId>> users = in_.Users();
    is_wide_.assign(in_.num_values(), false);
    for (NodeId id = in_.num_nodes(); id-- > 0;) {
      const Node& node = in_.node(id);
      if (node.results.size() != 1) continue;
      const ValueId result = node.results[0];
      if (!is_part_[result] || users[result].empty()) continue;
      if (node.op->role() == OpRole::kReshard || !(CanWiden(*node.op) || PassesParts(node))) {
        continue;
      }
      is_wide_[result] = std::all_of(users[result].begin(), users[result].end(), [&](NodeId user) {
        const Node& reader = in_.node(user);
        return reader.op->role() == OpRole::kReshard ||
               (PassesParts(reader) && is_wide_[reader.results[0]]);
      });
    }
  }

  // Whether all that the node reads are parts, and so is what it makes of them: a sum of two
  // gradients, or a reshape.
  bool PassesParts(const Node& node) const {
    return node.results.size() == 1 && is_part_[node.results[0]] && !node.operands.empty() &&
           !CanWiden(*node.op) &&
           std::all_of(node.operands.begin(), node.operands.end(),
                       [&](ValueId operand) { return is_part_[operand]; });
  }

  void Copy(const Node& node) {
    const bool is_reduced = node.op->role() == OpRole::kReshard && is_part_[node.operands[0]];
    const bool is_wide = is_reduced || (node.results.size() == 1 && is_wide_[node.results[0]]);
    const bool takes_wide = is_wide && (is_reduced || PassesParts(node));
    Node copy = node;
    for (ValueId& operand : copy.operands) operand = takes_wide ? Wide(operand) : Narrow(operand);
    if (is_wide && !takes_wide) copy.attributes.Set("dtype", DType::kF32);
    if (copy.forward != kNoNode) copy.forward = now_node_[copy.forward];
    copy.results.clear();
    std::vector<TensorType> types = in_.ResultTypes(node);
    if (is_wide) types[0].dtype = DType::kF32;
    std::vector<std::string> names;
    for (const ValueId result : node.results) {
      const std::string& name = in_.value(result).name;
      names.push_back(is_reduced ? out_.UniqueName(StrCat(name, ".f32")) : name);
    }
    const NodeId id = out_.AddTyped(std::move(copy), types, names);
    now_node_.push_back(id);
    for (size_t r = 0; r < node.results.size(); ++r) {
      const ValueId old = node.results[r];
      const ValueId made = out_.node(id).results[r];
      out_.mutable_value(made).sharding = in_.value(old).sharding;
      (is_wide ? wide_ : narrow_)[old] = made;
    }
    if (is_reduced && !is_part_[node.results[0]]) Narrow(node.results[0]);
  }

  // The value in its own type.
  ValueId Narrow(ValueId old) {
    if (narrow_[old] == kNoValue) {
      const Value& value = in_.value(old);
      const bool is_free = out_.FindValue(value.name) == kNoValue;
      narrow_[old] =
          Cast(wide_[old], value.type.dtype, is_free ? value.name : out_.UniqueName(value.name));
    }
    return narrow_[old];
  }

  // The value in f32.
  ValueId Wide(ValueId old) {
    if (wide_[old] == kNoValue) {
      wide_[old] =
          Cast(narrow_[old], DType::kF32, out_.UniqueName(StrCat(in_.value(old).name, ".f32")));
    }
    return wide_[old];
  }

  ValueId Cast(ValueId value, DType dtype, const std::string& name) {
    const Node& producer = out_.node(out_.value(value).producer);
    Node cast;
    cast.op = &cast_;
    cast.attributes.Set("dtype", dtype);
    cast.operands = {value};
    cast.mesh = producer.mesh;
    cast.stage = producer.stage;
    cast.phase = producer.phase;
    cast.forward = producer.forward;
    cast.location = producer.location;
    const TensorType type = {dtype, out_.value(value).type.shape};
    const std::optional<graph::Sharding> sharding = out_.value(value).sharding;
    const NodeId id = out_.AddTyped(std::move(cast), {type}, {name});
    const ValueId made = out_.node(id).results[0];
    out_.mutable_value(made).sharding = sharding;
    return made;
  }

  const graph::Op& cast_;
  const Graph& in_;
  Graph out_;
  // Of values of in_.
  std::vector<bool> is_part_;     // of a sum, in 16 bits
  std::vector<bool> is_wide_;     // made in f32
  std::vector<ValueId> narrow_;   // as made in out_, in its own type
  std::vector<ValueId> wide_;     // likewise, in f32
  std::vector<NodeId> now_node_;  // of nodes of in_
};

}  // namespace

absl::Status WidenSums(const graph::OpRegistry& ops, Graph& graph) {
  graph = SumWidener(ops, graph).Run();
  return absl::OkStatus();
}

}  // namespace penstock::planner
