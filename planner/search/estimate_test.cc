
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "graph/models/model.h"
#include "graph/op.h"
#include "graph/text.h"
#include "graph/training.h"
#include "kernels/kernel.h"
#include "planner/cluster/presets.h"
#include "planner/compile.h"
#include "planner/pass.h"
#include "planner/search/join_stages.h"
#include "planner/search/stage_work.h"
#include "planner/simulator/simulate_plan.h"
#include "planner/strategy/stages.h"
#include "planner/strategy/strategy.h"

namespace penstock::planner {
namespace {

// Devices of `bytes_per_s` links and `flops_per_s`, `fan_out` on each of `num_nodes` nodes.
Machine MakeMachine(int64_t fan_out, int64_t num_nodes, double flops_per_s, double link_bytes_per_s,
                    double network_bytes_per_s, int64_t estimate_memory_bytes = int64_t{1} << 36) {
  ClusterSpec spec;
  spec.name = "test";
  DeviceKind& kind = spec.kinds.emplace_back();
  kind.name = "device";
  kind.memory_bytes = estimate_memory_bytes;
  kind.memory_bytes_per_s = 1e15;
  kind.peak_flops_per_s.fill(flops_per_s);
  kind.efficiency = {{1, 1}};
  NetworkLevel node;
  node.name = "node";
  node.fan_out = {fan_out};
  node.bytes_per_s = link_bytes_per_s;
  spec.levels.push_back(node);
  if (num_nodes > 1) {
    NetworkLevel pod;
    pod.name = "pod";
    pod.fan_out = {num_nodes};
    pod.bytes_per_s = network_bytes_per_s;
    pod.uplinks = kUplinkPerDevice;
    spec.levels.push_back(pod);
  }
  return {*Cluster::Create(std::move(spec))};
}

class EstimateTest : public ::testing::Test {
 protected:
  EstimateTest()
      : ops_(graph::BuiltinOps()),
        models_(graph::BuiltinModels()),
        policies_(BuiltinPolicies()),
        kernels_(kernels::CpuKernels()) {}

  static graph::ModelConfig Config(int64_t layers = 4) {
    graph::ModelConfig config;
    config.layers = layers;
    config.width = 64;
    config.heads = 4;
    config.context = 32;
    config.dropout = 0;
    return config;
  }

  // The training step of gpt under a strategy, before any pass.
  graph::Graph Train(std::string_view text, int64_t microbatches, const graph::ModelConfig& config,
                     int64_t batch = 16, double clip_norm = 0) {
    const graph::Model& gpt = *models_.FindModel("gpt");
    graph::Graph forward =
        *graph::BuildModelGraph(ops_, gpt, config, graph::ModelUse::kTrain, batch);
    graph::TrainingOptions training;
    training.clip_norm = clip_norm;
    graph::Graph graph = *graph::BuildTrainingGraph(ops_, std::move(forward), training);
    strategy_ = **ParseStrategy(text);
    EXPECT_TRUE(ApplyStrategy(strategy_, microbatches, gpt.tensor_splits, graph).ok());
    EXPECT_TRUE(AssignStages(strategy_.num_stages(), graph).ok());
    return graph;
  }

  // The plan, with its estimate in estimate_.
  Plan CompileFor(graph::Graph graph, const Machine& machine, const std::string& policy = "1f1b") {
    CompileOptions options;
    options.policy = policy;
    options.policies = &policies_;
    options.kernels = kernels::TraitsOf(kernels_, 1);
    options.chunks_per_group = static_cast<int>(strategy_.vpp);
    options.machine = &machine;
    options.estimate = &estimate_;
    options.precision = precision_;
    options.bucket_bytes = bucket_bytes_;
    absl::StatusOr<Plan> plan = Compile(ops_, std::move(graph), options);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *std::move(plan) : Plan();
  }

