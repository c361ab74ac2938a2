// Searches whose answers are known: the layers of a small network, split over devices that compute
// at once, so that a strategy costs what it communicates.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "graph/builder.h"
#include "graph/layers.h"
#include "graph/text.h"
#include "kernels/kernel.h"
#include "planner/compile.h"
#include "planner/pass.h"
#include "planner/search/explain_candidate.h"
#include "planner/search/search.h"
#include "planner/search/split_by_cost.h"
#include "planner/strategy/stages.h"
#include "tests/support/search_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::AnyOf;
using testing::FreeComputation;
using ::testing::HasSubstr;
using testing::MlpHints;
using testing::MlpText;
using ::testing::Not;

class KnownAnswersTest : public testing::SearchFixture {
 protected:
  absl::StatusOr<SearchResult> Find(int64_t batch, int64_t width,
                                    int64_t memory_bytes = int64_t{1} << 40,
                                    absl::Span<const graph::SplitHint> hints = MlpHints()) {
    machine_.emplace(FreeComputation(4, memory_bytes));
    forward_ = *graph::ParseGraph(MlpText(batch, width), "mlp.pst", ops_);
    SearchProblem problem = Problem(forward_, hints, *machine_, 4);
    problem.training.clip_norm = 0;
    problem.limits.pp = 1;  // every product on all devices
    return FindStrategy(problem);
  }

  // The training step of the MLP under a strategy, before any pass.
  graph::Graph Train(const Strategy& strategy, int64_t batch, int64_t width) {
    graph::Graph forward = *graph::ParseGraph(MlpText(batch, width), "mlp.pst", ops_);
    graph::TrainingOptions training;
    training.clip_norm = 0;
    graph::Graph graph = *graph::BuildTrainingGraph(ops_, std::move(forward), training);
    EXPECT_TRUE(ApplyStrategy(strategy, 1, MlpHints(), graph).ok());
    if (strategy.splits_by_cost) {
      SplitOptions options;
      options.machine = &*machine_;
      EXPECT_TRUE(SplitByCost(strategy, options, graph).ok());
    }
    EXPECT_TRUE(AssignStages(1, graph).ok());
    return graph;
  }

  // Collectives of the lowered training step.
  int CountAllReduces(const Strategy& strategy, int64_t batch, int64_t width) {
    graph::Graph graph = Train(strategy, batch, width);
    EXPECT_TRUE(RunPasses(CompilePasses(ops_), {}, &graph).ok());
    return static_cast<int>(
        std::count_if(graph.nodes().begin(), graph.nodes().end(), [&](const graph::Node& node) {
          return node.op->name() == "all_reduce" &&
                 !graph.value(node.results[0]).type.shape.empty();
        }));
  }

  // Collectives of the compiled plan, where buckets join gradients; without that of the loss, which
  // is a scalar.
  int CountCollectivesOfPlan(const Strategy& strategy, int64_t batch, int64_t width) {
    const kernels::KernelRegistry kernels = kernels::CpuKernels();
    CompileOptions options;
    options.policies = &policies_;
    options.kernels = kernels::TraitsOf(kernels, 1);
    options.machine = &*machine_;
    const absl::StatusOr<Plan> plan = Compile(ops_, Train(strategy, batch, width), options);
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (!plan.ok()) return 0;
    return static_cast<int>(std::count_if(
        plan->collectives.begin(), plan->collectives.end(),
        [](const CollectiveSpec& collective) { return InputCount(collective, 0) > 1; }));
  }

  std::optional<Machine> machine_;
  graph::Graph forward_;
};

TEST_F(KnownAnswersTest, ALargeBatchOfSmallLayersIsDataParallel) {
  const absl::StatusOr<SearchResult> result = Find(256, 32);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(ToString(result->best.strategy), "dp=4,tp=1,pp=1");
  EXPECT_EQ(result->best.microbatches, 1);
  // The gradients of 6 * 32 * 32 weights, of which 3/4 are sent twice: all that is communicated, in
  // one bucket.
  EXPECT_NEAR(result->best.estimate.gradient_reduction_s, 6 * 32 * 32 * 4 * 1.5 / 1e9, 1e-9);
  EXPECT_LT(result->best.estimate.inline_communication_s, 1e-8);  // the loss
  EXPECT_EQ(CountCollectivesOfPlan(result->best.strategy, 256, 32), 1);
}

