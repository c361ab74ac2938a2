// The search against the strategies that were published for GPT models on Selene: Narayanan et al.,
// "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (SC21), table
// 1. What it finds is predicted no slower than the published choice, by the same estimates. As
// published: in f16, with f32 states, all activations computed again, and pipelines interleaved.
// The table names no micro-batches and no number of chunks: the best of them count.

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"

#include "base/divisors.h"
#include "base/dtype.h"
#include "base/strings.h"
#include "graph/models/model.h"
#include "graph/op.h"
#include "planner/cluster/presets.h"
#include "planner/compile.h"
#include "planner/pass.h"
#include "planner/search/explain_candidate.h"
#include "planner/search/search.h"

namespace penstock::planner {
namespace {

struct Published {
  const char* parameters;
  int64_t heads;
  int64_t width;
  int64_t layers;
  int64_t tp;
  int64_t pp;
  int64_t devices;
  int64_t batch;
};

void PrintTo(const Published& published, std::ostream* out) { *out << published.parameters; }

const Published kPublished[] = {
    {"1700M", 24, 2304, 24, 1, 1, 32, 512},
    {"3600M", 32, 3072, 30, 2, 1, 64, 512},
    {"7500M", 32, 4096, 36, 4, 1, 128, 512},
    {"18400M", 48, 6144, 40, 8, 1, 256, 1024},
    {"39100M", 64, 8192, 48, 8, 2, 512, 1536},
    {"76100M", 80, 10240, 60, 8, 4, 1024, 1792},
    {"145600M", 96, 12288, 80, 8, 8, 1536, 2304},
    {"310100M", 128, 16384, 96, 8, 16, 1920, 2160},
    {"529600M", 128, 20480, 105, 8, 35, 2520, 2520},
    {"1008000M", 160, 25600, 128, 8, 64, 3072, 3072},
};

class PublishedStrategiesTest : public ::testing::TestWithParam<Published> {};

TEST_P(PublishedStrategiesTest, AreNotFasterThanWhatTheSearchFinds) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "slow with a sanitizer";
#endif
  const Published& published = GetParam();
  constexpr int64_t kMostDevicesInCi = 1600;
  if (std::getenv("CI") != nullptr && published.devices > kMostDevicesInCi) {
    GTEST_SKIP() << "takes more than a minute; run without CI in the environment";
  }
  const graph::OpRegistry ops = graph::BuiltinOps();
  const graph::ModelRegistry models = graph::BuiltinModels();
  const PolicyRegistry policies = BuiltinPolicies();
  const graph::Model& gpt = *models.FindModel("gpt");
  graph::ModelConfig config = gpt.defaults;
  config.layers = published.layers;
  config.width = published.width;
  config.heads = published.heads;
  config.context = 2048;
  config.vocabulary = 51200;
  const absl::StatusOr<graph::Graph> forward =
      graph::BuildModelGraph(ops, gpt, config, graph::ModelUse::kTrain, published.batch);
  ASSERT_TRUE(forward.ok()) << forward.status();
  const absl::StatusOr<Cluster> selene =
      FindClusterPreset(StrCat("selene:", published.devices / 8));
  ASSERT_TRUE(selene.ok()) << selene.status();
  const Machine machine = {*selene};

  SearchProblem problem;
  problem.ops = &ops;
  problem.forward = &*forward;
  problem.hints = gpt.tensor_splits;
  problem.machine = &machine;
  problem.policies = {policies.Find("1f1b")};
  problem.num_devices = published.devices;
  problem.lower = [passes = EstimatePasses(ops, DType::kF16)](graph::Graph& graph) {
    for (const Pass& pass : passes) {
      if (absl::Status status = pass.run(graph); !status.ok()) return status;
    }
    return absl::OkStatus();
  };
  const absl::StatusOr<SearchResult> found = FindStrategy(problem);
  ASSERT_TRUE(found.ok()) << found.status();

  Strategy strategy;
  strategy.dp = published.devices / published.tp / published.pp;
  strategy.tp = published.tp;
  strategy.pp = published.pp;
  strategy.recompute = Recompute::kFull;
  std::optional<Candidate> best_given;
  for (const int64_t vpp : DivisorsOf(published.layers / published.pp)) {
    if (vpp > problem.limits.vpp || (vpp > 1 && published.pp == 1)) break;
    strategy.vpp = vpp;
    problem.strategy = strategy;
    const absl::StatusOr<SearchResult> given = FindStrategy(problem);
    ASSERT_TRUE(given.ok()) << given.status();
    EXPECT_EQ(given->best.strategy, strategy);
    const StepEstimate& step = given->best.estimate;
    if (!step.fits()) continue;
    if (best_given.has_value() && best_given->estimate.step_s <= step.step_s) continue;
    best_given = given->best;
  }
  ASSERT_TRUE(best_given.has_value()) << "the published choice does not fit";
  EXPECT_TRUE(found->best.estimate.fits()) << WhatLimits(found->best);
  EXPECT_LE(found->best.estimate.step_s, best_given->estimate.step_s)
      << Describe(found->best) << " against " << Describe(*best_given);
}

INSTANTIATE_TEST_SUITE_P(Megatron, PublishedStrategiesTest, ::testing::ValuesIn(kPublished),
                         [](const auto& info) { return std::string(info.param.parameters); });

}  // namespace
}  // namespace penstock::planner