  graph::OpRegistry ops_;
  graph::ModelRegistry models_;
  PolicyRegistry policies_;
  kernels::KernelRegistry kernels_;
  Strategy strategy_;
  int64_t bucket_bytes_ = 4 << 20;
  DType precision_ = DType::kF32;
  StepEstimate estimate_;
};

// Parameters are gathered while earlier kernels run, and gradients scattered while later ones do:
// the simulation of the plan says how long that takes, whichever of both takes longer.
TEST_F(EstimateTest, KernelsHideWhatZeroGathersAndScatters) {
  graph::ModelConfig config = Config(6);
  config.width = 256;
  for (const std::string strategy : {"dp=8,zero=3", "dp=8,zero=2"}) {
    for (const double link_bytes_per_s : {2e9, 5e9, 2e10}) {
      const Machine machine = MakeMachine(8, 1, 1e12, link_bytes_per_s, 0);
      const Plan plan = CompileFor(Train(strategy, 4, config, 128), machine);
      const absl::StatusOr<Simulation> simulation = SimulatePlan(plan, ops_, policies_, machine);
      ASSERT_TRUE(simulation.ok()) << simulation.status();
      EXPECT_NEAR(estimate_.step_s, simulation->step_s, 0.2 * simulation->step_s)
          << strategy << " at " << link_bytes_per_s;
    }
  }
}

// Over links of 1 kB/s, a row of 256 B takes 256 ms.
TEST_F(EstimateTest, AHaloTakesAsLongAsItsBytes) {
  const Machine machine = MakeMachine(4, 1, 1e12, 1e3, 1e3);
  const auto seconds = [&](std::string_view statement, int64_t extent) {
    const std::string text = StrCat(R"(mesh m = [d=4]
graph g {
  %x = input : f32[4096, 64] @[d, _]
  %y = )",
                                    statement, " : f32[", extent, R"(, 64]
  return %y @[d, _]
})");
    absl::StatusOr<graph::Graph> graph = graph::ParseGraph(text, "halo.pst", ops_);
    EXPECT_TRUE(graph.ok()) << graph.status();
    CompileFor(*std::move(graph), machine);
    return estimate_.inline_communication_s;
  };
  EXPECT_NEAR(seconds("slice(%x) {start=[1, 0], limit=[4096, 64]}", 4095), 0.256, 1e-3);
  EXPECT_NEAR(seconds("slice(%x) {start=[3, 0], limit=[4096, 64]}", 4093), 3 * 0.256, 1e-3);
  EXPECT_EQ(seconds("slice(%x) {start=[0, 0], limit=[4096, 64], stride=[2, 1]}", 2048), 0);
}

// The host launches ahead of the device: launches count where they take longer than what they
// launch, and only there.
TEST_F(EstimateTest, LaunchesCountWhereTheDeviceIsFaster) {
  const auto seconds = [&](double launch_s) {
    ClusterSpec spec = MakeMachine(1, 1, 1e12, 1e10, 1e10).cluster.spec();
    spec.kinds[0].launch_s = launch_s;
    const Machine machine = {*Cluster::Create(std::move(spec))};
    CompileFor(Train("dp=1", 4, Config()), machine);
    return estimate_.step_s;
  };
  const double without = seconds(0);
  EXPECT_DOUBLE_EQ(seconds(without * 1e-6), without);
  const double slow = seconds(without);
  EXPECT_GT(slow, 100 * without);  // a step has more than a hundred kernels
  EXPECT_NEAR(seconds(2 * without), 2 * slow, 1e-3 * slow);
}

TEST_F(EstimateTest, TheHostsTimeBetweenStepsIsIdleTime) {
  const auto estimate = [&](double step_s) {
    ClusterSpec spec = MakeMachine(1, 1, 1e12, 1e10, 1e10).cluster.spec();
    spec.kinds[0].step_s = step_s;
    CompileFor(Train("dp=1", 4, Config()), {*Cluster::Create(std::move(spec))});
    return estimate_;
  };
  const StepEstimate without = estimate(0);
  const StepEstimate with = estimate(0.5);
  EXPECT_DOUBLE_EQ(with.step_s, without.step_s + 0.5);
  EXPECT_DOUBLE_EQ(with.bubble_s, without.bubble_s + 0.5);
}

// All but the workspace is the same to within alignment. Of the workspace, the scratch memory of
// kernels is not known, nor how much longer values live beside communication.
TEST_F(EstimateTest, MemoryIsThatOfThePlan) {
  const Machine machine = MakeMachine(8, 1, 1e11, 1e10, 1e10);
  const std::vector<std::pair<std::string, int64_t>> strategies = {
      {"dp=1", 1},
      {"dp=1", 4},
      {"dp=4", 1},
      {"tp=2", 1},
      {"dp=2,tp=2", 2},
      {"pp=2", 4},
      {"pp=4", 8},
      {"pp=2,vpp=2", 4},
      {"dp=2,tp=2,pp=2", 4},
      {"cp=2", 1},
      {"cp=4", 4},
      {"cp=2,ulysses=true", 1},
      {"dp=2,cp=2,pp=2", 4},
      {"offload=states", 1},
      {"offload=all", 1},
      {"offload=all", 4},
      {"pp=2,offload=all", 4},
      {"dp=2,zero=1,offload=states", 1},
  };
  for (const auto& [text, microbatches] : strategies) {
    SCOPED_TRACE(StrCat(text, " with ", microbatches, " micro-batches"));
    const Plan plan = CompileFor(Train(text, microbatches, Config()), machine);
    ASSERT_EQ(plan.stages.size(), estimate_.groups.size());
    for (size_t g = 0; g < estimate_.groups.size(); ++g) {
      const DevicePlan& device = plan.devices[plan.stages[g].devices[0]];
      const MemoryEstimate& memory = estimate_.groups[g].memory;
      const double kept = memory.total() - memory.workspace;
      // Slots of different values may share bytes, which estimates do not see.
      const double of_plan = static_cast<double>(device.state_bytes + device.channel_bytes);
      EXPECT_GE(kept / of_plan, 0.97) << "group " << g;
      EXPECT_LE(kept / of_plan, 1.08) << "group " << g;
      EXPECT_NEAR(memory.total() / static_cast<double>(device.arena_bytes), 1, 0.25)
          << "group " << g;
      EXPECT_NEAR(memory.host, static_cast<double>(device.host_bytes),
                  0.03 * static_cast<double>(device.host_bytes))
          << "group " << g;
      EXPECT_EQ(memory.host > 0, text.find("offload") != std::string::npos);
    }
  }
}

// Kernels that would convert whole tensors of 16 bits, above all logits, would need memory that
// estimates do not see.
TEST_F(EstimateTest, MemoryIsThatOfThePlanInSixteenBits) {
  const Machine machine = MakeMachine(8, 1, 1e11, 1e10, 1e10);
  graph::ModelConfig config = Config();
  config.vocabulary = 4096;
  for (const DType precision : {DType::kBF16, DType::kF16}) {
    precision_ = precision;
    for (const auto& [text, microbatches] :
         std::vector<std::pair<std::string, int64_t>>{{"dp=2", 1},
                                                      {"dp=2,recompute=full", 1},
                                                      {"dp=2,recompute=selective", 4},
                                                      {"dp=2,zero=3", 4},
                                                      {"tp=4", 1},
                                                      {"tp=4,sp=true,recompute=selective", 1},
                                                      {"pp=2,recompute=full", 4}}) {
      SCOPED_TRACE(StrCat(Name(precision_), ", ", text, " with ", microbatches, " micro-batches"));
      const Plan plan = CompileFor(Train(text, microbatches, config), machine);
      ASSERT_EQ(plan.stages.size(), estimate_.groups.size());
      for (size_t g = 0; g < estimate_.groups.size(); ++g) {
        const DevicePlan& device = plan.devices[plan.stages[g].devices[0]];
        // Some MiB are for packed blocks of products, of whatever size.
        const double ratio =
            estimate_.groups[g].memory.total() / static_cast<double>(device.arena_bytes);
        EXPECT_GE(ratio, 0.75) << "group " << g;
        EXPECT_LE(ratio, 1.15) << "group " << g;
      }
    }
  }
}

// What W reads of B is kept until W: of more micro-batches, the later W runs.
TEST_F(EstimateTest, MemoryIsThatOfThePlanWhereBackwardIsSplit) {
  const Machine machine = MakeMachine(8, 1, 1e11, 1e10, 1e10);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"pp=2", "zb-h1"}, {"pp=4", "zb-h2"}, {"pp=2,vpp=2", "v-half"}, {"tp=2,pp=2,vpp=2", "zb-v"}};
  for (const auto& [text, policy] : cases) {
    SCOPED_TRACE(StrCat(text, " by ", policy));
    const Plan plan = CompileFor(Train(text, 8, Config()), machine, policy);
    ASSERT_EQ(plan.stages.size(), estimate_.groups.size());
    for (size_t g = 0; g < estimate_.groups.size(); ++g) {
      const DevicePlan& device = plan.devices[plan.stages[g].devices[0]];
      // What B alone reads is freed before W, which estimates do not see.
      const double ratio =
          estimate_.groups[g].memory.total() / static_cast<double>(device.arena_bytes);
      EXPECT_GE(ratio, 0.95) << "group " << g;
      EXPECT_LE(ratio, 1.25) << "group " << g;
    }
  }
}

