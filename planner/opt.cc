#include "planner/opt.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/gradients.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "planner/compile.h"
#include "planner/sharding/propagate.h"
#include "planner/strategy/directions.h"
#include "planner/strategy/mixed_precision.h"

namespace penstock::planner {
namespace {

Pass PropagatePass(std::string name, PropagationLevel level) {
  return {std::move(name), [level](graph::Graph& graph) { return Propagate(level, &graph); }};
}

absl::Status DifferentiateInPlace(const graph::OpRegistry& ops, graph::Graph& graph) {
  ASSIGN_OR_RETURN(graph, graph::AddGradients(ops, graph));
  return absl::OkStatus();
}

}  // namespace

std::vector<Pass> NamedPasses(const graph::OpRegistry& ops) {
  std::vector<Pass> passes = {
      {"verify", [](graph::Graph& graph) { return graph::VerifyGraph(graph); }},
      {"gradients", [&ops](graph::Graph& graph) { return DifferentiateInPlace(ops, graph); }},
      {"mixed-precision:bf16",
       [&ops](graph::Graph& graph) { return MixPrecision(ops, DType::kBF16, graph); }},
      {"mixed-precision:f16",
       [&ops](graph::Graph& graph) { return MixPrecision(ops, DType::kF16, graph); }},
      {"split-directions", [](graph::Graph& graph) { return SplitDirections(graph); }},
      PropagatePass("propagate:op-priority", PropagationLevel::kOpPriority),
      PropagatePass("propagate:aggressive", PropagationLevel::kAggressive),
      PropagatePass("propagate:basic", PropagationLevel::kBasic),
  };
  const FusesStage everywhere = [](const graph::Graph&, int) { return true; };
  for (Pass& pass : CompilePasses(ops, {}, DType::kF32, kLeastSubBatchBytes, everywhere,
                                  /*sums_in_f32=*/true, /*optimizer_on_host=*/true)) {
    passes.push_back(std::move(pass));
  }
  return passes;
}

absl::StatusOr<std::vector<Pass>> FindPasses(std::string_view names, const graph::OpRegistry& ops) {
  const std::vector<Pass> known = NamedPasses(ops);
  std::vector<Pass> found;
  for (absl::string_view piece : absl::StrSplit(ToAbsl(names), ',')) {
    const std::string_view name = ToStd(absl::StripAsciiWhitespace(piece));
    if (name.empty() && absl::StripAsciiWhitespace(ToAbsl(names)).empty()) break;
    const auto pass = std::find_if(known.begin(), known.end(),
                                   [&](const Pass& each) { return each.name == name; });
    if (pass == known.end()) {
      std::vector<std::string_view> known_names;
      for (const Pass& each : known) known_names.push_back(each.name);
      const std::string nearest = graph::NearestName(name, known_names);
      return absl::InvalidArgumentError(StrCat("unknown pass '", name, "'; ",
                                               nearest.empty()
                                                   ? StrCat("known: ", StrJoin(known_names, ", "))
                                                   : StrCat("did you mean '", nearest, "'?")));
    }
    found.push_back(*pass);
  }
  return found;
}

absl::StatusOr<std::string> Optimize(std::string_view text, std::string_view file,
                                     std::string_view passes, const graph::OpRegistry& ops,
                                     const PassOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<Pass> pipeline, FindPasses(passes, ops));
  ASSIGN_OR_RETURN(graph::Graph graph, graph::ParseGraph(text, file, ops));
  RETURN_IF_ERROR(graph::VerifyGraph(graph));
  RETURN_IF_ERROR(RunPasses(pipeline, options, &graph));
  return graph::PrintGraph(graph);
}

}  // namespace penstock::planner
