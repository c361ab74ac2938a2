// Every policy trains a GPT on four groups of devices: with the numbers of one device, each group
// running its phases in the planned order and with the predicted memory, in the engine and in the
// simulator.

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/simulated_trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/engine/link.h"
#include "actors/session/session.h"
#include "actors/trace/register_use.h"
#include "base/random.h"
#include "base/strings.h"
#include "graph/models/model.h"
#include "graph/training.h"
#include "kernels/kernel.h"
#include "planner/cluster/presets.h"
#include "planner/compile.h"
#include "planner/policy/order_csv.h"
#include "planner/policy/pipeline.h"
#include "planner/simulator/simulate_plan.h"
#include "planner/strategy/directions.h"
#include "planner/strategy/stages.h"
#include "planner/strategy/strategy.h"
#include "tests/support/watched_device.h"

namespace penstock {
namespace {

using planner::PhaseChoice;
using planner::Plan;

constexpr int64_t kMicrobatches = 8;
constexpr int64_t kBatch = 8;
constexpr int kSteps = 6;

class PoliciesTest : public ::testing::Test {
 protected:
  Plan PlanOf(const planner::Strategy& strategy, const std::string& policy,
              const planner::PolicyRegistry& policies,
              const std::vector<int>& device_groups = {}) const {
    const graph::Model& model = *models_.FindModel("gpt");
    graph::ModelConfig config = model.defaults;
    config.layers = 8;
    config.width = 16;
    config.heads = 2;
    config.context = 8;
    config.dtype = DType::kF64;
    graph::Graph forward =
        *graph::BuildModelGraph(ops_, model, config, graph::ModelUse::kTrain, kBatch);
    graph::Graph graph = *graph::BuildTrainingGraph(ops_, std::move(forward), {});
    EXPECT_TRUE(planner::ApplyStrategy(strategy, kMicrobatches, model.tensor_splits, graph).ok());
    EXPECT_TRUE(planner::AssignStages(strategy.num_stages(), graph).ok());
    planner::CompileOptions options;
    options.policy = policy;
    options.policies = &policies;
    options.kernels = kernels::TraitsOf(kernels_, 1);
    options.chunks_per_group = static_cast<int>(strategy.vpp);
    options.device_groups = device_groups;
    const absl::StatusOr<Plan> plan = planner::Compile(ops_, std::move(graph), options);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.value_or(Plan());
  }

  struct Training {
    std::vector<double> losses;
    std::vector<actors::TraceEvent> events;
    // Of each device.
    std::vector<uint64_t> allocated_bytes;
    std::vector<std::vector<bool>> touched_lines;
  };
  Training Train(const Plan& plan) const {
    std::vector<testing::WatchedMemory> memories(plan.devices.size());
    actors::SessionOptions options;
    options.create_device = [&memories](uint32_t device) {
      return std::make_unique<testing::WatchedDevice>(&memories[device]);
    };
    options.kernels = &kernels_;
    options.policies = &policies_;
    options.trace = true;
    auto session = actors::Session::Start(plan, options);
    EXPECT_TRUE(session.ok()) << session.status();
    Training training;
    for (int step = 0; step < kSteps; ++step) {
      actors::Feeds feeds;
      for (const planner::FeedPlan& feed : plan.feeds) {
        Tensor tensor(feed.type);
        for (int64_t i = 0; i < tensor.num_elements(); ++i) {
          tensor.As<int32_t>()[i] =
              static_cast<int32_t>(RandomWord({7, static_cast<uint32_t>(step), 0}, i) % 100);
        }
        feeds[feed.name] = std::move(tensor);
      }
      const auto result = (*session)->Run(feeds);
      EXPECT_TRUE(result.ok()) << result.status();
      training.losses.push_back(result->fetches[0].second.template As<double>()[0]);
    }
    training.events = (*session)->TakeTrace();
    for (const testing::WatchedMemory& memory : memories) {
      training.allocated_bytes.push_back(memory.num_bytes(MemoryKind::kDevice));
      EXPECT_EQ(memory.num_bytes(MemoryKind::kPinned), 0u);
      training.touched_lines.push_back(memory.touched_lines());
    }
    return training;
  }

  // Lines of a device's arena.
  struct Lines {
    std::vector<bool> written;  // by what has run, or filled before the first step
    std::vector<bool> scratch;  // of kernels, which need not use all of theirs
  };
  static void Mark(uint64_t offset, uint64_t num_bytes, std::vector<bool>* lines) {
    if (num_bytes == 0) return;
    for (uint64_t l = offset / testing::kLineBytes; l * testing::kLineBytes < offset + num_bytes;
         ++l) {
      (*lines)[l] = true;
    }
  }

