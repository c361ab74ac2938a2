#include "planner/plan/verify_plan.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "planner/plan/memory.h"
#include "tests/support/plans.h"

namespace penstock::planner {
namespace {

using testing::AddAllReduce;
using testing::AddTransfer;
using ::testing::AllOf;
using testing::DeviceBuilder;
using ::testing::ElementsAre;
using testing::EmptyPlan;
using ::testing::HasSubstr;
using testing::TrainingPlan;

constexpr uint64_t kBytes = 64;

// Orders as the test says; nothing planned by default.
class TestPolicy : public Policy {
 public:
  explicit TestPolicy(std::vector<PhaseChoice> order = {}) : order_(std::move(order)) {}
  std::string_view name() const override { return "test"; }
  std::vector<PhaseChoice> PlannedOrder(const StageContext&) const override { return order_; }
  std::unique_ptr<StageScheduler> CreateScheduler(const StageContext& context) const override {
    if (order_.empty()) return std::make_unique<NoChoices>();
    return Policy::CreateScheduler(context);
  }

 private:
  // Verification does not ask it.
  class NoChoices : public StageScheduler {
   public:
    std::optional<PhaseChoice> Next(const StageView&) override { return std::nullopt; }
    void Reset() override {}
  };

  std::vector<PhaseChoice> order_;
};

PolicyRegistry Policies(std::vector<PhaseChoice> order = {}) {
  PolicyRegistry policies = BuiltinPolicies();
  EXPECT_TRUE(policies.Add(std::make_unique<TestPolicy>(std::move(order))).ok());
  return policies;
}

absl::Status Verify(const Plan& plan) { return VerifyPlan(plan, Policies()).status(); }

std::string ErrorOf(const Plan& plan) { return std::string(Verify(plan).message()); }

// ---- Good plans ---------------------------------------------------------------------------------

TEST(VerifyPlan, AcceptsOneKernel) {
  Plan plan = EmptyPlan(1, 1, 1);
  DeviceBuilder device(&plan, 0);
  const uint32_t reg = device.AddRegister(RegisterClass::kWorkspace, kBytes);
  device.AddPhase("F", PhaseKind::kForward, Lane::kCompute, true);
  device.AddKernel("a", {}, {reg});
  const absl::StatusOr<PlanVerification> result = VerifyPlan(plan, Policies());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->firings, 1u);
  EXPECT_THAT(result->peak_live_bytes, ElementsAre(kBytes));
}

TEST(VerifyPlan, AcceptsADeviceWithoutPhases) { EXPECT_TRUE(Verify(EmptyPlan(1, 2, 3)).ok()); }

TEST(VerifyPlan, AcceptsTrainingUnderEveryPolicy) {
  for (const char* policy : {"1f1b", "gpipe", "test"}) {
    for (const uint32_t m : {1, 2, 5}) {
      Plan plan = TrainingPlan(m, m);
      plan.policy = policy;
      const absl::StatusOr<PlanVerification> result = VerifyPlan(plan, Policies());
      ASSERT_TRUE(result.ok()) << policy << " " << m << ": " << result.status();
      EXPECT_EQ(result->firings, 2 * (6 * m + 2) + 2 * (5 * m + 3));
      for (size_t d = 0; d < plan.devices.size(); ++d) {
        EXPECT_LE(result->peak_live_bytes[d], plan.devices[d].arena_bytes);
      }
    }
  }
}

TEST(VerifyPlan, CountsTheActivationsThatAScheduleHolds) {
  // One stage, F and B, activations of one slot a micro-batch.
  Plan plan = EmptyPlan(1, 1, 4);
  DeviceBuilder device(&plan, 0);
  const uint32_t state = device.AddRegister(RegisterClass::kState, kBytes, 1, false);
  const uint32_t stash = device.AddRegister(RegisterClass::kChannel, kBytes, 4);
  device.AddPhase("F", PhaseKind::kForward, Lane::kCompute, true);
  const uint32_t forward = device.AddKernel("f", {state}, {stash});
  device.AddPhase("B", PhaseKind::kBackward, Lane::kCompute, true);
  const uint32_t backward = device.AddKernel("b", {stash}, {});
  device.AddChannel({forward, backward, stash, 1, 1, 4, 0});
  plan.policy = "gpipe";
  EXPECT_THAT(VerifyPlan(plan, Policies())->peak_live_bytes, ElementsAre(5 * kBytes));
  plan.policy = "1f1b";
  EXPECT_THAT(VerifyPlan(plan, Policies())->peak_live_bytes, ElementsAre(2 * kBytes));
}

TEST(VerifyPlan, AcceptsValuesMadeOnceAStepAndMicrobatchesInTheOnceLane) {
  Plan plan = EmptyPlan(1, 1, 3);
  DeviceBuilder device(&plan, 0);
  const uint32_t once = device.AddRegister(RegisterClass::kChannel, kBytes, 1, false);
  const uint32_t often = device.AddRegister(RegisterClass::kChannel, kBytes, 3);
  device.AddPhase("before", PhaseKind::kBeforeStep, Lane::kPerStep, false);
  const uint32_t before = device.AddKernel("before", {}, {once});
  device.AddPhase("second pass", PhaseKind::kAfterStep, Lane::kPerStep, true);
  const uint32_t second = device.AddKernel("second", {often}, {});
  device.AddPhase("F", PhaseKind::kForward, Lane::kCompute, true);
  const uint32_t forward = device.AddKernel("f", {once}, {often});
  device.AddPhase("nothing", PhaseKind::kBackward, Lane::kCompute, true);
  device.AddPhase("nothing", PhaseKind::kTransfer, Lane::kFloating, false);
  device.AddChannel({before, forward, once, 3, 1, 3, 0});
  device.AddChannel({forward, second, often, 1, 1, 3, 0});
  const absl::StatusOr<PlanVerification> result = VerifyPlan(plan, Policies());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->firings, 7u);
}