// A policy that trades memory for time has as much as the devices leave it.
TEST_F(EstimateTest, PoliciesKeepWithinTheMemoryOfTheDevices) {
  for (const std::string policy : {"zb-2p", "auto"}) {
    SCOPED_TRACE(policy);
    CompileFor(Train("pp=4", 16, Config(8), 64), MakeMachine(4, 1, 1e11, 1e10, 1e10), policy);
    const StepEstimate plenty = estimate_;
    const MemoryEstimate& most = plenty.groups[plenty.fullest_group()].memory;
    const auto less = static_cast<int64_t>(most.total() - 0.3 * most.activations);
    const Machine little = MakeMachine(4, 1, 1e11, 1e10, 1e10, less);
    const Plan plan = CompileFor(Train("pp=4", 16, Config(8), 64), little, policy);
    EXPECT_TRUE(estimate_.fits());
    EXPECT_GE(estimate_.step_s, plenty.step_s);
    for (const DevicePlan& device : plan.devices) {
      EXPECT_LE(static_cast<double>(device.arena_bytes), 1.05 * static_cast<double>(less));
    }
  }
}

// Kernels run while copies to and from the host do: the simulation of the plan says how long both
// take, whichever takes longer.
TEST_F(EstimateTest, KernelsHideCopiesToAndFromTheHost) {
  for (const double link_bytes_per_s : {5e8, 2e9, 8e9, 1e12}) {
    ClusterSpec spec = MakeMachine(2, 1, 1e11, 1e15, 1e15).cluster.spec();
    spec.kinds[0].host_link_bytes_per_s = link_bytes_per_s;
    const Machine machine = {*Cluster::Create(std::move(spec))};
    for (const std::string strategy :
         {"offload=states", "offload=activations", "offload=all", "tp=2,offload=all"}) {
      const Plan plan = CompileFor(Train(strategy, 4, Config()), machine);
      const absl::StatusOr<Simulation> simulation = SimulatePlan(plan, ops_, policies_, machine);
      ASSERT_TRUE(simulation.ok()) << simulation.status();
      EXPECT_NEAR(estimate_.step_s, simulation->step_s, 0.15 * simulation->step_s)
          << strategy << " at " << link_bytes_per_s;
    }
  }
}

