#include "tests/support/tested_plugin.h"

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "absl/status/statusor.h"

#include "base/strings.h"
#include "graph/text.h"
#include "penstock/load_plugin.h"

namespace penstock::testing {
namespace {

std::string FromEnvironment(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

[[noreturn]] void Fail(std::string_view message) {
  std::cerr << "PENSTOCK_TEST_PLUGIN: " << message << std::endl;
  std::exit(2);
}

}  // namespace

std::string PluginUnderTest() { return FromEnvironment("PENSTOCK_TEST_PLUGIN"); }

bool HasPluginUnderTest() { return !PluginUnderTest().empty(); }

Registries TestedRegistries() {
  Registries registries = BuiltinRegistries();
  if (!HasPluginUnderTest()) return registries;
  const absl::Status loaded = LoadPlugin(PluginUnderTest(), registries);
  if (!loaded.ok()) Fail(ToStd(loaded.message()));
  return registries;
}

std::vector<OpCase> PluginOpCases() {
  const Registries registries = TestedRegistries();
  const graph::OpRegistry builtin = graph::BuiltinOps();
  const std::string path = FromEnvironment("PENSTOCK_TEST_PLUGIN_CASES");
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const absl::StatusOr<graph::Graph> graph = graph::ParseGraph(text, path, registries.ops);
  if (!graph.ok()) Fail(ToStd(graph.status().message()));
  std::vector<OpCase> cases;
  for (const graph::Node& node : graph->nodes()) {
    if (builtin.Find(node.op->name()) != nullptr) continue;
    OpCase& test = cases.emplace_back();
    test.op = node.op->name();
    test.attributes = node.attributes;
    for (const TensorType& type : graph->OperandTypes(node)) test.operands.push_back({type});
  }
  if (cases.empty()) Fail(StrCat(path, ": no statement has an operator of the plug-in"));
  return cases;
}

}  // namespace penstock::testing