  // What the actors that a simulation has fired write on the device.
  static Lines LinesOf(const Plan& plan, uint32_t d,
                       const std::vector<planner::SimulatedEvent>& events) {
    const planner::DevicePlan& device = plan.devices[d];
    const uint64_t num_lines = (device.arena_bytes + testing::kLineBytes - 1) / testing::kLineBytes;
    Lines lines = {std::vector<bool>(num_lines), std::vector<bool>(num_lines)};
    for (const planner::StatePlan& state : plan.states) {
      for (const planner::StatePlacement& placement : state.placements) {
        if (placement.device != d) continue;
        Mark(device.registers[placement.reg].offset, placement.tile.num_bytes(), &lines.written);
      }
    }
    for (const planner::SimulatedEvent& event : events) {
      if (event.device != d || event.actor == planner::kNone) continue;
      const planner::ActorPlan& actor = device.actors[event.actor];
      Mark(actor.workspace_offset, actor.workspace_bytes, &lines.scratch);
      for (size_t i = 0; i < actor.outputs.size(); ++i) {
        if (actor.outputs[i].reg == planner::kNone) continue;
        const planner::RegisterPlan& reg = device.registers[actor.outputs[i].reg];
        const uint64_t instance =
            reg.per_microbatch ? uint64_t{event.step} * plan.num_microbatches + event.microbatch
                               : event.step;
        const uint64_t num_bytes =
            planner::IsCommunication(actor.kind)
                ? actors::DescribeComm(plan, d, event.actor).tensors[i].output_bytes
                : plan.kernels[actor.kernel].outputs[i].num_bytes();
        Mark(reg.offset + instance % reg.slots * reg.slot_bytes + actor.outputs[i].offset,
             num_bytes, &lines.written);
      }
    }
    return lines;
  }

  // The most credits of each edge within the compute lane that are in use at once: what the order
  // of the lane makes of them.
  static std::vector<std::pair<uint32_t, int64_t>> CreditsInUse(const Plan& plan, uint32_t d,
                                                                const actors::DeviceUse& use) {
    std::vector<std::pair<uint32_t, int64_t>> most;
    for (const actors::EdgeUse& edge : use.edges) {
      const auto& phases = plan.devices[d].phases;
      if (phases[edge.producer_phase].lane != planner::Lane::kCompute ||
          phases[edge.consumer_phase].lane != planner::Lane::kCompute) {
        continue;
      }
      int64_t in_use = 0;
      for (const actors::UseSample& sample : edge.credits_in_use) {
        in_use = std::max(in_use, sample.value);
      }
      most.push_back({edge.capacity, in_use});
    }
    return most;
  }

  // The memory of a session is that of the simulated plan: what is allocated, what is written, and
  // what the order of phases keeps in use at once.
  static void ExpectMemory(const Plan& plan, const Training& training,
                           const std::vector<planner::SimulatedEvent>& simulated) {
    const std::vector<actors::TraceEvent> events = cli::TraceOf(simulated, /*ticks_per_s=*/1e12);
    const std::vector<actors::DeviceUse> predicted_use = actors::UseOverTime(plan, events);
    const std::vector<actors::DeviceUse> use = actors::UseOverTime(plan, training.events);
    for (uint32_t d = 0; d < plan.devices.size(); ++d) {
      SCOPED_TRACE(StrCat("device ", d));
      EXPECT_EQ(training.allocated_bytes[d], plan.devices[d].arena_bytes);
      EXPECT_EQ(plan.predicted_peak_bytes[d], plan.devices[d].arena_bytes);
      const Lines lines = LinesOf(plan, d, simulated);
      uint64_t num_written = 0;
      for (size_t l = 0; l < lines.written.size(); ++l) {
        num_written += lines.written[l] ? 1 : 0;
        EXPECT_TRUE(!lines.written[l] || training.touched_lines[d][l]) << "line " << l;
        EXPECT_TRUE(lines.written[l] || lines.scratch[l] || !training.touched_lines[d][l])
            << "line " << l;
      }
      EXPECT_GT(num_written, lines.written.size() / 2);
      const auto predicted = CreditsInUse(plan, d, predicted_use[d]);
      EXPECT_FALSE(predicted.empty());
      EXPECT_EQ(CreditsInUse(plan, d, use[d]), predicted);
      for (const auto& [capacity, in_use] : predicted) EXPECT_LE(in_use, capacity);
    }
  }