// Nothing takes time on this machine but products and the link to the host.
TEST_F(EstimateTest, CopiesTakeTheLinkToTheHost) {
  ClusterSpec spec = MakeMachine(1, 1, 1e11, 1e15, 1e15).cluster.spec();
  spec.kinds[0].host_link_bytes_per_s = 1e9;
  const Machine machine = {*Cluster::Create(std::move(spec))};
  CompileFor(Train("dp=1", 1, Config()), machine);
  const double without = estimate_.step_s;
  EXPECT_TRUE(estimate_.groups[0].has_host_link);
  const auto offload = [&](const std::string& what) {
    const Plan plan = CompileFor(Train("offload=" + what, 1, Config()), machine);
    return static_cast<double>(plan.devices[0].host_bytes) / 1e9;
  };
  // Kernels of the update take next to nothing. States come while others go.
  const double states_s = offload("states");
  const double with_states = estimate_.step_s - without;
  EXPECT_GT(states_s, 0);
  EXPECT_GT(with_states, states_s);
  EXPECT_LT(with_states, 1.5 * states_s);
  // Activations go in the forward pass and come in the backward pass, beside kernels.
  const double activations_s = offload("activations");
  const double with_activations = estimate_.step_s - without;
  EXPECT_GT(activations_s, 0);
  EXPECT_GT(with_activations, 1.99 * activations_s - without);
  EXPECT_LT(with_activations, 2 * activations_s);
  offload("all");
  EXPECT_NEAR(estimate_.step_s - without, with_states + with_activations, 1e-3 * with_activations);
}

// A product's flops are divided by dp and tp alike; nothing else takes time on this machine.
TEST_F(EstimateTest, ComputeIsDividedOverDevices) {
  const Machine machine = MakeMachine(4, 1, 1e11, 1e15, 1e15);
  CompileFor(Train("dp=1", 1, Config()), machine);
  const double alone = estimate_.step_s;
  EXPECT_NEAR(estimate_.compute_s, alone, 1e-12);
  for (const char* strategy : {"dp=4", "dp=2,tp=2"}) {
    CompileFor(Train(strategy, 1, Config()), machine);
    EXPECT_NEAR(estimate_.step_s / alone, 0.25, 0.03) << strategy;
    EXPECT_LT(estimate_.communication_s, 1e-3 * alone) << strategy;
  }
}

// Four stages of a layer each: a step is longer by (p - 1) / M, and what is not divided evenly.
TEST_F(EstimateTest, APipelineHasABubble) {
  graph::ModelConfig config = Config(16);
  config.vocabulary = 256;
  const Machine machine = MakeMachine(4, 1, 1e11, 1e15, 1e15);
  CompileFor(Train("dp=1", 1, config, 32), machine);
  const double alone = estimate_.step_s;
  CompileFor(Train("pp=4", 8, config, 32), machine);
  EXPECT_NEAR(estimate_.step_s / (alone / 4), 11.0 / 8, 0.12);
  EXPECT_NEAR(estimate_.bubble_s / estimate_.step_s, 3.0 / 11, 0.05);
  EXPECT_NEAR(estimate_.compute_s + estimate_.communication_s + estimate_.bubble_s,
              estimate_.step_s, 1e-9);
  EXPECT_EQ(estimate_.groups[0].in_flight, 4);
  EXPECT_EQ(estimate_.groups[3].in_flight, 1);
}

TEST_F(EstimateTest, ReductionsOfGradientsHideBehindTheBackwardPass) {
  const graph::Graph graph = Train("dp=4", 1, Config());
  bucket_bytes_ = 64 << 10;
  // Shorter than the backward pass: all but the last bucket is hidden.
  CompileFor(graph, MakeMachine(4, 1, 1e9, 4e7, 1e15));
  ASSERT_LT(estimate_.gradient_reduction_s, 0.6 * estimate_.compute_s);
  EXPECT_GT(estimate_.communication_s, 0);
  EXPECT_LT(estimate_.communication_s, 0.15 * estimate_.gradient_reduction_s);
  // Much longer than it.
  CompileFor(graph, MakeMachine(4, 1, 1e9, 1e5, 1e15));
  ASSERT_GT(estimate_.gradient_reduction_s, 5 * estimate_.compute_s);
  EXPECT_GT(estimate_.communication_s, estimate_.gradient_reduction_s - estimate_.compute_s);
}