TEST_F(KnownAnswersTest, ASmallBatchOfLargeLayersIsTensorParallel) {
  const absl::StatusOr<SearchResult> result = Find(32, 256);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(ToString(result->best.strategy), "dp=1,tp=4,pp=1");
  EXPECT_EQ(CountAllReduces(result->best.strategy, 32, 256), 5);
  EXPECT_NEAR(result->best.estimate.inline_communication_s, 5 * 32 * 256 * 4 * 1.5 / 1e9, 1e-9);
  // Others are there to compare with, and say why they lost.
  ASSERT_FALSE(result->others.empty());
  EXPECT_THAT(WhyNot(result->others[0], result->best), HasSubstr("more communication"));
}

// The same answers where nothing names what to split: columns and rows in turn are found by cost.
TEST_F(KnownAnswersTest, WithoutHintsTheSplitsAreChosenByCost) {
  absl::StatusOr<SearchResult> result = Find(256, 32, int64_t{1} << 40, {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(ToString(result->best.strategy), "dp=4,tp=1,pp=1");
  result = Find(32, 256, int64_t{1} << 40, {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(ToString(result->best.strategy), "dp=1,tp=4,pp=1,splits=cost");
  // The last layer's sum is not gathered: its mask is, which has a byte for four.
  const double all_reduce_s = 32 * 256 * 4 * 1.5 / 1e9;
  EXPECT_NEAR(result->best.estimate.inline_communication_s, (4 + 0.5 + 0.125) * all_reduce_s, 1e-8);
}

// Splits by cost that do not fit are tried with ZeRO and recomputation, like any others.
TEST_F(KnownAnswersTest, SplitsByCostTakeOptionsToFit) {
  std::set<std::pair<bool, bool>> found;  // with zero, with recomputation
  for (double memory_bytes = 1 << 25; memory_bytes > 1 << 20; memory_bytes *= 0.8) {
    machine_.emplace(FreeComputation(4, static_cast<int64_t>(memory_bytes)));
    forward_ = *graph::ParseGraph(MlpText(2048, 256), "mlp.pst", ops_);
    SearchProblem problem = Problem(forward_, {}, *machine_, 4);
    problem.training.clip_norm = 0;
    problem.microbatches = 1;
    problem.limits = {.dp = 2, .pp = 1, .sp = false};
    const absl::StatusOr<SearchResult> result = FindStrategy(problem);
    if (!result.ok() || !result->best.estimate.fits()) break;
    const Strategy& best = result->best.strategy;
    EXPECT_TRUE(best.splits_by_cost) << Describe(result->best);
    found.insert({best.zero > 0, best.recompute != Recompute::kNone});
  }
  EXPECT_TRUE(found.contains({false, false}));
  EXPECT_TRUE(found.contains({true, false}));
  EXPECT_TRUE(found.contains({true, true}) || found.contains({false, true}));
}

// 16 experts of width 1024: to exchange the tokens of 32 sequences takes less than to sum what
// parts of experts give, and far less than to sum the gradients of experts.
TEST_F(KnownAnswersTest, ExpertsAreSplitOverDevices) {
  machine_.emplace(FreeComputation(4));
  graph::GraphBuilder builder(ops_, forward_);
  const graph::ValueId x = builder.Declare("input", "x", {DType::kF32, {32, 16, 1024}});
  graph::LayerBuilder layers(builder, DType::kF32, 0);
  const graph::LayerBuilder::Experts experts = {
      .experts = 16, .top_k = 2, .capacity = 2, .hidden = 1024};
  const graph::ValueId y = layers.MixtureOfExperts(x, "h0.moe", experts, 0.02, 0.02, nullptr);
  const graph::ValueId loss =
      builder.Add("reduce_mean", {y}, {{"axes", graph::AttrValue::Ints({0, 1, 2})}});
  ASSERT_TRUE(builder.status().ok()) << builder.status();
  forward_.mutable_returns().push_back({loss, {}});
  SearchProblem problem = Problem(forward_, models_.FindModel("moe")->tensor_splits, *machine_, 4);
  problem.training.clip_norm = 0;
  problem.limits.pp = 1;
  const absl::StatusOr<SearchResult> result = FindStrategy(problem);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(ToString(result->best.strategy), "dp=4,tp=1,pp=1,ep=4");
  // Two exchanges forward, one backward (nothing wants the gradient of an input), of 3/4 of what a
  // device has: slots for 2 tokens of each of its sequences for each expert.
  const double exchanged_s = 3 * 0.75 * (32 / 4) * 16 * 2 * 1024 * 4 / 1e9;
  EXPECT_NEAR(result->best.estimate.inline_communication_s, exchanged_s, 0.01 * exchanged_s);
  for (const Candidate& other : result->others) {
    EXPECT_THAT(WhyNot(other, result->best),
                AnyOf(HasSubstr("more communication"), HasSubstr("the chosen one is simpler")))
        << Describe(other);
  }
}

// States are most of what a device holds, and may not be divided by tp.
TEST_F(KnownAnswersTest, AMemoryLimitTakesZero) {
  machine_.emplace(FreeComputation(4));
  forward_ = *graph::ParseGraph(MlpText(256, 64), "mlp.pst", ops_);
  SearchProblem problem = Problem(forward_, MlpHints(), *machine_, 4);
  problem.training.clip_norm = 0;
  problem.limits.pp = 1;
  problem.limits.tp = 1;
  problem.microbatches = 1;
  const absl::StatusOr<SearchResult> free = FindStrategy(problem);
  ASSERT_TRUE(free.ok()) << free.status();
  EXPECT_EQ(ToString(free->best.strategy), "dp=4,tp=1,pp=1");
  const MemoryEstimate& memory = free->best.estimate.groups[0].memory;
  // Room for a quarter of the optimiser's states.
  machine_.emplace(
      FreeComputation(4, static_cast<int64_t>(memory.total() - 0.7 * memory.optimizer)));
  problem.machine = &*machine_;
  const absl::StatusOr<SearchResult> limited = FindStrategy(problem);
  ASSERT_TRUE(limited.ok()) << limited.status();
  EXPECT_TRUE(limited->best.estimate.fits());
  EXPECT_EQ(ToString(limited->best.strategy), "dp=4,tp=1,pp=1,zero=1");
  EXPECT_THAT(WhatLimits(limited->best), HasSubstr("zero=1 divides states over 4 replicas; "));
  EXPECT_THAT(WhatLimits(free->best), Not(HasSubstr("zero")));
}

TEST_F(KnownAnswersTest, AMemoryLimitRulesOutTheFastest) {
  const absl::StatusOr<SearchResult> free = Find(256, 32);
  ASSERT_TRUE(free.ok()) << free.status();
  const double needed = free->best.estimate.groups[0].memory.total();
  const absl::StatusOr<SearchResult> limited = Find(256, 32, static_cast<int64_t>(needed) - 1);
  ASSERT_TRUE(limited.ok()) << limited.status();
  EXPECT_TRUE(limited->best.estimate.fits());
  EXPECT_LT(limited->best.estimate.groups[0].memory.total(), needed);
  EXPECT_NE(Describe(limited->best), Describe(free->best));
  EXPECT_GE(limited->num_too_large, 1);
}

// Activations are most of what a device holds, and may not be divided in time: ZeRO alone does not
// help.
TEST_F(KnownAnswersTest, AMemoryLimitTakesRecomputation) {
  machine_.emplace(FreeComputation(4));
  // Of relu, backward reads the result; of gelu, the operand too.
  const std::string text = absl::StrReplaceAll(MlpText(4096, 32), {{"relu", "gelu"}});
  forward_ = *graph::ParseGraph(text, "mlp.pst", ops_);
  SearchProblem problem = Problem(forward_, MlpHints(), *machine_, 4);
  problem.training.clip_norm = 0;
  problem.limits.pp = 1;
  problem.microbatches = 1;
  const absl::StatusOr<SearchResult> free = FindStrategy(problem);
  ASSERT_TRUE(free.ok()) << free.status();
  EXPECT_EQ(ToString(free->best.strategy), "dp=4,tp=1,pp=1");
  const double needed = free->best.estimate.groups[0].memory.total();
  machine_.emplace(FreeComputation(4, static_cast<int64_t>(0.75 * needed)));
  problem.machine = &*machine_;
  const absl::StatusOr<SearchResult> limited = FindStrategy(problem);
  ASSERT_TRUE(limited.ok()) << limited.status();
  EXPECT_TRUE(limited->best.estimate.fits());
  EXPECT_EQ(ToString(limited->best.strategy), "dp=4,tp=1,pp=1,recompute=full");
  EXPECT_THAT(WhatLimits(limited->best), HasSubstr("it fits into memory with recompute=full"));
  // Without recomputation, nothing fits.
  problem.limits.recompute = Recompute::kNone;
  const absl::StatusOr<SearchResult> kept = FindStrategy(problem);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_FALSE(kept->best.estimate.fits());
  EXPECT_THAT(WhatLimits(kept->best), HasSubstr("recompute=full would keep fewer activations"));
  EXPECT_THAT(WhatLimits(kept->best), Not(HasSubstr("offload")));
  // But with memory of the host beside that of the devices.
  ClusterSpec spec = machine_->cluster.spec();
  spec.kinds[0].host_link_bytes_per_s = 1e12;
  machine_.emplace(Machine{*Cluster::Create(std::move(spec))});
  problem.machine = &*machine_;
  const absl::StatusOr<SearchResult> offloaded = FindStrategy(problem);
  ASSERT_TRUE(offloaded.ok()) << offloaded.status();
  EXPECT_TRUE(offloaded->best.estimate.fits());
  EXPECT_EQ(ToString(offloaded->best.strategy), "dp=4,tp=1,pp=1,offload=all");
  EXPECT_GT(offloaded->best.estimate.groups[0].memory.host, 0);
  EXPECT_THAT(WhatLimits(offloaded->best), HasSubstr("it fits into memory with offload=all"));
  // As far as the host has room.
  spec = machine_->cluster.spec();
  spec.kinds[0].host_memory_bytes =
      static_cast<int64_t>(offloaded->best.estimate.groups[0].memory.host) / 2;
  const Machine little = {*Cluster::Create(std::move(spec))};
  problem.machine = &little;
  const absl::StatusOr<SearchResult> too_much = FindStrategy(problem);
  ASSERT_TRUE(too_much.ok()) << too_much.status();
  EXPECT_NE(ToString(too_much->best.strategy), "dp=4,tp=1,pp=1,offload=all");
  Candidate refused = offloaded->best;
  refused.estimate.groups[0].host_limit_bytes = little.cluster.KindOf(0).host_memory_bytes;
  EXPECT_FALSE(refused.estimate.fits());
  EXPECT_THAT(WhatLimits(refused), HasSubstr("of its host's memory"));
  EXPECT_THAT(WhyNot(refused, too_much->best), HasSubstr("a device on its host"));
  problem.machine = &*machine_;
  problem.limits.offload = false;
  const absl::StatusOr<SearchResult> neither = FindStrategy(problem);
  ASSERT_TRUE(neither.ok()) << neither.status();
  EXPECT_FALSE(neither->best.estimate.fits());
  EXPECT_THAT(WhatLimits(neither->best), HasSubstr("offload=activations would keep them"));
}

TEST_F(KnownAnswersTest, WhatDoesNotFitAtAllSaysWhatWould) {
  const absl::StatusOr<SearchResult> result = Find(256, 32, 20000);
  ASSERT_TRUE(result.ok()) << result.status();
  const absl::Status status = CheckFits(*result);
  ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  const std::string message(ToStd(status.message()));
  EXPECT_THAT(message, HasSubstr("no strategy for 4 devices fits into memory; dp=1,tp=4,pp=1,"));
  EXPECT_THAT(message, HasSubstr("comes nearest: a device needs "));
  EXPECT_THAT(message, HasSubstr("times as many devices"));
}

}  // namespace
}  // namespace penstock::planner
