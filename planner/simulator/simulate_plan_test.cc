#include "planner/simulator/simulate_plan.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "planner/cluster/cluster_model.h"
#include "planner/cluster/presets.h"
#include "planner/compile.h"
#include "planner/simulator/peak_step.h"
#include "tests/support/gpt_plan.h"
#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Two pairs of devices of 1 GFLOP/s; devices of a pair share a fast link, pairs one slow uplink.
Machine TwoPairs(double uplink_bytes_per_s, double latency_s = 0, double pair_bytes_per_s = 1e15) {
  ClusterSpec spec;
  spec.name = "pairs";
  DeviceKind kind;
  kind.name = "device";
  kind.memory_bytes = int64_t{1} << 30;
  kind.memory_bytes_per_s = 1e15;
  kind.peak_flops_per_s.fill(1e9);
  kind.efficiency = {{1, 1}};
  spec.kinds = {kind};
  NetworkLevel pair;
  pair.name = "pair";
  pair.fan_out = {2};
  pair.bytes_per_s = pair_bytes_per_s;
  pair.uplinks = kUplinkPerDevice;
  NetworkLevel all = pair;
  all.name = "all";
  all.bytes_per_s = uplink_bytes_per_s;
  all.latency_s = latency_s;
  all.uplinks = 1;
  spec.levels = {pair, all};
  absl::StatusOr<Cluster> cluster = Cluster::Create(spec);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return {*std::move(cluster)};
}

class SimulatePlanTest : public testing::PlannerFixture {
 protected:
  Plan PlanOf(std::string_view text, const std::string& policy = "gpipe") {
    CompileOptions options;
    options.policies = &policies_;
    options.policy = policy;
    options.kernels = kernels::TraitsOf(kernels_, 1);
    const absl::StatusOr<Plan> plan = planner::Compile(ops_, MustParse(text), options);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *plan;
  }
  Simulation Simulate(const Plan& plan, const Machine& machine, bool keeps_events = false) {
    SimulationOptions options;
    options.keeps_events = keeps_events;
    const absl::StatusOr<Simulation> simulation =
        SimulatePlan(plan, ops_, policies_, machine, options);
    EXPECT_TRUE(simulation.ok()) << simulation.status();
    return *simulation;
  }
  const kernels::KernelRegistry kernels_ = kernels::CpuKernels();
  const PolicyRegistry policies_ = BuiltinPolicies();
};

// 2 * 100 * 100 * 100 flops at 1 GFLOP/s.
constexpr char kProduct[] = R"(graph g {
  %x = input : f32[100, 100]
  %w = parameter : f32[100, 100]
  %y = matmul(%x, %w) : f32[100, 100]
  return %y
})";

TEST_F(SimulatePlanTest, AKernelTakesWhatItsDeviceNeeds) {
  const Plan plan = PlanOf(kProduct);
  const Simulation simulation = Simulate(plan, TwoPairs(1e6));
  EXPECT_NEAR(simulation.step_s, 2e-3, 1e-6);
  EXPECT_NEAR(simulation.mfu, 1, 1e-3);
  EXPECT_NEAR(PeakStepSeconds(plan, ops_, TwoPairs(1e6)), simulation.mfu * simulation.step_s,
              1e-12);
  EXPECT_NEAR(simulation.bubble(), 0, 1e-3);
  EXPECT_EQ(simulation.observed, (std::vector<uint32_t>{0}));
  EXPECT_NEAR(simulation.times[0].compute_s, 2e-3, 1e-6);
}

// Products of 2 ms with matrices of 40 kB on the host.
constexpr char kHostMatrices[] = R"(graph g {
  %x = input : f32[100, 100]
  %m0 = state {memory="host"} : f32[100, 100]
  %m1 = state {memory="host"} : f32[100, 100]
  %m2 = state {memory="host"} : f32[100, 100]
  %m3 = state {memory="host"} : f32[100, 100]
  %a = matmul(%x, %m0) : f32[100, 100]
  %b = matmul(%a, %m1) : f32[100, 100]
  %c = matmul(%b, %m2) : f32[100, 100]
  %d = matmul(%c, %m3) : f32[100, 100]
  return %d
})";

// Milliseconds that the copies of the step took.
std::vector<double> CopyMs(const Plan& plan, const Simulation& simulation) {
  std::vector<double> found;
  for (const SimulatedEvent& event : simulation.events) {
    if (event.actor == kNone || event.step != simulation.step) continue;
    if (plan.devices[event.device].actors[event.actor].kind != ActorKind::kCopy) continue;
    found.push_back(1e3 * (event.end_s - event.begin_s));
  }
  return found;
}