TEST_F(EstimateTest, ReductionsThatDoNotOverlapAreExposed) {
  const Machine machine = MakeMachine(4, 1, 1e9, 4e7, 1e15);
  graph::Graph graph = Train("dp=4", 1, Config());
  EXPECT_TRUE(RunPasses(EstimatePasses(ops_), {}, &graph).ok());
  const ModelWork work = *MeasureWork(graph, machine, {.num_groups = 1});
  EstimateOptions options;
  options.policy = policies_.Find("1f1b");
  options.bucket_bytes = 64 << 10;
  const StepEstimate overlapped = *EstimateStep(work, machine, options);
  options.overlaps_gradients = false;
  const StepEstimate exposed = *EstimateStep(work, machine, options);
  EXPECT_LT(overlapped.communication_s, 0.15 * exposed.gradient_reduction_s);
  EXPECT_GE(exposed.communication_s, exposed.gradient_reduction_s);
  EXPECT_NEAR(exposed.step_s - overlapped.step_s,
              exposed.communication_s - overlapped.communication_s, 1e-9);
}

// Gradients of weights run behind the all_reduces of input gradients, but not if they have phases
// of their own.
TEST_F(EstimateTest, GradientsOfWeightsHideReductionsOfInputGradients) {
  graph::Graph graph = Train("tp=4", 2, Config());
  EXPECT_TRUE(RunPasses(EstimatePasses(ops_), {}, &graph).ok());
  // Links so fast that the gradients of one layer hide all of its reductions, and so slow that
  // these take much longer.
  for (const double bytes_per_s : {1e10, 1e5}) {
    SCOPED_TRACE(bytes_per_s);
    const Machine machine = MakeMachine(4, 1, 1e9, bytes_per_s, 1e15);
    const ModelWork work = *MeasureWork(graph, machine, {.num_groups = 1});
    const StageWork& stage = work.stages[0];
    if (bytes_per_s > 1e9) {
      EXPECT_GT(stage.hidden_by_weights_s, 0.5 * stage.backward.communication_s);
      EXPECT_LE(stage.hidden_by_weights_s, stage.backward.communication_s);
    } else {
      EXPECT_GT(stage.hidden_by_weights_s, 0.5 * stage.weight.compute_s);
      EXPECT_LE(stage.hidden_by_weights_s, stage.weight.compute_s);
    }
    EstimateOptions options;
    options.policy = policies_.Find("1f1b");
    const StepEstimate hidden = *EstimateStep(work, machine, options);
    options.split_weight_gradients = true;
    const StepEstimate split = *EstimateStep(work, machine, options);
    EXPECT_NEAR(split.step_s - hidden.step_s, 2 * stage.hidden_by_weights_s, 1e-9 * split.step_s);
    options.split_weight_gradients = false;
    options.overlaps_gradients = false;
    const StepEstimate exposed = *EstimateStep(work, machine, options);
    EXPECT_NEAR(exposed.communication_s - hidden.communication_s, 2 * stage.hidden_by_weights_s,
                1e-9 * split.step_s);
  }
}

// A gigabyte a second between the devices of a node, and 50 MB/s between two nodes: 10 ms are worth
// 250 KB of an all_reduce of 2. The plan has the buckets that the estimate counts.
TEST_F(EstimateTest, BucketsAreSmallWhereLinksAreSlow) {
  const Machine machine = MakeMachine(2, 2, 1e11, 1e9, 5e7);
  const graph::Mesh mesh{"m", {{"d", 2}, {"e", 2}}};
  const auto bytes_over = [&](int axis, double largest) {
    const CommunicatingGroups groups =
        GroupsOf(machine, mesh, CollectiveKind::kAllReduce, {graph::WholeAxis(mesh, axis)}, 1);
    return BestBucketBytes(machine, groups, largest);
  };
  EXPECT_EQ(bytes_over(1, 4 << 20), 4 << 20);
  EXPECT_EQ(bytes_over(0, 4 << 20), 256 << 10);
  EXPECT_EQ(bytes_over(0, 400 << 10), 400 << 10);

  graph::ModelConfig config = Config();
  config.width = 256;
  const graph::Graph graph = Train("dp=2", 1, config);
  const auto buckets = [&](double network_bytes_per_s) {
    const Plan plan = CompileFor(graph, MakeMachine(1, 2, 1e11, 1e9, network_bytes_per_s));
    return std::count_if(
        plan.collectives.begin(), plan.collectives.end(),
        [](const CollectiveSpec& spec) { return spec.kind == CollectiveKind::kAllReduce; });
  };
  EXPECT_GT(buckets(5e7), 3 * buckets(1e9));
}

