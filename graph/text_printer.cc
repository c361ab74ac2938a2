#include <charconv>
#include <cmath>

#include "base/strings.h"
#include "graph/text.h"
#include "graph/text_lexer.h"

namespace penstock::graph {
namespace {

// The shortest form that reads back as the same float and not as an integer: "0.1", "1.0", "1e-5".
std::string PrintDouble(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[32];
  const std::to_chars_result end = std::to_chars(buffer, buffer + sizeof(buffer), value);
  std::string text(buffer, end.ptr);
  const size_t exponent = text.find('e');
  if (exponent == std::string::npos) {
    return text.find('.') == std::string::npos ? text + ".0" : text;
  }
  // The standard library writes a sign and at least two digits: "1e-05", "1e+20".
  size_t digits = exponent + 1;
  if (text[digits] == '+') {
    text.erase(digits, 1);
  } else if (text[digits] == '-') {
    ++digits;
  }
  while (text[digits] == '0') text.erase(digits, 1);
  return text;
}

std::string PrintAttr(const AttrValue& value) {
  if (const int64_t* integer = value.AsInt()) return StrCat(*integer);
  if (const double* number = value.AsDouble()) return PrintDouble(*number);
  if (const bool* boolean = value.AsBool()) return *boolean ? "true" : "false";
  if (const std::string* string = value.AsString()) return Quote(*string);
  if (const DType* dtype = value.AsDType()) return std::string(Name(*dtype));
  std::string text = "[";
  for (const AttrValue& element : *value.AsList()) {
    StrAppend(&text, text.size() == 1 ? "" : ", ", PrintAttr(element));
  }
  return text + "]";
}

std::string PrintName(std::string_view name) {
  return IsPlainValueName(name) ? StrCat("%", name) : StrCat("%", Quote(name));
}

std::string_view Name(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kWeightBackward:
      return "weight_backward";
    case Phase::kUpdate:
      return "update";
  }
  return "";
}

bool IsPlainWord(std::string_view text) {
  return IsPlainValueName(text) && text.find('.') == std::string_view::npos &&
         (text[0] < '0' || text[0] > '9');
}

std::string PrintMesh(const Mesh& mesh) {
  std::string text = StrCat("mesh ", mesh.name, " = [");
  for (size_t i = 0; i < mesh.axes.size(); ++i) {
    const MeshAxis& axis = mesh.axes[i];
    StrAppend(&text, i == 0 ? "" : ", ", axis.name, "=", axis.size,
              axis.is_temporal ? " temporal" : "");
  }
  return text + "]";
}

}  // namespace

std::string PrintAttributes(const Attributes& attributes) {
  if (attributes.empty()) return "";
  std::string text;
  for (const auto& [name, value] : attributes.entries()) {
    StrAppend(&text, text.empty() ? "{" : ", ", name, "=", PrintAttr(value));
  }
  return text + "}";
}

std::string PrintNode(const Graph& graph, const Node& node) {
  std::string text;
  for (size_t i = 0; i < node.results.size(); ++i) {
    StrAppend(&text, i == 0 ? "" : ", ", PrintName(graph.value(node.results[i]).name));
  }
  StrAppend(&text, text.empty() ? "" : " = ", node.op->name());

  if (!node.operands.empty()) {
    for (size_t i = 0; i < node.operands.size(); ++i) {
      StrAppend(&text, i == 0 ? "(" : ", ", PrintName(graph.value(node.operands[i]).name));
    }
    text += ")";
  }
  if (!node.attributes.empty()) StrAppend(&text, " ", PrintAttributes(node.attributes));
  const Mesh none;
  const Mesh& mesh = MeshOf(graph, node, none);
  for (size_t i = 0; i < node.results.size(); ++i) {
    const Value& value = graph.value(node.results[i]);
    StrAppend(&text, i == 0 ? " : " : ", ", penstock::ToString(value.type));
    if (value.sharding.has_value()) StrAppend(&text, " ", ToString(mesh, *value.sharding));
  }
  if (graph.meshes().size() > 1) StrAppend(&text, " on ", mesh.name);
  if (node.stage >= 0) StrAppend(&text, " stage ", node.stage);
  if (node.phase != Phase::kForward) StrAppend(&text, " phase ", Name(node.phase));
  return text;
}

std::string PrintGraph(const Graph& graph) {
  std::string text;
  for (const Mesh& mesh : graph.meshes()) StrAppend(&text, PrintMesh(mesh), "\n");
  if (!text.empty()) text += "\n";
  StrAppend(&text, "graph ", IsPlainWord(graph.name()) ? graph.name() : Quote(graph.name()),
            " {\n");
  for (const Node& node : graph.nodes()) StrAppend(&text, "  ", PrintNode(graph, node), "\n");
  const Mesh none;
  for (size_t i = 0; i < graph.returns().size(); ++i) {
    const Return& returned = graph.returns()[i];
    const Value& value = graph.value(returned.value);
    StrAppend(&text, i == 0 ? "  return " : ", ", PrintName(value.name));
    if (returned.sharding.has_value()) {
      StrAppend(&text, " ",
                ToString(MeshOf(graph, graph.node(value.producer), none), *returned.sharding));
    }
  }
  return text + (graph.returns().empty() ? "}\n" : "\n}\n");
}

}  // namespace penstock::graph