TEST_F(SimulatePlanTest, CopiesToAndFromTheHostGoOnBesideKernels) {
  const Plan plan = PlanOf(kHostMatrices);
  const auto simulate = [&](double host_link_bytes_per_s, bool keeps_events = false) {
    ClusterSpec spec = TwoPairs(1e15).cluster.spec();
    spec.kinds[0].host_link_bytes_per_s = host_link_bytes_per_s;
    return Simulate(plan, {*Cluster::Create(std::move(spec))}, keeps_events);
  };
  // Copies of 1 ms hide behind the product before, but for the first one.
  const Simulation hidden = simulate(40e6, true);
  EXPECT_NEAR(hidden.step_s, 1e-3 + 4 * 2e-3, 1e-5);
  EXPECT_NEAR(hidden.times[0].compute_s, 4 * 2e-3, 1e-5);
  EXPECT_NEAR(hidden.exposed_comm_s(), 1e-3, 1e-5);
  EXPECT_NEAR(hidden.bubble(), 0, 1e-3);
  EXPECT_THAT(CopyMs(plan, hidden), Each(DoubleNear(1, 1e-3)));
  EXPECT_THAT(CopyMs(plan, hidden), SizeIs(4));
  // Those of 4 ms are what a step takes, with the product behind the last one.
  EXPECT_NEAR(simulate(10e6).step_s, 4 * 4e-3 + 2e-3, 1e-5);
  // A device that works in the memory of its host, such as a CPU, copies there itself.
  ClusterSpec cpu = TwoPairs(1e15).cluster.spec();
  cpu.kinds[0].memory_bytes_per_s = 800e6;
  const Simulation in_turns = Simulate(plan, {*Cluster::Create(std::move(cpu))}, true);
  EXPECT_THAT(CopyMs(plan, in_turns), Each(DoubleNear(0.1, 1e-3)));
  EXPECT_THAT(CopyMs(plan, in_turns), SizeIs(4));
  EXPECT_NEAR(in_turns.times[0].compute_s, in_turns.step_s, 1e-9);
}

// What is computed again keeps devices busy, but trains no faster.
TEST_F(SimulatePlanTest, RecomputedFlopsAreNoneOfTheModels) {
  const Machine machine = {*FindClusterPreset("hgx-h100:1")};
  const auto simulate = [&](const char* strategy) {
    testing::GptPlanOptions options;
    options.strategy = strategy;
    const absl::StatusOr<Simulation> simulation =
        SimulatePlan(testing::PlanSmallGpt(options, policies_), ops_, policies_, machine);
    EXPECT_TRUE(simulation.ok()) << simulation.status();
    return *simulation;
  };
  for (const char* layout : {"dp=2,tp=2", "cp=2"}) {
    SCOPED_TRACE(layout);
    const Simulation kept = simulate(layout);
    const Simulation again = simulate(StrCat(layout, ",recompute=full").c_str());
    EXPECT_EQ(kept.hfu, kept.mfu);
    EXPECT_NEAR(again.mfu * again.step_s, kept.mfu * kept.step_s, 1e-9 * kept.mfu * kept.step_s);
    // Of four passes of flops, one is a forward pass again; the head is not computed again.
    EXPECT_GT(again.hfu, 1.2 * again.mfu);
    EXPECT_LT(again.hfu, 1.34 * again.mfu);
  }
}

// Two stages on different pairs would be devices 0 and 1; four stages cross the uplink once.
constexpr char kPipeline[] = R"(mesh m = [mb=4 temporal]
graph g {
  %x = input : f32[400, 100] @[mb, _] stage 0
  %w0 = parameter : f32[100, 100] stage 0
  %w1 = parameter : f32[100, 100] stage 1
  %h = matmul(%x, %w0) : f32[400, 100] @[mb, _] stage 0
  %y = matmul(%h, %w1) : f32[400, 100] @[mb, _] stage 1
  %loss = reduce_sum(%y) {axes=[0, 1]} : f32[] stage 1
  return %loss
})";

TEST_F(SimulatePlanTest, StepsOfAPipelineOverlap) {
  const Plan plan = PlanOf(kPipeline);
  ASSERT_EQ(plan.devices.size(), 2u);
  // Both stages compute all the time: 4 micro-batches of 2 ms each.
  const Simulation simulation = Simulate(plan, TwoPairs(1e15), true);
  EXPECT_NEAR(simulation.step_s, 8e-3, 0.2e-3);
  EXPECT_LT(simulation.bubble(), 0.05);
  // Of each device, a phase F for each micro-batch of each of the four steps.
  int num_phases = 0;
  for (const SimulatedEvent& event : simulation.events) {
    EXPECT_LE(event.begin_s, event.end_s);
    EXPECT_LT(event.microbatch, 4u);
    const PhasePlan& phase = plan.devices[event.device].phases[event.phase];
    num_phases += event.actor == kNone && phase.kind == PhaseKind::kForward ? 1 : 0;
  }
  EXPECT_EQ(num_phases, 2 * 4 * 4);
}