// Two nodes of 4 devices with one adapter each: of a ring over all devices one message leaves a
// node, of one over one device of each node all 4.
TEST_F(EstimateTest, AShiftSendsAsManyMessagesOutOfANodeAsItHasRings) {
  ClusterSpec spec = MakeMachine(4, 2, 1e11, 1e12, 1e8).cluster.spec();
  spec.levels[1].uplinks = 1;
  const Machine machine = {*Cluster::Create(std::move(spec))};
  const auto seconds = [&](const graph::Mesh& mesh, std::optional<int64_t> shift) {
    const CommunicatingGroups groups =
        GroupsOf(machine, mesh, CollectiveKind::kPermute, {graph::WholeAxis(mesh, 0)}, 1, shift);
    return PredictSeconds(machine, groups, 1e8);
  };
  const graph::Mesh whole{"m", {{"cp", 8}}};
  EXPECT_NEAR(seconds(whole, 1), 1, 0.01);
  EXPECT_NEAR(seconds(whole, 7), 1, 0.01);
  EXPECT_NEAR(seconds(whole, 2), 2, 0.01);
  EXPECT_NEAR(seconds(whole, std::nullopt), 4, 0.01);
  EXPECT_NEAR(seconds({"m", {{"cp", 2}, {"dp", 4}}}, 1), 4, 0.01);
}

TEST_F(EstimateTest, TensorParallelSumsAreExposed) {
  graph::Graph graph = Train("tp=4", 1, Config());
  const Machine machine = MakeMachine(4, 1, 1e11, 1e9, 1e9);
  CompileFor(graph, machine);
  // In each layer 2 sums forward and 2 backward; outside, for the embedding and the head's input
  // gradient, each of 16 * 32 * 64 floats. But for what gradients of weights hide.
  const double num_bytes = (4 * 4 + 2) * 16 * 32 * 64 * 4;
  EXPECT_TRUE(RunPasses(EstimatePasses(ops_), {}, &graph).ok());
  const ModelWork work = *MeasureWork(graph, machine, {.num_groups = 1});
  EXPECT_NEAR(estimate_.inline_communication_s + work.stages[0].hidden_by_weights_s,
              num_bytes * 2 * 3 / 4 / 1e9, 0.1 * estimate_.inline_communication_s);
  EXPECT_NEAR(estimate_.communication_s, estimate_.inline_communication_s,
              0.1 * estimate_.communication_s);
}

// The groups of dp leave the nodes, 4 at once through the uplink that a node has for each device;
// with one uplink for all, they take 4 times as long.
// A device of a ring computes with what it has while it passes that on: what is exposed is what
// takes longer than the block of attention beside it, and the last gradients, which nothing hides.
TEST_F(EstimateTest, ExchangesOfARingHideBehindAttention) {
  graph::ModelConfig config = Config(/*layers=*/2);
  config.context = 512;
  config.vocabulary = 16;
  const graph::Graph graph = Train("cp=4", 1, config, /*batch=*/4);
  const Machine slow = MakeMachine(4, 1, 1e9, 1e6, 1e6);
  CompileFor(graph, slow);
  // Keys and values of a device: forward 3 exchanges a layer, backward 3 of them and 3 of their
  // gradients.
  const double exchange = 2.0 * 4 * 512 / 4 * 64 * 4 / 1e6;
  const double all = 2 * 9 * exchange;
  EXPECT_LT(estimate_.inline_communication_s, all);
  EXPECT_GT(estimate_.inline_communication_s, 0.9 * all);
  // Fast links: all hide but the last of each layer.
  const Machine fast = MakeMachine(4, 1, 1e9, 1e9, 1e9);
  CompileFor(graph, fast);
  EXPECT_NEAR(estimate_.inline_communication_s, 2 * exchange / 1e3,
              0.2 * estimate_.inline_communication_s);
}

TEST_F(EstimateTest, GroupsShareUplinks) {
  const graph::Graph graph = Train("dp=2,tp=4", 1, Config());
  Machine machine = MakeMachine(4, 2, 1e15, 1e15, 1e9);
  CompileFor(graph, machine);
  const double apart = estimate_.gradient_reduction_s;
  ClusterSpec spec = machine.cluster.spec();
  spec.levels[1].uplinks = 1;
  machine.cluster = *Cluster::Create(spec);
  CompileFor(graph, machine);
  EXPECT_NEAR(estimate_.gradient_reduction_s / apart, 4, 0.01);
}

