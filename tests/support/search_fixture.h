// A fixture for tests of the search on small problems with known costs.
//
// Thread rule: one thread.

#ifndef PENSTOCK_TESTS_SUPPORT_SEARCH_FIXTURE_H_
#define PENSTOCK_TESTS_SUPPORT_SEARCH_FIXTURE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "graph/layers.h"
#include "graph/op.h"
#include "planner/compile.h"
#include "planner/pass.h"
#include "planner/policy/policy.h"
#include "planner/search/search.h"

namespace penstock::testing {

class SearchFixture : public ::testing::Test {
 protected:
  planner::SearchProblem Problem(const graph::Graph& forward,
                                 absl::Span<const graph::SplitHint> hints,
                                 const planner::Machine& machine, int64_t num_devices) {
    planner::SearchProblem problem;
    problem.ops = &ops_;
    problem.forward = &forward;
    problem.hints = hints;
    problem.machine = &machine;
    problem.policies = {policies_.Find("1f1b")};
    problem.num_devices = num_devices;
    problem.lower = [passes = planner::EstimatePasses(ops_)](graph::Graph& graph) {
      for (const planner::Pass& pass : passes) {
        if (absl::Status status = pass.run(graph); !status.ok()) return status;
      }
      return absl::OkStatus();
    };
    return problem;
  }

  graph::Graph Gpt(std::string_view preset, int64_t layers, int64_t batch) {
    graph::ModelConfig config = models_.FindPreset(preset)->config;
    config.layers = layers;
    return *graph::BuildModelGraph(ops_, *models_.FindModel("gpt"), config, graph::ModelUse::kTrain,
                                   batch);
  }

  // Of 24 layers, which several stages may share in many ways.
  graph::Graph DeepGpt() {
    graph::ModelConfig config;
    config.layers = 24;
    config.heads = 4;
    config.width = 32;
    config.context = 64;
    config.dropout = 0;
    return *graph::BuildModelGraph(ops_, *models_.FindModel("gpt"), config, graph::ModelUse::kTrain,
                                   64);
  }

  const std::vector<graph::SplitHint>& gpt_hints() const {
    return models_.FindModel("gpt")->tensor_splits;
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
  const graph::ModelRegistry models_ = graph::BuiltinModels();
  const planner::PolicyRegistry policies_ = planner::BuiltinPolicies();
};

// Six products of [batch, width] and [width, width], with relu between them: hints split the
// weights by columns and rows in turn.
inline std::string MlpText(int64_t batch, int64_t width) {
  const std::string row = StrCat("f32[", batch, ", ", width, "]");
  std::string text = StrCat("graph mlp {\n  %h0 = input : ", row, "\n");
  for (int i = 0; i < 6; ++i) {
    StrAppend(&text, "  %w", i, " = parameter : f32[", width, ", ", width, "]\n");
    StrAppend(&text, "  %p", i, " = matmul(%h", i, ", %w", i, ") : ", row, "\n");
    StrAppend(&text, "  %h", i + 1, " = relu(%p", i, ") : ", row, "\n");
  }
  return StrCat(text, "  %loss = reduce_mean(%h6) {axes=[0, 1]} : f32[]\n  return %loss\n}\n");
}

inline const std::vector<graph::SplitHint>& MlpHints() {
  static const auto* const hints =
      new std::vector<graph::SplitHint>{{"w0", 1, "units"}, {"w1", 0, "units"}, {"w2", 1, "units"},
                                        {"w3", 0, "units"}, {"w4", 1, "units"}, {"w5", 0, "units"}};
  return *hints;
}

// Costs are bytes moved: computation is free, and messages have no latency.
inline planner::Machine FreeComputation(int64_t num_devices,
                                        int64_t memory_bytes = int64_t{1} << 40) {
  planner::ClusterSpec spec;
  spec.name = "free";
  planner::DeviceKind& kind = spec.kinds.emplace_back();
  kind.name = "device";
  kind.memory_bytes = memory_bytes;
  kind.memory_bytes_per_s = planner::kMaxBytesPerS;
  kind.peak_flops_per_s.fill(planner::kMaxFlopsPerS);
  planner::NetworkLevel level;
  level.name = "node";
  level.fan_out = {num_devices};
  level.bytes_per_s = 1e9;
  spec.levels.push_back(level);
  return {*planner::Cluster::Create(std::move(spec))};
}

// Four of them.
inline planner::ClusterSpec SlowDevicesOnFastLinks() {
  planner::ClusterSpec spec = FreeComputation(4).cluster.spec();
  spec.kinds[0].peak_flops_per_s.fill(1e11);
  spec.kinds[0].memory_bytes_per_s = 1e10;
  spec.levels[0].bytes_per_s = 1e12;
  return spec;
}

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_SEARCH_FIXTURE_H_