TEST_F(SimulatePlanTest, DevicesThatShareACoreTakeTurns) {
  Machine machine = TwoPairs(1e15);
  machine.core_groups = {{2, 1}};
  const Simulation simulation = Simulate(PlanOf(kPipeline), machine);
  EXPECT_NEAR(simulation.step_s, 16e-3, 0.5e-3);
}

// Four devices add up what they have of 4 MB over one uplink for each pair.
constexpr char kSum[] = R"(mesh m = [a=4]
graph g {
  %x = input : f32[4, 1000000] @[a, _]
  %y = reduce_sum(%x) {axes=[0]} : f32[1000000] @[_]
  return %y
})";

TEST_F(SimulatePlanTest, CommunicationTakesWhatTheClusterSays) {
  const Plan plan = PlanOf(kSum);
  const Simulation slow = Simulate(plan, TwoPairs(1e8));
  const Simulation fast = Simulate(plan, TwoPairs(1e9));
  EXPECT_GT(slow.exposed_comm_s(), 40e-3);
  EXPECT_NEAR(slow.exposed_comm_s() / fast.exposed_comm_s(), 10, 0.1);
  EXPECT_NEAR(slow.step_s - fast.step_s, slow.exposed_comm_s() - fast.exposed_comm_s(), 1e-4);
}

// While one half of the batch is reduced, the device computes with the other. Unless the link takes
// longer than all computation, little but the beginning and the end of a pass is waited for.
TEST_F(SimulatePlanTest, SubBatchesHideTensorParallelCommunication) {
  const auto simulate = [&](const char* strategy, double bytes_per_s) {
    testing::GptPlanOptions options;
    options.strategy = strategy;
    options.microbatches = 1;
    const absl::StatusOr<Simulation> simulation = SimulatePlan(
        testing::PlanSmallGpt(options, policies_), ops_, policies_, TwoPairs(1e15, 0, bytes_per_s));
    EXPECT_TRUE(simulation.ok()) << simulation.status();
    return *simulation;
  };
  // 64 KiB are reduced in a third of the time of the half layer before it, and in all of it.
  for (const double bytes_per_s : {60e6, 20e6}) {
    SCOPED_TRACE(bytes_per_s);
    const Simulation whole = simulate("tp=2", bytes_per_s);
    const Simulation halves = simulate("tp=2,subbatches=2", bytes_per_s);
    EXPECT_GT(whole.exposed_comm_s(), 0.05 * whole.step_s);
    EXPECT_LT(halves.exposed_comm_s(), 0.6 * whole.exposed_comm_s());
    EXPECT_LT(halves.step_s, 0.99 * whole.step_s);
    EXPECT_NEAR(halves.times[0].compute_s, whole.times[0].compute_s, 1e-2 * whole.step_s);
  }
}

// A message takes a tenth of its time from a core at each end: 0.8 ms in all of two cores.
TEST_F(SimulatePlanTest, CommunicationTakesItsPartOfTheCore) {
  const Plan plan = PlanOf(kPipeline);
  Machine machine = TwoPairs(1e15);
  ClusterSpec spec = machine.cluster.spec();
  spec.levels[0].bytes_per_s = 4e7;  // 1 ms for the 40 kB of a micro-batch, beside 2 ms of compute
  machine.cluster = *Cluster::Create(spec);
  machine.core_groups = {{2, 2}};
  EXPECT_NEAR(Simulate(plan, machine).step_s, 8e-3, 0.3e-3);
  machine.core_shares = {0.1};
  EXPECT_NEAR(Simulate(plan, machine).step_s, 8.6e-3, 0.3e-3);
  machine.core_groups = {{2, 3}};  // one core more than devices
  EXPECT_NEAR(Simulate(plan, machine).step_s, 8e-3, 0.3e-3);
}

// Eight devices of 1 TFLOP/s on one switch.
Machine OneSwitch(double bytes_per_s) {
  ClusterSpec spec = TwoPairs(bytes_per_s).cluster.spec();
  spec.kinds[0].peak_flops_per_s.fill(1e12);
  spec.levels = {spec.levels[1]};
  spec.levels[0].fan_out = {8};
  spec.levels[0].uplinks = kUplinkPerDevice;
  absl::StatusOr<Cluster> cluster = Cluster::Create(spec);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return {*std::move(cluster)};
}

