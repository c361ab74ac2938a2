#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "graph/text.h"

namespace penstock::graph {
namespace {

// What is compared of a sharding: no sharding means every dimension open, priority 0 is the
// default, and sub-axes are joined.
Sharding Normalize(const Mesh& mesh, const std::optional<Sharding>& sharding, size_t rank) {
  if (!sharding.has_value()) return Sharding::Open(static_cast<int>(rank));
  Sharding normal = *sharding;
  for (DimSharding& dim : normal.dims) {
    if (dim.priority == 0) dim.priority = std::nullopt;
  }
  Canonicalize(mesh, &normal);
  return normal;
}

class Comparison {
 public:
  Comparison(const Graph& a, const Graph& b) : a_(a), b_(b) {}

  bool Run() {
    if (a_.name() != b_.name()) {
      return Differ(StrCat("the graphs are named ", a_.name(), " and ", b_.name()));
    }
    if (a_.meshes() != b_.meshes()) return Differ("the meshes differ");
    if (a_.num_values() != b_.num_values()) {
      return Differ(StrCat("there are ", a_.num_values(), " and ", b_.num_values(), " values",
                           NameOnlyIn(a_, b_, " first"), NameOnlyIn(b_, a_, " second")));
    }
    for (const Node& node : a_.nodes()) {
      if (!node.results.empty() && !HasEqual(node)) return false;
    }
    return EffectsEqual() && ReturnsEqual();
  }

  const std::string& difference() const { return difference_; }

 private:
  bool Differ(std::string difference) {
    difference_ = std::move(difference);
    return false;
  }

  static std::string NameOnlyIn(const Graph& graph, const Graph& other, std::string_view which) {
    for (ValueId id = 0; id < graph.num_values(); ++id) {
      const std::string& name = graph.value(id).name;
      if (other.FindValue(name) == kNoValue) return StrCat("; %", name, " is only in the", which);
    }
    return "";
  }

  bool HasEqual(const Node& node) {
    const std::string& name = a_.value(node.results[0]).name;
    const ValueId twin = b_.FindValue(name);
    if (twin == kNoValue) return Differ(StrCat("%", name, " is only in the first"));
    const Node& other = b_.node(b_.value(twin).producer);
    if (Key(a_, node) == Key(b_, other)) return true;
    return Differ(StrCat("%", name, ": ", PrintNode(a_, node), " and ", PrintNode(b_, other)));
  }

  // Nodes are equal exactly when their keys are: the statement with its shardings normalized.
  std::string Key(const Graph& graph, const Node& node) const {
    const Mesh& mesh = MeshOf(graph, node, none_);
    std::string key = StrCat(PrintUnsharded(graph, node), " ", mesh.name, " ", node.stage, " ",
                             static_cast<int>(node.phase));
    for (ValueId id : node.results) {
      const Value& value = graph.value(id);
      StrAppend(&key, "; ",
                ToString(mesh, Normalize(mesh, value.sharding, value.type.shape.size())));
    }
    return key;
  }

  static std::string PrintUnsharded(const Graph& graph, const Node& node) {
    std::string text = StrCat(node.op->name(), "(");
    for (ValueId id : node.operands) StrAppend(&text, "%", graph.value(id).name, ", ");
    StrAppend(&text, ") ", PrintAttributes(node.attributes), " -> ");
    for (ValueId id : node.results) {
      const Value& value = graph.value(id);
      StrAppend(&text, "%", value.name, ": ", penstock::ToString(value.type), ", ");
    }
    return text;
  }

  // Statements without results, such as assign, as a multiset.
  bool EffectsEqual() {
    std::vector<std::string> first = Effects(a_);
    std::vector<std::string> second = Effects(b_);
    if (first == second) return true;
    const auto [x, y] = std::mismatch(first.begin(), first.end(), second.begin(), second.end());
    const bool is_in_first = x != first.end() && (y == second.end() || *x < *y);
    return Differ(
        StrCat("only in the ", is_in_first ? "first: " : "second: ", is_in_first ? *x : *y));
  }

  std::vector<std::string> Effects(const Graph& graph) const {
    std::vector<std::string> effects;
    for (const Node& node : graph.nodes()) {
      if (node.results.empty()) effects.push_back(Key(graph, node));
    }
    std::sort(effects.begin(), effects.end());
    return effects;
  }

  bool ReturnsEqual() {
    if (a_.returns().size() != b_.returns().size()) {
      return Differ(
          StrCat("there are ", a_.returns().size(), " and ", b_.returns().size(), " returns"));
    }
    for (size_t i = 0; i < a_.returns().size(); ++i) {
      const std::string first = PrintReturn(a_, a_.returns()[i]);
      const std::string second = PrintReturn(b_, b_.returns()[i]);
      if (first != second) return Differ(StrCat("return ", i, ": ", first, " and ", second));
    }
    return true;
  }

  std::string PrintReturn(const Graph& graph, const Return& returned) const {
    const Value& value = graph.value(returned.value);
    const Mesh& mesh = MeshOf(graph, graph.node(value.producer), none_);
    return StrCat("%", value.name, " ",
                  ToString(mesh, Normalize(mesh, returned.sharding, value.type.shape.size())));
  }

  const Graph& a_;
  const Graph& b_;
  Mesh none_;
  std::string difference_;
};

}  // namespace

bool GraphsEqual(const Graph& a, const Graph& b, std::string* difference) {
  Comparison comparison(a, b);
  const bool are_equal = comparison.Run();
  if (difference != nullptr) *difference = comparison.difference();
  return are_equal;
}

}  // namespace penstock::graph