// One core does the work of all its devices; with as many cores as devices nothing is shared.
TEST_F(EstimateTest, DevicesThatShareCoresTakeTurns) {
  const graph::Graph graph = Train("dp=4", 1, Config());
  Machine machine = MakeMachine(4, 1, 1e9, 1e15, 1e15);
  CompileFor(graph, machine);
  const double apart = estimate_.step_s;
  machine.core_groups = {{4, 4}};
  CompileFor(graph, machine);
  EXPECT_NEAR(estimate_.step_s, apart, 1e-6 * apart);
  machine.core_groups = {{4, 2}};
  CompileFor(graph, machine);
  EXPECT_NEAR(estimate_.step_s, 2 * apart, 1e-3 * apart);
  EXPECT_TRUE(estimate_.is_bound_by_cores);
}

// While a stage waits, another has its core: a pipeline's bubble costs nothing there.
TEST_F(EstimateTest, APipelineOnOneCoreHasNoBubble) {
  Machine machine = MakeMachine(2, 1, 1e9, 1e15, 1e15);
  CompileFor(Train("dp=1", 2, Config()), machine);
  const double alone = estimate_.step_s;
  machine.core_groups = {{2, 1}};
  CompileFor(Train("pp=2", 2, Config()), machine);
  EXPECT_NEAR(estimate_.step_s, alone, 0.02 * alone);
}

// 4 micro-batches pass forward and backward: 8 messages, each of which takes a second from the core
// of both ends.
TEST_F(EstimateTest, MessagesTakeTimeFromTheCoresThatTheyShare) {
  Machine machine = MakeMachine(2, 1, 1e9, 1e15, 1e15);
  machine.core_groups = {{2, 1}};
  machine.core_shares = {1};
  const graph::Graph graph = Train("pp=2", 4, Config());
  CompileFor(graph, machine);
  const double without_latency = estimate_.step_s;
  ClusterSpec spec = machine.cluster.spec();
  spec.levels[0].latency_s += 1;
  machine.cluster = *Cluster::Create(spec);
  CompileFor(graph, machine);
  EXPECT_GE(estimate_.step_s - without_latency, 2 * 8);
  EXPECT_LE(estimate_.step_s - without_latency, 3 * 8);
}

// The sum of gradients takes a quarter of its time from the core, where that has to compute, too,
// whether the backward pass hides it or not.
TEST_F(EstimateTest, SumsOfGradientsTakeTimeFromTheCoreThatComputes) {
  bucket_bytes_ = 16 << 10;
  for (const double flops : {1e9, 1e13}) {
    SCOPED_TRACE(flops);
    Machine machine = MakeMachine(2, 1, flops, 1e10, 1e10);
    const graph::Graph graph = Train("dp=2", 1, Config());
    CompileFor(graph, machine);
    const double free = estimate_.step_s;
    const double reduction_s = estimate_.gradient_reduction_s;
    machine.core_groups = {{1, 2}, {1, 2}};
    machine.core_shares = {0.25};
    CompileFor(graph, machine);
    EXPECT_EQ(estimate_.step_s, free);
    machine.core_groups = {{1, 1}, {1, 1}};
    CompileFor(graph, machine);
    EXPECT_GE(estimate_.step_s, free);
    EXPECT_LE(estimate_.step_s, free + 0.25 * reduction_s);
    if (flops == 1e9) {
      EXPECT_GT(estimate_.step_s, free);
    }
    machine.core_shares = {1};  // nothing is hidden
    CompileFor(graph, machine);
    EXPECT_NEAR(estimate_.step_s, estimate_.compute_s + reduction_s, 1e-3 * free);
  }
}

// Of a network, only the part that its protocol takes; the rest of the time, cores compute.
TEST_F(EstimateTest, MessagesOfANetworkTakeTheirShareOfACore) {
  Machine machine = MakeMachine(1, 2, 1e9, 1e15, 1e6);
  machine.core_groups = {{1, 1}, {1, 1}};
  const graph::Graph graph = Train("pp=2", 4, Config());
  const auto seconds = [&](std::vector<double> shares) {
    machine.core_shares = std::move(shares);
    CompileFor(graph, machine);
    return estimate_.step_s;
  };
  const double none = seconds({1});
  // Batch 16 in 4 parts: 4 * 32 * 64 values of 4 bytes, there and back.
  const double on_the_way_s = 2 * 4 * (4 * 32 * 64 * 4 / 1e6);
  EXPECT_GT(seconds({1, 0.5}) - none, 0.5 * on_the_way_s * 0.5);
  EXPECT_LT(seconds({1, 0.5}) - none, 2 * 0.5 * on_the_way_s);
}

TEST_F(EstimateTest, ASlowKindOfDeviceHoldsTheOthersBack) {
  Machine machine = MakeMachine(2, 1, 1e9, 1e15, 1e15);
  const graph::Graph graph = Train("dp=2", 1, Config());
  CompileFor(graph, machine);
  const double fast = estimate_.step_s;
  ClusterSpec spec = machine.cluster.spec();
  spec.kinds.push_back(spec.kinds[0]);
  spec.kinds[1].name = "slow";
  spec.kinds[1].peak_flops_per_s.fill(5e8);
  spec.kinds[1].memory_bytes = 1000;
  spec.devices = {{1, 0}, {1, 1}};
  machine.cluster = *Cluster::Create(spec);
  CompileFor(graph, machine);
  EXPECT_NEAR(estimate_.step_s, 2 * fast, 0.01 * fast);
  EXPECT_EQ(estimate_.groups[0].memory_limit_bytes, 1000);
  EXPECT_FALSE(estimate_.fits());
}