// A stage reduces its gradients while the stages before it are still in their last backward phases.
// What it sends them goes ahead of the reductions.
TEST_F(SimulatePlanTest, ReductionsOfGradientsDoNotHoldUpAPipeline) {
  const auto simulate = [this](const std::string& strategy, int64_t batch) {
    testing::GptPlanOptions gpt;
    gpt.strategy = strategy;
    gpt.batch = batch;
    const absl::StatusOr<Simulation> simulation =
        SimulatePlan(testing::PlanSmallGpt(gpt, policies_), ops_, policies_, OneSwitch(1e8));
    EXPECT_TRUE(simulation.ok()) << simulation.status();
    return *simulation;
  };
  const Simulation alone = simulate("pp=4", 4);
  const Simulation two = simulate("dp=2,pp=4", 8);
  // What a group reduces without a pipeline: the gradients of all four stages, one after another.
  const double all_stages_s = simulate("dp=2", 8).step_s - simulate("dp=1", 4).step_s;
  // 0.91 of it, if the sends waited for the reductions.
  EXPECT_LT(two.step_s, 0.8 * all_stages_s);
  EXPECT_GT(two.exposed_comm_s(), alone.exposed_comm_s());
}

// On clusters whose devices have links of their own, and where those of a host share one.
TEST_F(SimulatePlanTest, OneOfTheDevicesThatAreAlikeStandsForAll) {
  struct Case {
    const char* strategy;
    const char* cluster;
    uint32_t most_fired;
  };
  for (const Case& each :
       {Case{"dp=16", "hgx-h100:2", 2}, Case{"dp=4,tp=2,pp=2", "hgx-h100:2", 8},
        Case{"dp=8,tp=2,zero=2", "hgx-h100:2", 8}, Case{"dp=8,pp=2", "v100-ib100:2", 16},
        Case{"dp=4,tp=4", "v100-ib100:2", 16}, Case{"dp=16,tp=4,sp=true", "v100-ib100:8", 32},
        Case{"dp=4,cp=2,pp=2", "hgx-h100:2", 16}, Case{"dp=32,tp=2", "tpu-v4:4x4x4", 64}}) {
    SCOPED_TRACE(StrCat(each.strategy, " on ", each.cluster));
    testing::GptPlanOptions gpt;
    gpt.strategy = each.strategy;
    gpt.batch = 64;
    gpt.microbatches = 2;
    const FoldedPlan plan = testing::PlanSmallGpt(gpt, policies_);
    const Machine machine = {*FindClusterPreset(each.cluster)};
    SimulationOptions options;
    const absl::StatusOr<Simulation> exact = SimulatePlan(plan, ops_, policies_, machine, options);
    options.aggregates = true;
    const absl::StatusOr<Simulation> aggregated =
        SimulatePlan(plan, ops_, policies_, machine, options);
    ASSERT_TRUE(exact.ok()) << exact.status();
    ASSERT_TRUE(aggregated.ok()) << aggregated.status();
    EXPECT_EQ(exact->num_fired_devices, plan.num_devices());
    EXPECT_LE(aggregated->num_fired_devices, each.most_fired);
    EXPECT_NEAR(aggregated->step_s, exact->step_s, 1e-9 * exact->step_s);
    EXPECT_NEAR(aggregated->begin_s, exact->begin_s, 1e-9 * exact->begin_s);
    EXPECT_NEAR(aggregated->mfu, exact->mfu, 1e-9 * exact->mfu);
    EXPECT_NEAR(aggregated->bubble(), exact->bubble(), 1e-6);
    EXPECT_NEAR(aggregated->exposed_comm_s(), exact->exposed_comm_s(), 1e-6 * exact->step_s);
    EXPECT_EQ(aggregated->observed, exact->observed);
  }
}

TEST_F(SimulatePlanTest, APlanTakesAsLongFoldedAsSpelledOut) {
  const FoldedPlan folded = testing::PlanSmallGpt({}, policies_);
  const absl::StatusOr<Plan> plan = ExpandPlan(folded);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Machine machine = {*FindClusterPreset("v100-ib100:1")};
  const absl::StatusOr<Simulation> of_folded = SimulatePlan(folded, ops_, policies_, machine);
  ASSERT_TRUE(of_folded.ok()) << of_folded.status();
  const Simulation spelled_out = Simulate(*plan, machine);
  EXPECT_EQ(of_folded->step_s, spelled_out.step_s);
  EXPECT_EQ(of_folded->mfu, spelled_out.mfu);
  EXPECT_EQ(of_folded->firings, spelled_out.firings);
  EXPECT_EQ(of_folded->exposed_comm_s(), spelled_out.exposed_comm_s());
}

TEST_F(SimulatePlanTest, TooFewDevicesAreAnError) {
  Machine machine = TwoPairs(1e9);
  ClusterSpec spec = machine.cluster.spec();
  spec.levels = {spec.levels[0]};
  machine.cluster = *Cluster::Create(spec);
  EXPECT_THAT(SimulatePlan(PlanOf(kSum), ops_, policies_, machine).status().message(),
              HasSubstr("the plan needs 4 devices, and the cluster pairs has 2"));
}

}  // namespace
}  // namespace penstock::planner