// A collective starts when its own operand is there: what it writes must be free by then, and not
// only once the kernels before it have been launched.
TEST(VerifyPlan, CollectivesKeepOutOfTheWayOfKernelsThatStillRun) {
  for (const bool waits : {false, true}) {
    Plan plan = EmptyPlan(1, 2, 1);
    const uint32_t all_reduce = AddAllReduce(&plan, {0, 1}, kBytes / 4, /*per_microbatch=*/true);
    for (uint32_t d : {0u, 1u}) {
      DeviceBuilder device(&plan, d);
      const uint32_t terms = device.AddRegister(RegisterClass::kWorkspace, kBytes);
      const uint32_t other = device.AddRegister(RegisterClass::kWorkspace, kBytes);
      const uint32_t sum = device.AddRegister(RegisterClass::kWorkspace, kBytes);
      device.AddPhase("F", PhaseKind::kForward, Lane::kCompute, true);
      const uint32_t make = device.AddKernel("make", {}, {terms});
      const uint32_t make_other = device.AddKernel("make other", {}, {other});
      const uint32_t read = device.AddKernel("read other", {other}, {});
      const uint32_t reduce = device.AddCollective("reduce", all_reduce, terms, sum);
      const uint32_t use = device.AddKernel("use", {sum}, {});
      device.Join(make_other, read, other);
      device.Join(make, reduce, terms);
      if (waits) device.Join(read, reduce, kNone);
      device.Join(reduce, use, sum);
      plan.devices[d].registers[sum].offset = plan.devices[d].registers[other].offset;
    }
    if (waits) {
      EXPECT_TRUE(Verify(plan).ok()) << Verify(plan);
    } else {
      EXPECT_THAT(ErrorOf(plan), HasSubstr("overlap while both live"));
    }
  }
}

TEST(VerifyPlan, CopiesJoinTheMemoriesOfDeviceAndHost) {
  const Plan plan = testing::OffloadPlan(3);
  const absl::StatusOr<PlanVerification> result = VerifyPlan(plan, Policies());
  ASSERT_TRUE(result.ok()) << result.status();
  // What lies on the host takes nothing of the device: the gradient, and one of the others.
  EXPECT_THAT(result->peak_live_bytes, ElementsAre(2 * kBytes));
  EXPECT_EQ(plan.devices[0].host_bytes, 4 * kBytes);

  constexpr uint32_t kStore = 1;
  constexpr uint32_t kSum = 3;
  const auto error_of = [&](const std::function<void(DevicePlan*)>& spoil) {
    Plan spoilt = plan;
    spoil(&spoilt.devices[0]);
    return ErrorOf(spoilt);
  };
  const uint32_t host_y = plan.devices[0].actors[kStore].outputs[0].reg;
  const uint32_t host_m = plan.states[0].placements[0].reg;
  EXPECT_THAT(error_of([&](DevicePlan* d) { d->actors[kSum].inputs[0].reg = host_y; }),
              HasSubstr("'w.grad' (device 0, phase B): input 0 is register 4 on the host"));
  EXPECT_THAT(error_of([&](DevicePlan* d) { d->actors[kStore].outputs[0].reg = 1; }),
              HasSubstr("output 0 of a copy to the host is register 1, which is on the device"));
  EXPECT_THAT(error_of([&](DevicePlan* d) { d->actors[kStore].inputs[0].reg = host_m; }),
              HasSubstr("input 0 of a copy to the host is register 5, which is on the host"));
  EXPECT_THAT(error_of([&](DevicePlan* d) { d->actors[kStore].kernel = 0; }),
              HasSubstr("does not describe a copy of one tile"));
  EXPECT_THAT(error_of([&](DevicePlan* d) { d->host_bytes -= kBytes; }),
              HasSubstr("do not lie in the arena of 256 bytes or the 192 bytes on its host"));
  EXPECT_THAT(
      error_of([&](DevicePlan* d) { d->registers[host_m].offset = d->registers[host_y].offset; }),
      HasSubstr("overlap"));
}

TEST(VerifyPlan, AcceptsKernelsThatWorkInPlace) {
  Plan plan = EmptyPlan(1, 1, 1);
  DeviceBuilder device(&plan, 0);
  const uint32_t a = device.AddRegister(RegisterClass::kWorkspace, kBytes);
  const uint32_t b = device.AddRegister(RegisterClass::kWorkspace, kBytes);
  device.AddPhase("F", PhaseKind::kForward, Lane::kCompute, true);
  const uint32_t make = device.AddKernel("make", {}, {a});
  const uint32_t in_place = device.AddKernel("in place", {a}, {b});
  const uint32_t use = device.AddKernel("use", {b}, {});
  device.Join(make, in_place, a);
  device.Join(in_place, use, b);
  plan.devices[0].registers[b].offset = 0;
  EXPECT_TRUE(Verify(plan).ok()) << Verify(plan);

  // Not when the input is read again.
  plan.devices[0].actors[2].inputs = {{a, 0}};
  EXPECT_THAT(ErrorOf(plan), HasSubstr("overlap while both live"));
}

