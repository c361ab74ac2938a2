#include "actors/engine/check_plan.h"

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/engine_harness.h"
#include "tests/support/engine_plan.h"
#include "tests/support/sanitizers.h"

namespace penstock::actors {
namespace {

using planner::Lane;
using planner::PhaseKind;
using planner::Plan;
using testing::EngineHarness;
using testing::EnginePlanBuilder;
using testing::EngineTestKernels;
using testing::HarnessOptions;
using ::testing::HasSubstr;
using testing::kWidth;

// Two devices with one of everything: feed, fetch, send, recv, collective, state, all lanes.
Plan FullPlan() {
  EnginePlanBuilder b(2);
  b.AddDevice(0);
  b.AddDevice(1);
  const uint32_t reduce = b.AddCollectiveSpec(CollectiveKind::kAllReduce, {0, 1}, {2, 2}, false);
  const uint32_t w0 = b.AddState(0, "w", "normal");
  const uint32_t x0 = b.AddRegister(0, 2);
  const uint32_t y0 = b.AddRegister(0, 2);
  const uint32_t total0 = b.AddRegister(0, 1, false);
  b.BeginPhase(0, "F", PhaseKind::kForward);
  const uint32_t feed = b.AddFeed(0, "x", x0);
  const uint32_t f0 = b.AddKernel(0, "f0", "t.sum", {x0, w0}, {y0});
  b.AddChannel(0, feed, f0);
  b.BeginPhase(0, "send", PhaseKind::kTransfer, Lane::kFloating);
  const uint32_t send = b.AddSend(0, "send.y", y0, 1);
  const uint32_t transfer = b.last_transfer();
  b.AddChannel(0, f0, send, 1, 1, 2);
  b.BeginPhase(0, "update", PhaseKind::kAfterStep, Lane::kPerStep, false);
  const uint32_t all0 = b.AddCollective(0, "reduce", reduce, w0, total0);
  const uint32_t update = b.AddKernel(0, "update", "t.bump", {w0, total0}, {w0});
  b.AddChannel(0, all0, update);
  b.AddChannel(0, f0, all0, 1, 2, 4);
  b.AddChannel(0, update, f0, 2, 1, 2, 2);

  const uint32_t x1 = b.AddRegister(1, 2);
  const uint32_t z1 = b.AddRegister(1);
  const uint32_t total1 = b.AddRegister(1, 1, false);
  b.BeginPhase(1, "recv", PhaseKind::kTransfer, Lane::kFloating);
  const uint32_t recv = b.AddRecv(1, "recv.y", x1, transfer);
  b.BeginPhase(1, "F", PhaseKind::kForward);
  const uint32_t f1 = b.AddKernel(1, "f1", "t.affine", {x1}, {z1});
  const uint32_t fetch = b.AddFetch(1, "z", z1);
  b.AddChannel(1, recv, f1, 1, 1, 2);
  b.AddChannel(1, f1, fetch);
  b.BeginPhase(1, "update", PhaseKind::kAfterStep, Lane::kPerStep, false);
  const uint32_t sum = b.AddCollective(1, "reduce", reduce, total1, total1);
  b.AddChannel(1, sum, b.AddCopy(1, "keep", total1, b.AddHostState(1, "kept")));
  return b.Build();
}

TEST(CheckPlanTest, AcceptsASoundPlan) {
  EXPECT_TRUE(CheckPlan(FullPlan()).ok()) << CheckPlan(FullPlan());
}

TEST(CheckPlanTest, NamesWhatDoesNotHold) {
  struct Case {
    std::function<void(Plan&)> spoil;
    std::string message;
  };
  const std::vector<Case> cases = {
      {[](Plan& p) { p.devices.clear(); }, "0 devices"},
      {[](Plan& p) { p.num_microbatches = 0; }, "0 micro-batches"},
      {[](Plan& p) { p.devices[1].stage = 0; }, "stage 1: device 1 is unknown or of another stage"},
      {[](Plan& p) { p.stages.pop_back(); }, "device 1 is in no stage"},
      {[](Plan& p) { p.num_channels = 7; }, "7 channels for 1 collectives and 1 transfers"},
      {[](Plan& p) { p.transfers[0].channel = 0; }, "transfer 0: channel 0 is not its own"},
      {[](Plan& p) { p.transfers[0].num_bytes = 65; },
       "device 0: actor 2 'send.y': 65 bytes at 0 do not fit register 2"},
      {[](Plan& p) { p.transfers[0].destination = 2; }, "transfer 0: from device 0 to 2"},
      {[](Plan& p) { p.devices[0].arena_bytes = 64; },
       "device 0: register 1: 2 slots of 64 bytes at 64 do not lie in the arena of 64 bytes"},
      {[](Plan& p) { p.devices[0].registers[0].offset = UINT64_MAX - 63; }, "do not lie in"},
      {[](Plan& p) { p.devices[0].registers[0].slots = 0; }, "it has no slots"},
      {[](Plan& p) { p.devices[0].registers[0].offset = 8; }, "not aligned"},
      {[](Plan& p) { p.devices[0].phases[1].first_actor = 0; },
       "device 0: phase 1 'send': its actors do not follow"},
      {[](Plan& p) { p.devices[0].phases.pop_back(); }, "actors after the last phase"},
      {[](Plan& p) { p.devices[0].phases[2].lane = Lane::kCompute; },
       "the compute lane runs F, B and W"},
      {[](Plan& p) { p.devices[0].actors[1].kernel = 99; },
       "device 0: actor 1 'f0': kernel 99 does not exist"},
      {[](Plan& p) { p.devices[0].actors[1].inputs[0].reg = 99; }, "register 99 does not exist"},
      {[](Plan& p) { p.devices[0].actors[1].inputs[0].offset = 40; },
       "32 bytes at 40 do not fit register"},
      {[](Plan& p) { p.devices[0].actors[1].inputs.pop_back(); },
       "1 operands where its kernel has 2"},
      {[](Plan& p) { p.devices[0].actors[1].workspace_bytes = UINT64_MAX; },
       "its workspace does not lie in the arena"},
      {[](Plan& p) { p.devices[1].host_bytes = 0; }, "do not lie in the arena"},
      {[](Plan& p) { p.devices[1].host_bytes = uint64_t{1} << 60; }, "device 1: it needs"},
      {[](Plan& p) {
         std::swap(p.devices[1].actors.back().inputs, p.devices[1].actors.back().outputs);
       },
       "'keep': its operands are not in the memories that a 'to_host' joins"},
      {[](Plan& p) { p.devices[1].actors.back().kind = planner::ActorKind::kKernel; },
       "on the host"},
      {[](Plan& p) { p.devices[1].actors.back().kernel = 0; }, "its kernel must be a 'to_host' or"},
      {[](Plan& p) { p.devices[0].actors[0].target = 5; }, "feed 5 is unknown"},
      {[](Plan& p) { p.devices[1].actors[2].target = 5; }, "fetch 5 is unknown"},
      {[](Plan& p) { p.kernels[0].outputs[0].microbatch_stride[0] = 2; }, "does not lie in [2, 4]"},
      {[](Plan& p) { p.fetches[0].num_actors = 3; }, "fetch 'z': 2 firings bring 8 elements; 3"},
      {[](Plan& p) { p.devices[0].channels[0].consumer = 99; }, "an actor that does not exist"},
      {[](Plan& p) {
         std::swap(p.devices[0].channels[0].producer, p.devices[0].channels[0].consumer);
       },
       "channel 0: runs against the order of its phase, from 'f0' to 'x'"},
      {[](Plan& p) { p.devices[0].channels[1].capacity = 0; }, "channel 1: produces 1"},
      {[](Plan& p) { p.devices[0].channels[4].initial = 9; }, "that begins with 9"},
      {[](Plan& p) { p.collectives[0].counts[0] = INT64_MAX; }, "collective 0"},
      {[](Plan& p) {
         p.collectives[0].devices = {1, 0, 5};
       },
       "collective 0"},
      {[](Plan& p) { p.collective_per_microbatch[0] = true; }, "rate of phase and collective"},
      {[](Plan& p) { p.states[0].placements[0].reg = 99; }, "register 99 of device 0"},
      {[](Plan& p) { p.states[0].init = "lucky"; }, "unknown initial value 'lucky'"},
      {[](Plan& p) { p.states.push_back(p.states[0]); }, "state 'w': there are two"},
      {[](Plan& p) { p.kernels[1].inputs[0].shape = {-4}; }, "extent -4 is negative"},
      {[](Plan& p) { p.kernels[1].inputs[0].dtype = static_cast<DType>(77); },
       "an unknown element type"},
      {[](Plan& p) { p.devices[0].actors[2].kind = static_cast<planner::ActorKind>(9); },
       "device 0"},
  };
  for (const Case& c : cases) {
    Plan plan = FullPlan();
    c.spoil(plan);
    const absl::Status status = CheckPlan(plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

// Sets one random field of the plan to a random value, near or far.
class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  void Mutate(Plan& plan) {
    switch (random_() % 14) {
      case 0:
        return Set(plan.num_microbatches);
      case 1:
        return Set(plan.num_channels);
      case 2: {
        planner::RegisterPlan& reg = Pick(Pick(plan.devices).registers);
        return random_() % 3 == 0   ? Set(reg.slots)
               : random_() % 2 == 0 ? Set(reg.offset)
                                    : Set(reg.slot_bytes);
      }
      case 3: {
        planner::ActorPlan& actor = Pick(Pick(plan.devices).actors);
        return random_() % 3 == 0   ? Set(actor.kernel)
               : random_() % 2 == 0 ? Set(actor.target)
                                    : Set(actor.workspace_offset);
      }
      case 4: {
        planner::ActorPlan& actor = Pick(Pick(plan.devices).actors);
        actor.kind = static_cast<planner::ActorKind>(random_() % 8);
        return;
      }
      case 5: {
        planner::ActorPlan& actor = Pick(Pick(plan.devices).actors);
        auto& operands = actor.inputs.empty() ? actor.outputs : actor.inputs;
        if (operands.empty()) return;
        planner::OperandPlan& operand = Pick(operands);
        return random_() % 2 == 0 ? Set(operand.reg) : Set(operand.offset);
      }
      case 6: {
        planner::ChannelPlan& channel = Pick(Pick(plan.devices).channels);
        uint32_t* fields[] = {&channel.producer, &channel.consumer, &channel.produce,
                              &channel.consume,  &channel.capacity, &channel.initial};
        return Set(*fields[random_() % 6]);
      }
      case 7: {
        planner::PhasePlan& phase = Pick(Pick(plan.devices).phases);
        return random_() % 2 == 0 ? Set(phase.first_actor) : Set(phase.num_actors);
      }
      case 8: {
        planner::PhasePlan& phase = Pick(Pick(plan.devices).phases);
        phase.lane = static_cast<Lane>(random_() % 4);
        phase.kind = static_cast<PhaseKind>(random_() % 8);
        phase.per_microbatch = random_() % 2 == 0;
        return;
      }
      case 9: {
        planner::TransferPlan& transfer = Pick(plan.transfers);
        return random_() % 2 == 0 ? Set(transfer.num_bytes) : Set(transfer.destination);
      }
      case 10: {
        CollectiveSpec& spec = Pick(plan.collectives);
        spec.kind = static_cast<CollectiveKind>(random_() % 8);
        return random_() % 2 == 0 ? Set(Pick(spec.counts)) : Set(Pick(spec.devices));
      }
      case 11: {
        planner::KernelPlan& kernel = Pick(plan.kernels);
        auto& tiles = kernel.inputs.empty() ? kernel.outputs : kernel.inputs;
        graph::TileDesc& tile = Pick(tiles);
        Shape* shapes[] = {&tile.shape, &tile.global, &tile.offset, &tile.microbatch_stride};
        Shape& shape = *shapes[random_() % 4];
        if (shape.empty() || random_() % 4 == 0) return shape.push_back(1);
        return Set(shape[random_() % shape.size()]);
      }
      case 12: {
        planner::StatePlacement& placement = Pick(Pick(plan.states).placements);
        return random_() % 2 == 0 ? Set(placement.reg) : Set(placement.device);
      }
      default: {
        planner::DevicePlan& device = Pick(plan.devices);
        return Set(random_() % 2 == 0 ? device.arena_bytes : device.host_bytes);
      }
    }
  }

 private:
  template <typename T>
  T& Pick(std::vector<T>& values) {
    return values[random_() % values.size()];
  }
  template <typename T>
  void Set(T& field) {
    switch (random_() % 4) {
      case 0:
        field += 1;
        break;
      case 1:
        field -= 1;
        break;
      case 2:
        field = static_cast<T>(random_() % 100);
        break;
      default:
        field = static_cast<T>(random_());
    }
  }

  std::mt19937_64 random_;
};

// Whatever a plan holds, it is refused, or runs, or gets stuck within its memory.
TEST(CheckPlanTest, MutatedPlansNeverCrash) {
  const kernels::KernelRegistry kernels = EngineTestKernels();
  const planner::PolicyRegistry policies = planner::BuiltinPolicies();
  constexpr int kPlans = testing::kHasSanitizer ? 4000 : 20000;
  constexpr uint64_t kMostBytes = 1 << 20;
  int refused = 0;
  int completed = 0;
  for (int seed = 0; seed < kPlans; ++seed) {
    Plan plan = FullPlan();
    Mutator mutator(seed);
    for (int i = 0; i <= seed % 2; ++i) mutator.Mutate(plan);
    HarnessOptions options;
    options.seed = seed;
    options.is_emulated = true;  // its heap arenas have red zones under AddressSanitizer
    bool is_large = plan.num_microbatches > 1000;
    for (const planner::DevicePlan& device : plan.devices) {
      is_large = is_large || device.arena_bytes > kMostBytes || device.host_bytes > kMostBytes;
    }
    if (is_large) {
      refused += CheckPlan(plan).ok() ? 0 : 1;
      continue;
    }
    auto harness = EngineHarness::Create(plan, options, kernels, policies);
    if (!harness.ok()) {
      ++refused;
      continue;
    }
    std::vector<Tensor> feeds;
    for (const planner::FeedPlan& feed : plan.feeds) feeds.emplace_back(feed.type);
    (*harness)->Submit(feeds);
    if ((*harness)->RunUntilDone()) ++completed;
    EXPECT_EQ((*harness)->Describe().empty(), (*harness)->RunUntilDone());
  }
  EXPECT_GT(refused, kPlans / 2);
  EXPECT_GT(completed, kPlans / 100);
}

}  // namespace
}  // namespace penstock::actors