TEST_F(EstimateTest, AClusterThatIsTooSmallIsAnError) {
  const Machine machine = MakeMachine(2, 1, 1e9, 1e9, 1e9);
  CompileOptions options;
  options.policies = &policies_;
  options.kernels = kernels::TraitsOf(kernels_, 1);
  options.machine = &machine;
  const absl::StatusOr<Plan> plan = Compile(ops_, Train("dp=4", 1, Config()), options);
  EXPECT_THAT(std::string(ToStd(plan.status().message())),
              ::testing::HasSubstr("needs 4 devices, and the cluster test has 2"));
}

// What is charged for sends that a graph does not split yet is what the graph that splits them
// costs. The cuts are those of the plan; between nodes, the links are slow.
TEST_F(EstimateTest, UnsplitSendsAreChargedAsSplitOnes) {
  const Machine machine = MakeMachine(4, 2, 1e11, 1e10, 1e9);
  for (const char* strategy : {"tp=4,pp=2", "tp=2,pp=2", "tp=2,pp=2,sp=true"}) {
    SCOPED_TRACE(strategy);
    graph::Graph graph = Train(strategy, 4, Config(8));
    CompileFor(graph, machine);
    EXPECT_TRUE(RunPasses(EstimatePasses(ops_), {}, &graph).ok());
    const ModelWork work = *MeasureWork(graph, machine, {.num_groups = 2});
    const bool has_split =
        std::any_of(work.transfers.begin(), work.transfers.end(),
                    [](const StageTransfer& each) { return each.sent_bytes < each.num_bytes; });
    EXPECT_EQ(has_split, strategy_.tp > 1 && !strategy_.sp);
    EstimateOptions options;
    options.policy = policies_.Find("1f1b");
    const StepEstimate unsplit = *EstimateStep(work, machine, options);
    EXPECT_NEAR(unsplit.step_s / estimate_.step_s, 1, 0.01);
    EXPECT_NEAR(unsplit.inline_communication_s / estimate_.inline_communication_s, 1, 0.01);
    EXPECT_NEAR(unsplit.transfer_s, estimate_.transfer_s, 0.01 * estimate_.step_s);
    for (size_t g = 0; g < 2; ++g) {
      EXPECT_NEAR(unsplit.groups[g].memory.total() / estimate_.groups[g].memory.total(), 1, 0.05);
    }
  }
}

// Joining the stages of a finer cut gives the work of a coarser one.
TEST_F(EstimateTest, JoinedStagesHaveTheWorkOfTheirParts) {
  const Machine machine = MakeMachine(8, 1, 1e11, 1e10, 1e10);
  graph::Graph fine = Train("dp=2,tp=2,pp=4", 4, Config(8));
  graph::Graph coarse = Train("dp=2,tp=2,pp=2", 4, Config(8));
  const auto measure = [&](graph::Graph& graph) {
    EXPECT_TRUE(RunPasses(EstimatePasses(ops_), {}, &graph).ok());
    return *MeasureWork(graph, machine, {.num_groups = 2});
  };
  const ModelWork expected = measure(coarse);
  const ModelWork joined = Join(measure(fine), {0, 2});
  ASSERT_EQ(joined.stages.size(), 2u);
  for (size_t s = 0; s < 2; ++s) {
    const StageWork& a = joined.stages[s];
    const StageWork& b = expected.stages[s];
    EXPECT_NEAR(a.forward.compute_s, b.forward.compute_s, 1e-9 * b.forward.compute_s);
    EXPECT_NEAR(a.backward.compute_s, b.backward.compute_s, 1e-9 * b.backward.compute_s);
    EXPECT_NEAR(a.backward.communication_s, b.backward.communication_s,
                1e-9 * b.backward.communication_s);
    EXPECT_NEAR(a.update.compute_s, b.update.compute_s, 1e-6 * b.update.compute_s);
    EXPECT_DOUBLE_EQ(a.memory.parameters, b.memory.parameters);
    EXPECT_DOUBLE_EQ(a.memory.optimizer, b.memory.optimizer);
    EXPECT_NEAR(a.memory.gradients, b.memory.gradients, 64);
    EXPECT_NEAR(a.memory.activations, b.memory.activations, 0.01 * b.memory.activations);
    EXPECT_EQ(a.gradients.size(), b.gradients.size());
  }
  EXPECT_EQ(joined.transfers.size(), expected.transfers.size());
}

}  // namespace
}  // namespace penstock::planner