TEST(VerifyPlan, AcceptsALargePlan) {
  const absl::StatusOr<PlanVerification> result =
      VerifyPlan(testing::LargePlan(4, 10000, 4), BuiltinPolicies());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->firings, 4u * (8000 * 4 + 2000));
}

// ---- Structure ----------------------------------------------------------------------------------

struct Violation {
  std::string name;
  std::function<void(Plan*)> make;
  std::vector<std::string> said;  // all in the message
};

void PrintTo(const Violation& violation, std::ostream* out) { *out << violation.name; }

class Violations : public ::testing::TestWithParam<Violation> {};

TEST_P(Violations, AreNamed) {
  Plan plan = TrainingPlan(4, 2);
  ASSERT_TRUE(Verify(plan).ok()) << Verify(plan);
  GetParam().make(&plan);
  const absl::Status status = Verify(plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  for (const std::string& text : GetParam().said) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
}

// In TrainingPlan(4, 2): registers 0 w, 1 x, 2 y, 3 dy, 4 dw, 5 partial, 6 sum. Device 0: actors 0
// x, 1 h.matmul, 2 h.sum (F), 3 h.gradient (B), 4 w.sum, 5 w.update (update), 6 y.send, 7 dy.recv;
// channels 0 and 1 within F, 2 within update, 3 dw, 4 w.
INSTANTIATE_TEST_SUITE_P(
    References, Violations,
    ::testing::ValuesIn(std::vector<Violation>{
        {"Microbatches", [](Plan* p) { p->num_microbatches = 0; }, {"0 micro-batches"}},
        {"TooManyMicrobatches",
         [](Plan* p) { p->num_microbatches = 1 << 20; },
         {"1048576 micro-batches"}},
        {"StageDisagrees",
         [](Plan* p) { p->devices[1].stage = 1; },
         {"device 1", "stage 1", "stage 0 lists it"}},
        {"StageDevice", [](Plan* p) { p->stages[0].devices[0] = 9; }, {"stage 0", "device 9"}},
        {"DeviceTwice", [](Plan* p) { p->stages[0].devices[0] = 1; }, {"device 1", "also in"}},
        {"NoStage", [](Plan* p) { p->stages[0].devices.pop_back(); }, {"device 1", "no stage"}},
        {"PhaseGap",
         [](Plan* p) { p->devices[0].phases[1].first_actor = 4; },
         {"device 0 phase B begins at actor 4", "ends at 3"}},
        {"PhasesTooLong",
         [](Plan* p) { p->devices[0].phases[4].num_actors = 2; },
         {"device 0", "cover 9 actors of 8"}},
        {"Kernel",
         [](Plan* p) { p->devices[0].actors[1].kernel = 99; },
         {"actor 1 'h.matmul' (device 0, phase F)", "kernel 99"}},
        {"Target",
         [](Plan* p) { p->devices[0].actors[2].target = 4; },
         {"actor 2 'h.sum' (device 0, phase F)", "target 4", "there are 4"}},
        {"Register",
         [](Plan* p) { p->devices[0].actors[3].inputs[0].reg = 7; },
         {"actor 3 'h.gradient' (device 0, phase B)", "register 7", "there are 7"}},
        {"ChannelActor",
         [](Plan* p) { p->devices[1].channels[0].consumer = 8; },
         {"device 1 channel 0", "actor 8"}},
        {"ChannelRegister",
         [](Plan* p) { p->devices[1].channels[0].reg = 7; },
         {"device 1 channel 0", "register 7"}},
        {"Shape",
         [](Plan* p) { p->kernels[0].outputs[0].shape = {-1}; },
         {"kernel 0 'feed'", "extent -1 is negative"}},
        {"TileRank",
         [](Plan* p) { p->kernels[0].outputs[0].offset = {}; },
         {"kernel 0 'feed'", "rank 1", "its offset 0"}},
        {"CollectiveDevice",
         [](Plan* p) { p->collectives[1].devices[0] = 4; },
         {"collective 1", "device 4"}},
        {"CollectiveDeviceTwice",
         [](Plan* p) {
           p->collectives[1].devices = {2, 2};
         },
         {"collective 1", "twice"}},
        {"CollectiveCounts",
         [](Plan* p) { p->collectives[1].counts.pop_back(); },
         {"collective 1 (all_reduce of 2 devices) has 1 counts, expected 2"}},
        {"CollectiveNegativeCount",
         [](Plan* p) { p->collectives[1].counts[1] = -5; },
         {"collective 1", "-5"}},
        {"CollectivePeers",
         [](Plan* p) {
           p->collectives[1].kind = CollectiveKind::kPermute;
           p->collectives[1].peers = {1, 1};
         },
         {"collective 1", "permutation of 2"}},
        {"CollectiveOfTensors",
         [](Plan* p) {
           p->collectives[1].tensors = {{8, 8}};
         },
         {"collective 1 (all_reduce) cannot move 1 tensors"}},
        {"CollectiveTensorCounts",
         [](Plan* p) {
           p->collectives[1].kind = CollectiveKind::kReduceScatter;
           p->collectives[1].tensors = {{4, 8}, {4, 1}};
         },
         {"collective 1 (reduce_scatter) cannot move 2 tensors whose counts do not add up"}},
        {"TransferDevice",
         [](Plan* p) { p->transfers[1].destination = 4; },
         {"transfer 1", "device 4"}},
        {"StateDevice",
         [](Plan* p) { p->states[1].placements[0].device = 4; },
         {"state 'w1'", "device 4"}},
        {"StateRegister",
         [](Plan* p) { p->states[1].placements[0].reg = 7; },
         {"state 'w1' on device 2", "register 7"}},
        {"PeaksOfDevices",
         [](Plan* p) { p->predicted_peak_bytes.pop_back(); },
         {"4 devices", "peaks of 3"}},
    }),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Structure, Violations,
    ::testing::ValuesIn(std::vector<Violation>{
        {"ChannelTag", [](Plan* p) { p->collectives[1].channel = 0; }, {"collective 1", "taken"}},
        {"ChannelTagTooHigh",
         [](Plan* p) { p->transfers[3].channel = 8; },
         {"transfer 3", "channel 8"}},
        {"NumChannels", [](Plan* p) { p->num_channels = 9; }, {"counts 9 channels", "has 8"}},
        {"SumInAWorkspace",
         [](Plan* p) { p->kernels[p->devices[0].actors[1].kernel].accumulate = true; },
         {"actor 1 'h.matmul' (device 0, phase F) adds up micro-batches in register 5"}},
        {"NoSlots",
         [](Plan* p) { p->devices[0].registers[1].slots = 0; },
         {"device 0 register 1 has no slots"}},
        {"MoreSlotsThanMicrobatches",
         [](Plan* p) { p->devices[0].registers[1].slots = 9; },
         {"device 0 register 1 has 9 slots", "there may be 8"}},
        {"Alignment",
         [](Plan* p) { p->devices[0].registers[1].offset = 65; },
         {"device 0 register 1", "offset 65", "multiples of 64"}},
        {"OutsideTheArena",
         [](Plan* p) { p->devices[0].registers[1].slot_bytes = 1 << 20; },
         {"device 0 register 1: 2 slots of 1048576 bytes at offset 64", "768 bytes"}},
        {"HugeSlots",
         [](Plan* p) { p->devices[0].registers[1].slot_bytes = uint64_t{1} << 63; },
         {"device 0 register 1"}},
        {"ClassBytes",
         [](Plan* p) { p->devices[0].channel_bytes -= 64; },
         {"device 0", "448 of channels", "384"}},
        {"ClassesExceedTheArena",
         [](Plan* p) { p->devices[0].state_bytes = UINT64_MAX; },
         {"device 0", "more than the arena of 768"}},
        {"ComputeLaneRate",
         [](Plan* p) { p->devices[0].phases[1].per_microbatch = false; },
         {"device 0 phase B (kind B, once a step) is in the compute lane"}},
        {"ComputeLaneKind",
         [](Plan* p) { p->devices[0].phases[1].kind = PhaseKind::kAfterStep; },
         {"device 0 phase B (kind after"}},
        {"ComputeLaneTwice",
         [](Plan* p) { p->devices[0].phases[1].kind = PhaseKind::kForward; },
         {"device 0 phase B is the second of kind F"}},
        {"OperandCount",
         [](Plan* p) { p->devices[0].actors[1].inputs.pop_back(); },
         {"actor 1 'h.matmul' (device 0, phase F) has 1 inputs; its kernel takes 2"}},
        {"OperandOutsideItsSlot",
         [](Plan* p) { p->devices[0].actors[1].inputs[0].offset = 4; },
         {"actor 1 'h.matmul' (device 0, phase F): input 0 has 64 bytes at offset 4 of register 1",
          "whose slots have 64"}},
        {"OperandAlignment",
         [](Plan* p) {
           p->devices[0].registers[5].slot_bytes = 128;
           p->devices[0].registers[6].offset += 64;
           p->devices[0].actors[1].workspace_offset += 64;
           p->devices[0].arena_bytes += 64;
           p->devices[0].actors[1].outputs[0].offset = 2;
         },
         {"actor 1 'h.matmul'", "output 0 is at offset 2", "4 bytes an element"}},
        {"OperandUnbound",
         [](Plan* p) { p->devices[0].actors[1].inputs[0].reg = kNone; },
         {"actor 1 'h.matmul'", "input 0 of 64 bytes has no register"}},
        {"Scratch",
         [](Plan* p) { p->devices[0].actors[1].workspace_bytes = 1000; },
         {"actor 1 'h.matmul'", "1000 bytes of scratch", "arena of 768"}},
        {"OnceUsesMicrobatchSlots",
         [](Plan* p) { p->devices[0].actors[4].inputs[0].reg = 1; },
         {"actor 4 'w.sum' (device 0, phase update) runs once a step", "register 1", "2 slots"}},
        {"Feed",
         [](Plan* p) { p->feeds[0].type.dtype = DType::kI32; },
         {"actor 0 'x' (device 0, phase F)", "f32[64], expected i32[64]"}},
        {"FeedTile",
         [](Plan* p) { p->kernels[0].outputs[0].microbatch_stride = {17}; },
         {"actor 0 'x' (device 0, phase F)", "tile of 16 from 0 to 51 does not lie inside 64"}},
        {"FeedKernel",
         [](Plan* p) { p->devices[0].actors[0].kernel = 1; },
         {"actor 0 'x' (device 0, phase F)", "'spare'"}},
        {"FetchCount",
         [](Plan* p) { p->fetches[0].num_actors = 3; },
         {"fetch 'loss' counts on 3 firings a step; its actors make 2"}},
        {"BackwardToken",
         [](Plan* p) { std::swap(p->devices[0].channels[0].producer,
                                 p->devices[0].channels[0].consumer); },
         {"device 0 channel 0", "actor 0 'x' (device 0, phase F) waits for actor 1"}},
        {"InPhaseInitial",
         [](Plan* p) { p->devices[0].channels[0].initial = 1; },
         {"device 0 channel 0 lies within device 0 phase F and has 1 initial tokens"}},
        {"Capacity",
         [](Plan* p) { p->devices[0].channels[3].capacity = 3; },
         {"device 0 channel 3 (actor 3", "consume 4", "capacity of 3"}},
        {"Initial",
         [](Plan* p) { p->devices[0].channels[3].initial = 5; },
         {"device 0 channel 3", "initial 5", "capacity of 4"}},
        {"NothingProduced",
         [](Plan* p) { p->devices[0].channels[3].produce = 0; },
         {"device 0 channel 3", "produce 0"}},
        {"Balance",
         [](Plan* p) { p->devices[0].channels[3].consume = 3; },
         {"device 0 channel 3: actor 3 'h.gradient' (device 0, phase B) puts 4 tokens a step and "
          "actor 4 'w.sum' (device 0, phase update) takes 3"}},
        {"MoreCreditsThanSlots",
         [](Plan* p) { p->devices[0].channels[3].capacity = 8; },
         {"device 0 channel 3", "capacity of 8 tokens; register 4 has 1 slots of 4 tokens"}},
        {"GroupLacksADevice",
         [](Plan* p) { p->collectives[1].devices = {2, 1}; },
         {"collective 1 is not run on device 1"}},
        {"NotInTheGroup",
         [](Plan* p) { p->collectives[1].devices = {2}; p->collectives[1].counts = {16}; },
         {"actor 1 'h.sum' (device 3, phase F) runs collective 1"}},
        {"CollectiveTwice",
         [](Plan* p) { p->devices[0].actors[4].target = 0; },
         {"collective 0 is run twice", "actor 2 'h.sum' (device 0, phase F)", "actor 4 'w.sum'"}},
        {"CollectiveSize",
         [](Plan* p) { p->collectives[1].counts[0] = 9; },
         {"actor 1 'h.sum' (device 2, phase F): input 0 has 68 bytes", "have 64"}},
        {"CollectiveOperands",
         [](Plan* p) {
           p->collectives[1].kind = CollectiveKind::kReduceScatter;
           p->collectives[1].tensors = {{4, 8}, {4, 0}};
         },
         {"actor 1 'h.sum' (device 2, phase F): a collective has 1 inputs, expected 2"}},
        {"CollectiveRate",
         [](Plan* p) { p->collective_per_microbatch[1] = false; },
         {"collective 1 runs once a step but actor 1 'h.sum' (device 2, phase F)"}},
        {"CollectiveLanes",
         [](Plan* p) {
           p->devices[3].phases[0].lane = Lane::kPerStep;
         },
         {"collective 1", "different lanes", "actor 1 'h.sum' (device 3, phase F) in lane per-step"}},
        {"CollectiveAcrossStages",
         [](Plan* p) {
           p->collectives[0].devices = {0, 2};
           p->collectives[1].devices = {1, 3};
           p->devices[1].actors[2].target = 1;
           p->devices[2].actors[1].target = 0;
         },
         {"collective 0", "of stage 0", "actor 1 'h.sum' (device 2, phase F) of stage 1"}},
        {"TransferWithoutSend",
         [](Plan* p) { p->devices[1].actors[6].target = 0; },
         {"transfer 0 is run twice on one side"}},
        {"TransferWithoutRecv",
         [](Plan* p) {
           ActorPlan& actor = p->devices[2].actors[6];
           ASSERT_EQ(actor.kind, ActorKind::kRecv);
           actor.kind = ActorKind::kKernel;
           actor.kernel = 1;
           actor.outputs = {{}};
         },
         {"transfer 0 has no recv actor"}},
        {"TransferEnds",
         [](Plan* p) { std::swap(p->transfers[0].destination, p->transfers[1].destination); },
         {"transfer 0 goes from device 0 to 3", "(device 2, phase recv x)"}},
        {"TransferSize",
         [](Plan* p) { p->transfers[0].num_bytes = 65; },
         {"actor 6 'y.send' (device 0, phase send y): input 0 has 65 bytes"}},
        {"TransferRate",
         [](Plan* p) { p->transfers[0].per_microbatch = false; },
         {"transfer 0 runs once a step but actor 6 'y.send'"}},
        {"StateInit", [](Plan* p) { p->states[0].init = "one"; }, {"state 'w0'", "'one'"}},
        {"StateNowhere", [](Plan* p) { p->states[0].placements.clear(); }, {"'w0' is on no device"}},
        {"StateClass",
         [](Plan* p) { p->states[0].placements[0].reg = 1; },
         {"state 'w0' is in register 1 of device 0, which is of class channel"}},
        {"StateTwice",
         [](Plan* p) { p->states[0].placements[1] = p->states[0].placements[0]; },
         {"state 'w0': register 0 of device 0 is taken"}},
        {"StateTile",
         [](Plan* p) { p->states[0].placements[1].tile.offset = {17}; },
         {"state 'w0' on device 1", "17", "inside 32"}},
        {"StateSize",
         [](Plan* p) { p->states[0].placements[0].tile.shape = {32}; },
         {"state 'w0' on device 0 has 128 bytes; register 0 has 64"}},
    }),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Memory, Violations,
    ::testing::ValuesIn(std::vector<Violation>{
        {"ChannelsOverlap",
         [](Plan* p) { p->devices[0].registers[2].offset = 128; },
         {"device 0: channel register 1 at bytes 64 to 192 and channel register 2 at bytes 128 to "
          "256 overlap"}},
        {"WorkspaceOnState",
         [](Plan* p) { p->devices[0].registers[5].offset = 0; },
         {"device 0: state register 0 at bytes 0 to 64 and the workspace of device 0 phase F"}},
        {"LanesOverlap",
         [](Plan* p) { p->devices[0].registers[6].offset = p->devices[0].registers[5].offset; },
         {"device 0: the workspace of device 0 phase", "overlap"}},
        {"ScratchOverItsOutput",
         [](Plan* p) {
           p->devices[0].actors[1].workspace_offset = p->devices[0].registers[5].offset;
         },
         {"workspace register 5", "the scratch of actor 1 'h.matmul'", "overlap while both live"}},
        {"WorkspaceOfTwoPhases",
         [](Plan* p) { p->devices[0].actors[5].inputs[1].reg = 5; },
         {"actor 5 'w.update' (device 0, phase update) uses workspace register 5 of phase F"}},
        {"ReadBeforeWritten",
         [](Plan* p) { p->devices[0].actors[1].inputs[0].reg = 6; },
         {"actor 1 'h.matmul' (device 0, phase F) reads workspace register 6 before"}},
        {"NotWaitedFor",
         [](Plan* p) { p->devices[0].channels.erase(p->devices[0].channels.begin() + 2); },
         {"actor 5 'w.update' (device 0, phase update) reads register 6 without a token from actor "
          "4 'w.sum'"}},
        {"SentTooEarly",
         [](Plan* p) { p->devices[0].channels.erase(p->devices[0].channels.begin() + 1); },
         {"actor 2 'h.sum' (device 0, phase F) reads register 5 beside the stream without a token "
          "from actor 1 'h.matmul'"}},
        {"NoChannelBetweenPhases",
         [](Plan* p) { p->devices[0].channels.erase(p->devices[0].channels.begin() + 3); },
         {"device 0 phase update reads channel register 4 without a channel from phase B"}},
        {"NeverWritten",
         [](Plan* p) { p->devices[0].actors[7].outputs[0].reg = 2; },
         {"device 0 phase B reads channel register 3, which nothing writes"}},
    }),
    [](const auto& info) { return info.param.name; });

// What a collective reads lives until the first actor that waits for it.
TEST(VerifyPlan, KeepsTheInputOfACollectiveUntilItIsWaitedFor) {
  Plan plan = EmptyPlan(1, 1, 1);
  AddAllReduce(&plan, {0}, 16, true);
  DeviceBuilder device(&plan, 0);
  std::vector<uint32_t> regs;
  for (int i = 0; i < 4; ++i) {
    regs.push_back(device.AddRegister(RegisterClass::kWorkspace, kBytes));
  }
  device.AddPhase("F", PhaseKind::kForward, Lane::kCompute, true);
  const uint32_t make = device.AddKernel("make", {}, {regs[0]});
  const uint32_t reduce = device.AddCollective("reduce", 0, regs[0], regs[1]);
  const uint32_t meanwhile = device.AddKernel("meanwhile", {}, {regs[2]});
  const uint32_t use = device.AddKernel("use", {regs[1], regs[2]}, {regs[3]});
  device.Join(make, reduce, regs[0]);
  device.Join(reduce, use, regs[1]);
  device.Join(meanwhile, use, regs[2]);
  plan.devices[0].registers[regs[3]].offset = 0;  // free again when "use" starts
  EXPECT_TRUE(Verify(plan).ok()) << Verify(plan);
  EXPECT_THAT(VerifyPlan(plan, Policies())->peak_live_bytes, ElementsAre(3 * kBytes));

  plan.devices[0].registers[regs[2]].offset = 0;  // still being sent
  EXPECT_THAT(ErrorOf(plan), HasSubstr("workspace register 0 of actor 0 'make' (device 0, phase F) "
                                       "at bytes 0 to 64 and workspace register 2 of actor 2 "
                                       "'meanwhile' (device 0, phase F) at bytes 0 to 64 overlap"));

  // Nor may the same register be written again.
  plan.devices[0].actors[2].outputs[0].reg = regs[0];
  EXPECT_THAT(ErrorOf(plan), HasSubstr("actor 2 'meanwhile' (device 0, phase F) writes register 0 "
                                       "while actor 1 'reduce' (device 0, phase F) may still"));
}

TEST(VerifyPlan, RefusesReuseOfBytesThatNothingOrders) {
  Plan plan = EmptyPlan(1, 1, 1);
  DeviceBuilder device(&plan, 0);
  std::vector<uint32_t> regs;
  for (int i = 0; i < 2; ++i) {
    regs.push_back(device.AddRegister(RegisterClass::kWorkspace, kBytes));
  }
  device.AddPhase("F", PhaseKind::kForward, Lane::kCompute, true);
  const uint32_t make = device.AddKernel("make", {}, {regs[0]});
  const uint32_t use = device.AddKernel("use", {regs[0]}, {});
  const uint32_t next = device.AddKernel("next", {}, {regs[1]});
  device.Join(make, use, regs[0]);
  plan.devices[0].registers[regs[1]].offset = 0;
  EXPECT_EQ(ErrorOf(plan),
            "actor 2 'next' (device 0, phase F) uses bytes of register 1 that actor 1 'use' "
            "(device 0, phase F) uses, and no path of channels within the phase orders the two");
  device.Join(use, next, kNone);
  EXPECT_TRUE(Verify(plan).ok()) << Verify(plan);
}

// ---- Deadlocks ----------------------------------------------------------------------------------

TEST(VerifyPlan, NamesADeadlockOfTooFewCredits) {
  // GPipe wants four activations at once; there is room for two.
  Plan plan = TrainingPlan(4, 2);
  plan.policy = "gpipe";
  const absl::Status status = Verify(plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::string(status.message()).substr(0, 27), "deadlock: device 0 phase F ") << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("waits for credits of channel "), HasSubstr("(needs 1, has 0) from "),
                    HasSubstr("actor 3 'h.gradient' (device 0, phase B), which waits for its turn "
                              "in the compute lane after device 0 phase F")));
}

