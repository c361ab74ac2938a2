#include "bench/search_bench.h"

#include <cstdint>
#include <string>
#include <utility>

#include "benchmark/benchmark.h"
#include "fmt/format.h"

#include "base/status_macros.h"
#include "graph/models/model.h"
#include "graph/op.h"
#include "graph/training.h"
#include "planner/cluster/presets.h"
#include "planner/compile.h"
#include "planner/policy/policy.h"
#include "planner/search/estimate.h"
#include "planner/search/explain_candidate.h"
#include "planner/search/schedules.h"
#include "planner/search/search.h"
#include "planner/search/stage_work.h"
#include "planner/strategy/stages.h"
#include "planner/strategy/strategy.h"

namespace penstock::bench {
namespace {

struct SearchCase {
  std::string name;
  graph::ModelConfig config;
  int64_t batch = 1;
  std::string cluster;
  planner::Strategy given;
  int64_t microbatches = 1;
};

// Everything that a search or an estimate reads.
struct Setting {
  graph::OpRegistry ops = graph::BuiltinOps();
  graph::ModelRegistry models = graph::BuiltinModels();
  planner::PolicyRegistry policies = planner::BuiltinPolicies();
  const graph::Model& gpt = *models.FindModel("gpt");

  const std::vector<planner::Pass> passes = planner::EstimatePasses(ops);

  absl::Status Lower(graph::Graph& graph) const {
    for (const planner::Pass& pass : passes) RETURN_IF_ERROR(pass.run(graph));
    return absl::OkStatus();
  }
};

absl::StatusOr<planner::SearchResult> Search(const Setting& setting, const SearchCase& bench,
                                             const planner::Machine& machine) {
  ASSIGN_OR_RETURN(const graph::Graph forward,
                   graph::BuildModelGraph(setting.ops, setting.gpt, bench.config,
                                          graph::ModelUse::kTrain, bench.batch));
  planner::SearchProblem problem;
  problem.ops = &setting.ops;
  problem.forward = &forward;
  problem.hints = setting.gpt.tensor_splits;
  problem.machine = &machine;
  problem.policies = planner::SchedulesToTry(setting.policies);
  problem.num_devices = machine.cluster.num_devices();
  problem.lower = [&](graph::Graph& graph) { return setting.Lower(graph); };
  return planner::FindStrategy(problem);
}

absl::StatusOr<planner::StepEstimate> Estimate(const Setting& setting, const SearchCase& bench,
                                               const planner::Machine& machine) {
  ASSIGN_OR_RETURN(graph::Graph forward,
                   graph::BuildModelGraph(setting.ops, setting.gpt, bench.config,
                                          graph::ModelUse::kTrain, bench.batch));
  ASSIGN_OR_RETURN(graph::Graph graph,
                   graph::BuildTrainingGraph(setting.ops, std::move(forward), {}));
  RETURN_IF_ERROR(
      planner::ApplyStrategy(bench.given, bench.microbatches, setting.gpt.tensor_splits, graph));
  RETURN_IF_ERROR(planner::AssignStages(bench.given.num_stages(), graph));
  RETURN_IF_ERROR(setting.Lower(graph));
  ASSIGN_OR_RETURN(
      const planner::ModelWork work,
      planner::MeasureWork(graph, machine, {.num_groups = static_cast<int>(bench.given.pp)}));
  planner::EstimateOptions options;
  options.policy = setting.policies.Find("1f1b");
  options.chunks_per_group = static_cast<int>(bench.given.vpp);
  return planner::EstimateStep(work, machine, options);
}

// Runs `measure`, which returns the predicted step in seconds.
template <typename F>
void Run(benchmark::State& state, const SearchCase& bench, const F& measure) {
  absl::StatusOr<planner::Cluster> cluster = planner::FindClusterPreset(bench.cluster);
  if (!cluster.ok()) {
    state.SkipWithError(std::string(cluster.status().message()).c_str());
    return;
  }
  const planner::Machine machine{*std::move(cluster)};
  const Setting setting;
  for (auto _ : state) {
    const absl::Status status = measure(setting, machine, &state);
    if (!status.ok()) state.SkipWithError(std::string(status.message()).c_str());
  }
}

graph::ModelConfig Gpt(int64_t layers, int64_t width, int64_t heads, int64_t vocabulary) {
  graph::ModelConfig config;
  config.layers = layers;
  config.width = width;
  config.heads = heads;
  config.context = 2048;
  config.vocabulary = vocabulary;
  config.dropout = 0;
  return config;
}

}  // namespace

void RegisterSearchBenchmarks() {
  // gpt3-175b, the same with half and twice the layers, and the largest model of Narayanan et al.
  // 2021, of 10^12 parameters.
  const SearchCase cases[] = {
      {"gpt3-175b", Gpt(96, 12288, 96, 50257), 1536, "hgx-h100:128", {16, 8, 8}, 96},
      {"gpt3-175b, 48 layers", Gpt(48, 12288, 96, 50257), 1536, "hgx-h100:128", {16, 8, 8}, 96},
      {"gpt3-175b, 192 layers", Gpt(192, 12288, 96, 50257), 1536, "hgx-h100:128", {8, 8, 16}, 96},
      {"gpt-1t", Gpt(128, 25600, 160, 51200), 3072, "hgx-h100:512", {8, 8, 64}, 384},
  };
  for (const SearchCase& bench : cases) {
    const std::string suffix = fmt::format("{}/{}", bench.name, bench.cluster);
    benchmark::RegisterBenchmark(("search/" + suffix).c_str(), [bench](benchmark::State& state) {
      Run(state, bench,
          [&](const Setting& setting, const planner::Machine& machine,
              benchmark::State* counted) -> absl::Status {
            ASSIGN_OR_RETURN(const planner::SearchResult result, Search(setting, bench, machine));
            counted->counters["strategies"] = result.num_estimated;
            counted->counters["lowered"] = result.num_lowered;
            counted->counters["step_s"] = result.best.estimate.step_s;
            counted->SetLabel(planner::Describe(result.best));
            return absl::OkStatus();
          });
    })->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("search/estimate/" + suffix).c_str(),
                                 [bench](benchmark::State& state) {
                                   Run(state, bench,
                                       [&](const Setting& setting, const planner::Machine& machine,
                                           benchmark::State* counted) -> absl::Status {
                                         ASSIGN_OR_RETURN(const planner::StepEstimate estimate,
                                                          Estimate(setting, bench, machine));
                                         counted->counters["step_s"] = estimate.step_s;
                                         return absl::OkStatus();
                                       });
                                 })
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace penstock::bench