  // The phases of a step in the compute lane of a device, in the order in which they began.
  template <typename Event, typename Begin>
  static std::vector<PhaseChoice> OrderOf(const Plan& plan, const std::vector<Event>& events,
                                          uint32_t device, int64_t step, const Begin& begin) {
    std::vector<std::pair<decltype(begin(events[0])), PhaseChoice>> phases;
    for (const Event& event : events) {
      if (event.device != device || event.step != step || event.actor != planner::kNone) continue;
      const planner::PhasePlan& phase = plan.devices[device].phases[event.phase];
      if (phase.lane != planner::Lane::kCompute) continue;
      phases.push_back(
          {begin(event),
           {phase.kind, static_cast<int>(event.microbatch), static_cast<int>(phase.chunk)}});
    }
    std::stable_sort(phases.begin(), phases.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<PhaseChoice> order;
    for (const auto& [when, phase] : phases) order.push_back(phase);
    return order;
  }

  void ExpectTrains(const planner::Strategy& strategy, const std::string& policy,
                    const planner::PolicyRegistry& policies,
                    const std::vector<int>& device_groups = {}) const {
    const Plan plan = PlanOf(strategy, policy, policies, device_groups);
    ASSERT_EQ(plan.devices.size(), 4u);
    const Training training = Train(plan);
    const Training alone = Train(PlanOf({}, "1f1b", policies_));
    ASSERT_EQ(training.losses.size(), alone.losses.size());
    for (size_t i = 0; i < alone.losses.size(); ++i) {
      EXPECT_NEAR(training.losses[i], alone.losses[i], 1e-9 * alone.losses[i]) << "step " << i;
    }
    const planner::Machine machine = {*planner::FindClusterPreset("hgx-h100:1")};
    planner::SimulationOptions options;
    options.keeps_events = true;
    const absl::StatusOr<planner::Simulation> simulation =
        planner::SimulatePlan(plan, ops_, policies_, machine, options);
    ASSERT_TRUE(simulation.ok()) << simulation.status();
    for (uint32_t d = 0; d < 4; ++d) {
      const std::vector<PhaseChoice>& planned = plan.stages[plan.devices[d].stage].order;
      EXPECT_FALSE(planned.empty());
      EXPECT_EQ(OrderOf(plan, training.events, d, kSteps - 1,
                        [](const actors::TraceEvent& event) { return event.begin_ns; }),
                planned)
          << "device " << d;
      // Phases that take no time in the model begin together.
      const std::vector<PhaseChoice> simulated =
          OrderOf(plan, simulation->events, d, 2,
                  [](const planner::SimulatedEvent& event) { return event.begin_s; });
      EXPECT_EQ(simulated, planned) << "device " << d;
    }
    ExpectMemory(plan, training, simulation->events);
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
  const graph::ModelRegistry models_ = graph::BuiltinModels();
  const kernels::KernelRegistry kernels_ = kernels::CpuKernels();
  const planner::PolicyRegistry policies_ = planner::BuiltinPolicies();
};

class NamedPolicyTest : public PoliciesTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(NamedPolicyTest, TrainsWithTheNumbersOfOneDeviceInThePlannedOrder) {
  planner::Strategy strategy;
  strategy.pp = 4;
  strategy.vpp = planner::StagesPerGroup(*policies_.Find(GetParam()));
  ExpectTrains(strategy, GetParam(), policies_);
}

INSTANTIATE_TEST_SUITE_P(All, NamedPolicyTest,
                         ::testing::Values("gpipe", "1f1b", "eager-1f1b", "interleaved",
                                           "looped-bfs", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v",
                                           "v-half", "v-min", "dualpipev", "chimera", "dualpipe",
                                           "auto"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Orders that were written to a file and read again.
TEST_F(PoliciesTest, OrdersOfAFileTrainToo) {
  for (const char* name : {"zb-h2", "dualpipe"}) {
    SCOPED_TRACE(name);
    const planner::Policy& policy = *policies_.Find(name);
    const planner::PolicyNeeds needs = policy.needs();
    const planner::Pipeline pipeline = *planner::MakePipeline({.num_groups = 4,
                                                               .num_microbatches = kMicrobatches,
                                                               .num_chunks = needs.min_chunks,
                                                               .placement = *needs.placement});
    const std::string csv =
        planner::OrdersToCsv(pipeline, *planner::PlanPipeline(policy, pipeline));
    planner::PolicyRegistry policies = policies_;
    ASSERT_TRUE(
        policies.Add(planner::MakeOrdersPolicy("o.csv", *planner::ParseOrdersCsv(csv, "o.csv")))
            .ok());
    planner::Strategy strategy;
    strategy.pp = 4;
    ExpectTrains(strategy, "o.csv", policies);
  }
}

// Stages on the groups of devices in another order: the first of the pipeline on device 2.
TEST_F(PoliciesTest, GroupsOfDevicesInAnyOrderTrainToo) {
  const std::vector<int> device_groups = {2, 0, 3, 1};
  for (const char* policy : {"1f1b", "zb-v", "dualpipe"}) {
    SCOPED_TRACE(policy);
    planner::Strategy strategy;
    strategy.pp = 4;
    strategy.vpp = planner::StagesPerGroup(*policies_.Find(policy));
    ExpectTrains(strategy, policy, policies_, device_groups);
    const Plan plan = PlanOf(strategy, policy, policies_, device_groups);
    const auto embedding =
        std::find_if(plan.states.begin(), plan.states.end(),
                     [](const planner::StatePlan& state) { return state.name == "wte"; });
    ASSERT_NE(embedding, plan.states.end());
    EXPECT_EQ(embedding->placements[0].device, 2u);
  }
}

}  // namespace
}  // namespace penstock