TEST(VerifyPlan, NamesADeadlockUnderAPolicyWithoutAnOrder) {
  // F of the next micro-batch waits for B of this one, which waits for F of the next.
  Plan plan = EmptyPlan(1, 2, 2);
  plan.policy = "test";
  for (uint32_t d = 0; d < 2; ++d) {
    DeviceBuilder device(&plan, d);
    device.AddPhase("F", PhaseKind::kForward, Lane::kCompute, true);
    const uint32_t forward = device.AddKernel("f", {}, {});
    device.AddPhase("B", PhaseKind::kBackward, Lane::kCompute, true);
    const uint32_t backward = device.AddKernel("b", {}, {});
    device.AddChannel({forward, backward, kNone, 1, 1, 1, 0});
    if (d == 1) device.AddChannel({backward, forward, kNone, 1, 1, 1, 0});
  }
  const absl::Status status = Verify(plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(status.message()),
      ::testing::StartsWith(
          "deadlock: device 1 phase F waits for tokens of channel 1 (needs 1, has 0) from actor 1 "
          "'b' (device 1, phase B), which waits for tokens of channel 0 (needs 1, has 0) from "
          "actor 0 'f' (device 1, phase F); phases are in the order of policy '"));
  plan.devices[1].channels[1].initial = 1;
  EXPECT_TRUE(Verify(plan).ok()) << Verify(plan);
}

