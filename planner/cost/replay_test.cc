#include "planner/cost/replay.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "planner/plan/verify_plan.h"
#include "tests/support/plans.h"

namespace penstock::planner {
namespace {

using testing::AddAllReduce;
using testing::AddTransfer;
using testing::DeviceBuilder;
using testing::EmptyPlan;
using testing::TrainingPlan;

constexpr uint64_t kBytes = 64;

// Milliseconds a step, of a plan that verifies. Actors take the milliseconds given to their names,
// others none.
double StepMs(const Plan& plan, const std::map<std::string, double>& times_ms,
              ReplayOptions options = {}) {
  const PolicyRegistry policies = BuiltinPolicies();
  const auto verified = VerifyPlan(plan, policies);
  EXPECT_TRUE(verified.ok()) << verified.status();
  options.compute_s = [&](uint32_t device, uint32_t actor) {
    const auto it = times_ms.find(plan.devices[device].actors[actor].name);
    return it == times_ms.end() ? 0 : 1e-3 * it->second;
  };
  const auto step_s = ReplayStepSeconds(plan, policies, options);
  EXPECT_TRUE(step_s.ok()) << step_s.status();
  return 1e3 * step_s.value_or(-1);
}

ReplayOptions WithRates(double latency_s, double bytes_per_s) {
  ReplayOptions options;
  options.link = [=](uint32_t, uint32_t) { return LinkRates{latency_s, bytes_per_s}; };
  return options;
}

// Device 2i computes "f" and sends kBytes to device 2i + 1, which computes "g".
Plan TransfersPlan(uint32_t num_pairs, uint32_t credits, uint32_t num_microbatches = 1) {
  Plan plan = EmptyPlan(1, 2 * num_pairs, num_microbatches);
  for (uint32_t i = 0; i < num_pairs; ++i) {
    const uint32_t transfer = AddTransfer(&plan, 2 * i, 2 * i + 1, kBytes, true);
    DeviceBuilder from(&plan, 2 * i);
    const uint32_t y = from.AddRegister(RegisterClass::kChannel, kBytes, credits);
    from.AddPhase("F", PhaseKind::kForward, Lane::kCompute, true);
    const uint32_t f = from.AddKernel("f", {}, {y});
    from.AddPhase("send", PhaseKind::kTransfer, Lane::kFloating, true);
    const uint32_t send = from.AddSend("send", transfer, y);
    from.AddChannel({f, send, y, 1, 1, credits, 0});
    DeviceBuilder to(&plan, 2 * i + 1);
    const uint32_t x = to.AddRegister(RegisterClass::kChannel, kBytes, credits);
    to.AddPhase("recv", PhaseKind::kTransfer, Lane::kFloating, true);
    const uint32_t recv = to.AddRecv("recv", transfer, x);
    to.AddPhase("F", PhaseKind::kForward, Lane::kCompute, true);
    const uint32_t g = to.AddKernel("g", {x}, {});
    to.AddChannel({recv, g, x, 1, 1, credits, 0});
  }
  return plan;
}

TEST(ReplayTest, StepsOverlapAsFarAsCreditsGo) {
  const ReplayOptions options = WithRates(1e-6, kBytes * 1e3);  // 1.001 ms a message
  // Device 0 is the slowest; with one slot it waits for each message to be gone.
  EXPECT_NEAR(StepMs(TransfersPlan(1, 2), {{"f", 4}, {"g", 2}}, options), 4, 1e-9);
  EXPECT_NEAR(StepMs(TransfersPlan(1, 1), {{"f", 4}, {"g", 2}}, options), 5.001, 1e-9);
  // The link is the slowest: messages follow each other without waiting for the latency.
  EXPECT_NEAR(StepMs(TransfersPlan(1, 3), {{"f", 0.5}, {"g", 0.5}}, WithRates(1e-6, kBytes * 1e3)),
              1, 1e-2);
  EXPECT_NEAR(StepMs(TransfersPlan(1, 2, 3), {{"f", 4}, {"g", 2}}, options), 12, 1e-9);
}

TEST(ReplayTest, DevicesOnOneCoreTakeTurns) {
  ReplayOptions options = WithRates(0, 1e18);
  EXPECT_NEAR(StepMs(TransfersPlan(1, 2), {{"f", 3}, {"g", 2}}, options), 3, 1e-9);
  options.core_of_device = {0, 0};
  EXPECT_NEAR(StepMs(TransfersPlan(1, 2), {{"f", 3}, {"g", 2}}, options), 5, 1e-9);
}

TEST(ReplayTest, TransfersBetweenTwoProcessesShareALink) {
  ReplayOptions options = WithRates(0, kBytes * 1e3);  // 1 ms a message
  const Plan plan = TransfersPlan(2, 3);
  const std::map<std::string, double> times_ms = {{"f", 0.1}, {"g", 0.1}};
  EXPECT_NEAR(StepMs(plan, times_ms, options), 1, 1e-9);
  options.process_of_device = {0, 1, 0, 1};
  EXPECT_NEAR(StepMs(plan, times_ms, options), 2, 1e-9);
  options.process_of_device = {0, 1, 1, 0};  // opposite directions
  EXPECT_NEAR(StepMs(plan, times_ms, options), 1, 1e-9);
  options.process_of_device = {0, 0, 0, 0};  // each pair of devices its own
  EXPECT_NEAR(StepMs(plan, times_ms, options), 1, 1e-9);
}

// Two devices: a, an all_reduce of its result, c, which waits for it, and b, which does not; b is
// before or behind c in the planned order. The kernel a of device 1 is "slow a".
Plan ReducePlan(bool is_b_first) {
  Plan plan = EmptyPlan(1, 2, 1);
  const uint32_t reduce = AddAllReduce(&plan, {0, 1}, kBytes / 4, true);
  for (uint32_t d = 0; d < 2; ++d) {
    DeviceBuilder device(&plan, d);
    const uint32_t x = device.AddRegister(RegisterClass::kWorkspace, kBytes);
    const uint32_t y = device.AddRegister(RegisterClass::kWorkspace, kBytes);
    const uint32_t z = device.AddRegister(RegisterClass::kWorkspace, kBytes);
    device.AddPhase("F", PhaseKind::kForward, Lane::kCompute, true);
    const uint32_t a = device.AddKernel(d == 0 ? "a" : "slow a", {}, {x});
    const uint32_t r = device.AddCollective("r", reduce, x, y);
    if (is_b_first) device.AddKernel("b", {}, {z});
    const uint32_t c = device.AddKernel("c", {y}, {});
    if (!is_b_first) device.AddKernel("b", {}, {z});
    device.Join(a, r, x);
    device.Join(r, c, y);
  }
  return plan;
}

TEST(ReplayTest, ACollectiveRunsBesideComputation) {
  // Two messages of half the bytes, one after the other: 1 ms.
  const ReplayOptions options = WithRates(0, kBytes * 1e3);
  for (const bool is_b_first : {true, false}) {
    const Plan plan = ReducePlan(is_b_first);
    const double hidden = StepMs(plan, {{"a", 1}, {"slow a", 2}, {"b", 3}, {"c", 1}}, options);
    EXPECT_NEAR(hidden, 2 + 3 + 1, 1e-9);
    const double exposed = StepMs(plan, {{"a", 1}, {"slow a", 2}, {"b", 0.25}, {"c", 1}}, options);
    EXPECT_NEAR(exposed, 2 + 1 + 1, 1e-9);
  }
}

// A pipeline of S stages takes M + S - 1 times a micro-batch's F and B.
TEST(ReplayTest, APipelineHasItsBubble) {
  for (const char* policy : {"gpipe", "1f1b"}) {
    for (const uint32_t m : {1, 2, 4, 7}) {
      Plan plan = TrainingPlan(m, m);
      plan.policy = policy;
      EXPECT_NEAR(StepMs(plan, {{"h.matmul", 1}, {"h.gradient", 2}}, WithRates(0, 1e18)),
                  3 * (m + 1), 1e-9)
          << policy << ", " << m;
    }
  }
  EXPECT_NEAR(StepMs(TrainingPlan(3, 3), {{"h.matmul", 1}, {"h.gradient", 2}, {"w.update", 0.5}},
                     WithRates(0, 1e18)),
              12.5, 1e-9);
}

// One device. F: a, a copy of its result to the host, and b, which needs neither. Then a phase that
// copies the result back and computes c, which needs nothing.
Plan StorePlan(PhaseKind kind, Lane lane, bool is_copied_first) {
  Plan plan = EmptyPlan(1, 1, 1);
  DeviceBuilder device(&plan, 0);
  const uint32_t x = device.AddRegister(RegisterClass::kWorkspace, kBytes);
  const uint32_t y = device.AddRegister(RegisterClass::kWorkspace, kBytes);
  const uint32_t z = device.AddRegister(RegisterClass::kWorkspace, kBytes);
  const uint32_t loaded = device.AddRegister(RegisterClass::kWorkspace, kBytes);
  const uint32_t host = device.AddHostRegister(RegisterClass::kChannel, kBytes);
  device.AddPhase("F", PhaseKind::kForward, Lane::kCompute, true);
  const uint32_t a = device.AddKernel("a", {}, {x});
  const uint32_t store = device.AddCopy("store", x, host);
  device.AddKernel("b", {}, {y});
  device.Join(a, store, x);
  device.AddPhase("next", kind, lane, lane != Lane::kPerStep);
  if (!is_copied_first) device.AddKernel("c", {}, {z});
  const uint32_t load = device.AddCopy("load", host, loaded);
  if (is_copied_first) device.AddKernel("c", {}, {z});
  device.AddChannel({store, load, host, 1, 1, 1, 0});
  return plan;
}

// As the engine does it: a phase ends when its copies have, whatever the next one reads.
TEST(ReplayTest, APhaseWaitsForItsCopies) {
  const Plan plan = StorePlan(PhaseKind::kBackward, Lane::kCompute, false);
  const std::map<std::string, double> long_store = {{"a", 1}, {"store", 5}, {"b", 2}, {"c", 3}};
  const std::map<std::string, double> short_store = {{"a", 1}, {"store", 1}, {"b", 2}, {"c", 3}};
  ReplayOptions options;
  options.has_copy_streams = {true};
  EXPECT_NEAR(StepMs(plan, long_store, options), 1 + 5 + 3, 1e-9);
  EXPECT_NEAR(StepMs(plan, short_store, options), 1 + 2 + 3, 1e-9);
  // On a CPU, which works in the memory of the host, they take turns with kernels.
  options.has_copy_streams = {false};
  EXPECT_NEAR(StepMs(plan, long_store, options), 1 + 5 + 2 + 3, 1e-9);
  EXPECT_NEAR(StepMs(plan, short_store), 1 + 1 + 2 + 3, 1e-9);
}

// As in the engine: a phase of another lane that has tokens of a copy waits for it, and gives its
// credits back when its own copy has ended.
TEST(ReplayTest, APhaseOfAnotherLaneWaitsForTheCopiesThatItHasTokensOf) {
  const Plan plan = StorePlan(PhaseKind::kAfterStep, Lane::kPerStep, true);
  ReplayOptions options;
  options.has_copy_streams = {true};
  // The next F needs the place on the host.
  EXPECT_NEAR(StepMs(plan, {{"a", 1}, {"store", 5}, {"b", 2}, {"load", 4}, {"c", 2}}, options),
              1 + 5 + 4, 1e-9);
}

// What waits for a copy holds up what comes behind it in the planned order, copies included; a copy
// waits for copies in its direction alone.
TEST(ReplayTest, CopiesBeginInTheirTurn) {
  Plan plan = EmptyPlan(1, 1, 1);
  DeviceBuilder device(&plan, 0);
  const uint32_t x = device.AddRegister(RegisterClass::kWorkspace, kBytes);
  const uint32_t loaded = device.AddRegister(RegisterClass::kWorkspace, kBytes);
  const uint32_t next_loaded = device.AddRegister(RegisterClass::kWorkspace, kBytes);
  const uint32_t host = device.AddHostRegister(RegisterClass::kWorkspace, kBytes);
  const uint32_t next_host = device.AddHostRegister(RegisterClass::kWorkspace, kBytes);
  const uint32_t stored = device.AddHostRegister(RegisterClass::kWorkspace, kBytes);
  device.AddPhase("F", PhaseKind::kForward, Lane::kCompute, true);
  const uint32_t fill = device.AddKernel("fill", {}, {x});
  const uint32_t put = device.AddCopy("put", x, host);
  const uint32_t next_put = device.AddCopy("next put", x, next_host);
  const uint32_t load = device.AddCopy("load", host, loaded);
  const uint32_t a = device.AddKernel("a", {loaded}, {});
  const uint32_t store = device.AddCopy("store", x, stored);
  const uint32_t next_load = device.AddCopy("next load", next_host, next_loaded);
  device.AddKernel("b", {}, {});
  for (const uint32_t copy : {put, next_put, store}) device.Join(fill, copy, x);
  device.Join(put, load, host);
  device.Join(next_put, next_load, next_host);
  device.Join(load, a, loaded);
  ReplayOptions options;
  options.has_copy_streams = {true};
  // load, a, then both copies beside b.
  const std::map<std::string, double> times_ms = {
      {"load", 3}, {"a", 2}, {"store", 6}, {"next load", 4}, {"b", 1}};
  EXPECT_NEAR(StepMs(plan, times_ms, options), 3 + 2 + 6, 1e-9);
}

// As in the engine: a kernel whose turn it is waits for its copy on the stream, ahead of one before
// it in the planned order that communication makes ready meanwhile.
TEST(ReplayTest, AKernelThatWaitsForACopyKeepsItsPlace) {
  Plan plan = EmptyPlan(1, 2, 1);
  const uint32_t reduce = AddAllReduce(&plan, {0, 1}, kBytes / 4, true);
  for (uint32_t d = 0; d < 2; ++d) {
    DeviceBuilder device(&plan, d);
    const uint32_t x = device.AddRegister(RegisterClass::kWorkspace, kBytes);
    const uint32_t y = device.AddRegister(RegisterClass::kWorkspace, kBytes);
    const uint32_t loaded = device.AddRegister(RegisterClass::kWorkspace, kBytes);
    const uint32_t host = device.AddHostRegister(RegisterClass::kWorkspace, kBytes);
    const auto name = [d](const std::string& of_first) { return d == 0 ? of_first : "other"; };
    device.AddPhase("F", PhaseKind::kForward, Lane::kCompute, true);
    const uint32_t fill = device.AddKernel(d == 0 ? "fill" : "slow fill", {}, {x});
    const uint32_t put = device.AddCopy("put", x, host);
    const uint32_t r = device.AddCollective("r", reduce, x, y);
    const uint32_t reads_sum = device.AddKernel(name("reads sum"), {y}, {});
    const uint32_t load = device.AddCopy(name("load"), host, loaded);
    const uint32_t reads_copy = device.AddKernel(name("reads copy"), {loaded}, {});
    device.Join(fill, put, x);
    device.Join(fill, r, x);
    device.Join(r, reads_sum, y);
    device.Join(put, load, host);
    device.Join(load, reads_copy, loaded);
  }
  ReplayOptions options = WithRates(0, 1e18);
  options.has_copy_streams = {true, true};
  const std::map<std::string, double> times_ms = {
      {"slow fill", 5}, {"reads sum", 2}, {"load", 10}, {"reads copy", 3}};
  EXPECT_NEAR(StepMs(plan, times_ms, options), 10 + 3 + 2, 1e-9);
}

TEST(ReplayTest, ADeadlockIsAnError) {
  Plan plan = TransfersPlan(1, 2);
  plan.devices[1].channels[0].consume = 2;  // of one that comes each step
  ReplayOptions options;
  options.compute_s = [](uint32_t, uint32_t) { return 1e-3; };
  const PolicyRegistry policies = BuiltinPolicies();
  EXPECT_FALSE(ReplayStepSeconds(plan, policies, options).ok());
}

}  // namespace
}  // namespace penstock::planner
