// The search against the strategies that were published for GPT models on Selene: Narayanan et al.,
// "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (SC21), table
// 1. What it finds is predicted no slower than the published choice with the best number of
// micro-batches, by the same estimates. In f32; the published runs recompute all activations.

#include <cstdint>
#include <cstdlib>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"

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
  constexpr int64_t kMostDevicesInCi = 2000;
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
  problem.lower = [&ops](graph::Graph& graph) {
    for (const Pass& pass : EstimatePasses(ops)) {
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
  problem.strategy = strategy;
  const absl::StatusOr<SearchResult> given = FindStrategy(problem);
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_EQ(given->best.strategy, strategy);
  EXPECT_TRUE(given->best.estimate.fits()) << WhatLimits(given->best);
  EXPECT_TRUE(found->best.estimate.fits()) << WhatLimits(found->best);
  EXPECT_LE(found->best.estimate.step_s, given->best.estimate.step_s)
      << Describe(found->best) << " against " << Describe(given->best);
}

INSTANTIATE_TEST_SUITE_P(Megatron, PublishedStrategiesTest, ::testing::ValuesIn(kPublished),
                         [](const auto& info) { return std::string(info.param.parameters); });

}  // namespace
}  // namespace penstock::planner