// Two devices run collectives 0 and 1 in the order given for each, in one phase of the per-step
// lane; with `waits`, what follows a collective waits for it.
Plan TwoCollectives(std::vector<uint32_t> order0, std::vector<uint32_t> order1, bool waits) {
  Plan plan = EmptyPlan(1, 2, 1);
  AddAllReduce(&plan, {0, 1}, 16, false);
  AddAllReduce(&plan, {0, 1}, 16, false);
  for (uint32_t d = 0; d < 2; ++d) {
    DeviceBuilder device(&plan, d);
    std::vector<uint32_t> regs;
    for (int i = 0; i < 4; ++i) {
      regs.push_back(device.AddRegister(RegisterClass::kWorkspace, kBytes));
    }
    device.AddPhase("update", PhaseKind::kAfterStep, Lane::kPerStep, false);
    const uint32_t make = device.AddKernel("make", {}, {regs[0], regs[1]});
    for (const uint32_t c : d == 0 ? order0 : order1) {
      const std::string number = std::to_string(c);
      const uint32_t reduce = device.AddCollective("reduce" + number, c, regs[c], regs[2 + c]);
      device.Join(make, reduce, regs[c]);
      if (waits) {
        const uint32_t use = device.AddKernel("use" + number, {regs[2 + c]}, {});
        device.Join(reduce, use, regs[2 + c]);
      }
    }
  }
  return plan;
}

TEST(VerifyPlan, NamesADeadlockOfCollectivesInOppositeOrder) {
  EXPECT_TRUE(Verify(TwoCollectives({0, 1}, {0, 1}, true)).ok());
  const absl::Status status = Verify(TwoCollectives({0, 1}, {1, 0}, true));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(status.message()),
      ::testing::StartsWith(
          "deadlock: device 0 phase update waits in actor 2 'use0' (device 0, phase update) for "
          "collective 0 with actor 3 'reduce0' (device 1, phase update), which waits in actor 2 "
          "'use1' (device 1, phase update) for collective 1 with actor 3 'reduce1' (device 0, "
          "phase update); phases are in the order of policy '"));
}

TEST(VerifyPlan, RefusesCollectivesAgainstTheGlobalOrder) {
  // Nothing waits, so the untimed run ends; one stream of collectives would not.
  const absl::Status status = Verify(TwoCollectives({0, 1}, {1, 0}, false));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      std::string(status.message()),
      "actor 2 'reduce0' (device 1, phase update) starts collective 0 after actor 1 'reduce1' "
      "(device 1, phase update) has started collective 1 in the same lane, against the plan's "
      "order of collectives");
}

TEST(VerifyPlan, NamesADeadlockOfTransfersBetweenLanes) {
  // Each device first sends in its per-step lane and then receives: nobody receives.
  Plan plan = EmptyPlan(1, 2, 1);
  AddTransfer(&plan, 0, 1, kBytes, false);
  AddTransfer(&plan, 1, 0, kBytes, false);
  for (uint32_t d = 0; d < 2; ++d) {
    DeviceBuilder device(&plan, d);
    const uint32_t out = device.AddRegister(RegisterClass::kWorkspace, kBytes);
    const uint32_t in = device.AddRegister(RegisterClass::kWorkspace, kBytes);
    device.AddPhase("send", PhaseKind::kAfterStep, Lane::kPerStep, false);
    const uint32_t make = device.AddKernel("make", {}, {out});
    const uint32_t send = device.AddSend("send", d, out);
    device.Join(make, send, out);
    device.AddPhase("recv", PhaseKind::kAfterStep, Lane::kPerStep, false);
    device.AddRecv("recv", 1 - d, in);
  }
  const absl::Status status = Verify(plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("for transfer 0 with actor 2 'recv' (device 1, phase recv)"),
            HasSubstr("for transfer 1 with actor 2 'recv' (device 0, phase recv)"),
            HasSubstr("waits for the per-step lane, which is held by device 1 phase send")));
  for (uint32_t d = 0; d < 2; ++d) plan.devices[d].phases[1].lane = Lane::kFloating;
  EXPECT_TRUE(Verify(plan).ok()) << Verify(plan);
}

TEST(VerifyPlan, APolicyHasToBeKnownWhereThePlanHasNoOrder) {
  Plan plan = TrainingPlan(1, 1);
  plan.policy = "zero-bubble";
  const absl::Status status = Verify(plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'zero-bubble'"), HasSubstr("no order for stage 0")));
  for (StagePlan& stage : plan.stages) {
    stage.order = {{PhaseKind::kForward, 0}, {PhaseKind::kBackward, 0}};
  }
  EXPECT_TRUE(Verify(plan).ok()) << Verify(plan);
}

TEST(VerifyPlan, RefusesOrdersThatDoNotRunEverything) {
  Plan plan = TrainingPlan(2, 2);
  plan.policy = "test";
  const auto error_of = [&](std::vector<PhaseChoice> order) {
    return std::string(VerifyPlan(plan, Policies(std::move(order))).status().message());
  };
  const PhaseChoice f0 = {PhaseKind::kForward, 0}, f1 = {PhaseKind::kForward, 1};
  const PhaseChoice b0 = {PhaseKind::kBackward, 0}, b1 = {PhaseKind::kBackward, 1};
  EXPECT_EQ(error_of({f0, f1, b0, b1}), "");
  EXPECT_THAT(error_of({f0, f1, b0}),
              HasSubstr("orders on stage 0: 1 phase of kind B, expected 2"));
  EXPECT_THAT(error_of({f1, f0, b0, b1}),
              HasSubstr("orders on stage 0: F of micro-batch 1, expected micro-batch 0"));
  EXPECT_THAT(error_of({f0, f1, {PhaseKind::kWeight, 0}}),
              HasSubstr("orders on stage 0: a phase of kind W"));
  EXPECT_THAT(error_of({f0, b0, b1, f1}), HasSubstr("deadlock"));
  // The plan's own order is preferred.
  plan.stages[0].order = {f0, f1, b0};
  EXPECT_THAT(error_of({f0, f1, b0, b1}),
              HasSubstr("the order of stage 0 has 1 phase of kind B, expected 2"));
}

TEST(PreviousOfGroups, OrdersCollectivesOfAGroupWithinAPhase) {
  Plan plan;
  plan.collectives.resize(3);
  plan.collectives[0].devices = plan.collectives[2].devices = {0, 1};
  plan.collectives[1].devices = {0, 2};
  plan.devices.resize(1);
  DevicePlan& device = plan.devices[0];
  device.phases.resize(2);
  device.phases[0].num_actors = 4;
  device.phases[1].first_actor = 4;
  device.phases[1].num_actors = 1;
  device.actors.resize(5);
  const std::vector<uint32_t> targets = {0, 1, kNone, 2, 0};
  for (uint32_t i = 0; i < targets.size(); ++i) {
    if (targets[i] == kNone) continue;
    device.actors[i].kind = ActorKind::kCollective;
    device.actors[i].target = targets[i];
  }
  EXPECT_THAT(PreviousOfGroups(plan, 0), ElementsAre(kNone, kNone, kNone, 0, kNone));
}

}  // namespace
}  // namespace penstock::planner
