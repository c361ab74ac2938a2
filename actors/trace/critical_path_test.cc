#include "actors/trace/critical_path.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/session/session.h"
#include "base/device.h"
#include "base/strings.h"
#include "tests/support/engine_plan.h"

namespace penstock::actors {
namespace {

using planner::kNone;
using planner::Lane;
using planner::PhaseKind;
using ::testing::ElementsAre;
using testing::EnginePlanBuilder;
using testing::EngineTestKernels;
using testing::kWidth;

// Segments as text: "compute 0 f 0..4", with the micro-batch where it is not 0.
std::vector<std::string> Show(const planner::Plan& plan, const CriticalPath& path) {
  std::vector<std::string> lines;
  for (const PathSegment& segment : path.segments) {
    std::string line = segment.kind == SegmentKind::kCompute         ? "compute"
                       : segment.kind == SegmentKind::kCommunication ? "communication"
                                                                     : "idle";
    StrAppend(&line, " ", segment.device);
    if (segment.actor != kNone) {
      StrAppend(&line, " ", plan.devices[segment.device].actors[segment.actor].name);
    }
    if (segment.microbatch != 0) StrAppend(&line, " of ", segment.microbatch);
    lines.push_back(StrCat(line, " ", segment.begin_ns, "..", segment.end_ns));
  }
  return lines;
}

int64_t Sum(const CriticalPath& path) {
  int64_t sum = 0;
  int64_t end_ns = path.step.begin_ns;
  for (const PathSegment& segment : path.segments) {
    EXPECT_EQ(segment.begin_ns, end_ns);  // without gaps
    EXPECT_GT(segment.end_ns, segment.begin_ns);
    end_ns = segment.end_ns;
    sum += segment.duration_ns();
  }
  EXPECT_EQ(sum,
            path.compute_ns + path.exposed_communication_ns + path.core_wait_ns + path.idle_ns);
  return sum;
}

// Two stages: device 0 computes f (actor 0) and sends (1); device 1 receives (0) and computes g
// (1). Phases: 0 and 1 of each device.
planner::Plan PipelinePlan(uint32_t num_microbatches, const std::string& kernel = "t.iota") {
  EnginePlanBuilder b(num_microbatches, "gpipe");
  for (uint32_t d = 0; d < 2; ++d) b.AddDevice(d);
  const uint32_t y = b.AddRegister(0, 2);
  const uint32_t x = b.AddRegister(1, 2);
  const uint32_t z = b.AddRegister(1);
  b.BeginPhase(0, "F", PhaseKind::kForward);
  const uint32_t f = b.AddKernel(0, "f", kernel, {}, {y});
  b.BeginPhase(0, "send", PhaseKind::kTransfer, Lane::kFloating);
  const uint32_t send = b.AddSend(0, "send", y, 1);
  b.BeginPhase(1, "recv", PhaseKind::kTransfer, Lane::kFloating);
  const uint32_t recv = b.AddRecv(1, "recv", x, b.last_transfer());
  b.BeginPhase(1, "F", PhaseKind::kForward);
  const uint32_t g = b.AddKernel(1, "g", kernel, {}, {z});
  b.AddChannel(0, f, send, 1, 1, 2);
  b.AddChannel(1, recv, g, 1, 1, 2);
  return b.Build();
}

TEST(CriticalPathTest, FollowsAReceiveToItsSender) {
  const planner::Plan plan = PipelinePlan(1);
  const std::vector<TraceEvent> events = {{0, 0, 0, 0, 2, 10, 90},     // of the step before
                                          {0, 0, 0, 0, 3, 100, 140},   // f
                                          {0, 1, 1, 0, 3, 140, 155},   // send
                                          {1, 0, 0, 0, 3, 100, 160},   // recv, posted early
                                          {1, 1, 1, 0, 3, 161, 190}};  // g
  // before
  const CriticalPath path = FindCriticalPath(plan, events, {3, 95, 192});
  EXPECT_THAT(Show(plan, path),
              ElementsAre("idle 0 95..100", "compute 0 f 100..140", "communication 1 recv 140..160",
                          "idle 1 160..161", "compute 1 g 161..190", "idle 1 190..192"));
  EXPECT_EQ(Sum(path), 97);
  EXPECT_EQ(path.compute_ns, 69);
  EXPECT_EQ(path.exposed_communication_ns, 20);
  EXPECT_EQ(path.idle_ns, 8);
  ASSERT_EQ(path.devices.size(), 2u);
  // Data moved from 140 to 155, when the sender was done.
  EXPECT_EQ(path.devices[1].communication_ns, 15);
  EXPECT_EQ(path.devices[1].hidden_communication_ns, 0);
  EXPECT_EQ(path.devices[1].bubble_ns, 97 - 29 - 15);
  EXPECT_EQ(path.hidden_fraction(), 0);
}

// Device 1 computes g of micro-batch 0 while the data of micro-batch 1 arrive.
TEST(CriticalPathTest, CommunicationBesideComputationIsHidden) {
  const planner::Plan plan = PipelinePlan(2);
  std::vector<TraceEvent> events = {{0, 0, 0, 0, 0, 0, 10},  {0, 1, 1, 0, 0, 10, 20},
                                    {0, 0, 0, 1, 0, 10, 20}, {0, 1, 1, 1, 0, 20, 30},
                                    {1, 0, 0, 0, 0, 0, 20},  {1, 1, 1, 0, 0, 20, 60},
                                    {1, 0, 0, 1, 0, 20, 30}, {1, 1, 1, 1, 0, 60, 70}};
  CriticalPath path = FindCriticalPath(plan, events, {0, 0, 70});
  EXPECT_THAT(Show(plan, path), ElementsAre("compute 0 f 0..10", "communication 1 recv 10..20",
                                            "compute 1 g 20..60", "compute 1 g of 1 60..70"));
  EXPECT_EQ(Sum(path), 70);
  EXPECT_EQ(path.exposed_communication_ns, 10);
  // Of 40 in all: the send from 10 to 20 and the receive from 20 to 30.
  EXPECT_DOUBLE_EQ(path.hidden_fraction(), 0.5);
  EXPECT_EQ(path.devices[0].bubble_ns, 40);
  EXPECT_DOUBLE_EQ(path.bubble_fraction(), 50.0 / 140);

  // The data of micro-batch 1 come last: of the 50 that they move, 40 are beside g.
  events[1].end_ns = events[4].end_ns = 18;
  events[5].begin_ns = events[6].begin_ns = 18;
  events[3].end_ns = events[6].end_ns = 70;
  events[7] = {1, 1, 1, 1, 0, 70, 80};
  path = FindCriticalPath(plan, events, {0, 0, 80});
  EXPECT_THAT(Show(plan, path),
              ElementsAre("compute 0 f 0..10", "compute 0 f of 1 10..20",
                          "communication 1 recv of 1 20..70", "compute 1 g of 1 70..80"));
  EXPECT_EQ(Sum(path), 80);
  EXPECT_EQ(path.exposed_communication_ns, 10);
  EXPECT_EQ(path.compute_ns, 70);
}

// With one slot, f of micro-batch 1 starts when the send of micro-batch 0 has returned the credit.
TEST(CriticalPathTest, ACreditOpensAPhase) {
  planner::Plan plan = PipelinePlan(2);
  plan.devices[0].channels[0].capacity = 1;
  const std::vector<TraceEvent> events = {{0, 0, 0, 0, 0, 0, 10},  {0, 1, 1, 0, 0, 10, 50},
                                          {0, 0, 0, 1, 0, 52, 60}, {0, 1, 1, 1, 0, 60, 70},
                                          {1, 0, 0, 0, 0, 0, 50},  {1, 1, 1, 0, 0, 50, 55},
                                          {1, 0, 0, 1, 0, 50, 70}, {1, 1, 1, 1, 0, 70, 75}};
  const CriticalPath path = FindCriticalPath(plan, events, {0, 0, 75});
  EXPECT_THAT(Show(plan, path),
              ElementsAre("compute 0 f 0..10", "communication 0 send 10..50", "idle 0 of 1 50..52",
                          "compute 0 f of 1 52..60", "communication 1 recv of 1 60..70",
                          "compute 1 g of 1 70..75"));
  Sum(path);
}

// Both devices: a (actor 0), reduce (1), c (2), which reads nothing of reduce, and d (3), in F;
// then once a step an update (4) of the next phase in the lane of its own.
planner::Plan CollectivePlan() {
  EnginePlanBuilder b(1);
  for (int d = 0; d < 2; ++d) b.AddDevice();
  const uint32_t reduce =
      b.AddCollectiveSpec(CollectiveKind::kAllReduce, {0, 1}, {kWidth / 2, kWidth / 2}, true);
  for (uint32_t d = 0; d < 2; ++d) {
    const uint32_t x = b.AddRegister(d);
    const uint32_t y = b.AddRegister(d);
    b.BeginPhase(d, "F", PhaseKind::kForward);
    const uint32_t a = b.AddKernel(d, "a", "t.iota", {}, {x});
    const uint32_t r = b.AddCollective(d, "reduce", reduce, x, y);
    b.AddKernel(d, "c", "t.iota", {}, {x});
    const uint32_t last = b.AddKernel(d, "d", "t.iota", {}, {x});
    b.AddChannel(d, a, r);
    b.AddChannel(d, r, last);
    b.BeginPhase(d, "update", PhaseKind::kAfterStep, Lane::kPerStep, false);
    const uint32_t update = b.AddKernel(d, "update", "t.iota", {}, {x});
    b.AddChannel(d, last, update);
    b.AddChannel(d, update, a, 1, 1, 1, 1);
  }
  return b.Build();
}

TEST(CriticalPathTest, FollowsACollectiveToTheMemberThatStartedLast) {
  const planner::Plan plan = CollectivePlan();
  const std::vector<TraceEvent> events = {{1, 4, 1, 0, 4, -5, 3},  // the update of the step before

                                          {0, 0, 0, 0, 5, 0, 10},  {0, 1, 0, 0, 5, 10, 42},
                                          {0, 2, 0, 0, 5, 11, 15}, {0, 3, 0, 0, 5, 42, 50},
                                          {0, 4, 1, 0, 5, 50, 60}, {1, 0, 0, 0, 5, 4, 30},
                                          {1, 1, 0, 0, 5, 31, 41}, {1, 2, 0, 0, 5, 31, 36},
                                          {1, 3, 0, 0, 5, 41, 45}, {1, 4, 1, 0, 5, 45, 48}};
  const CriticalPath path = FindCriticalPath(plan, events, {5, 0, 60});
  EXPECT_THAT(Show(plan, path),
              ElementsAre("compute 1 update 0..3", "idle 1 3..4", "compute 1 a 4..30",
                          "idle 1 30..31", "communication 0 reduce 31..42", "compute 0 d 42..50",
                          "compute 0 update 50..60"));
  EXPECT_EQ(Sum(path), 60);
  EXPECT_EQ(path.exposed_communication_ns, 11);
  // Data moved from 31 to 41 on both; device 1 computed c until 36.
  EXPECT_DOUBLE_EQ(path.hidden_fraction(), 0.25);
}

// What waits for communication holds up nothing else: e waits for d, which was ready before it.
TEST(CriticalPathTest, ActsOfAPhaseWaitForTheirOwnInputs) {
  EnginePlanBuilder b(1);
  b.AddDevice();
  const uint32_t reduce = b.AddCollectiveSpec(CollectiveKind::kAllReduce, {0}, {kWidth}, true);
  const uint32_t x = b.AddRegister(0);
  const uint32_t y = b.AddRegister(0);
  b.BeginPhase(0, "F", PhaseKind::kForward);
  const uint32_t a = b.AddCollective(0, "a", reduce, x, x);
  const uint32_t e = b.AddKernel(0, "e", "t.affine", {x}, {x});
  b.AddKernel(0, "d", "t.iota", {}, {y});
  b.AddChannel(0, a, e);
  const planner::Plan plan = b.Build();
  const CriticalPath path = FindCriticalPath(
      plan, {{0, 0, 0, 0, 0, 0, 10}, {0, 2, 0, 0, 0, 0, 20}, {0, 1, 0, 0, 0, 20, 24}}, {0, 0, 24});
  EXPECT_THAT(Show(plan, path), ElementsAre("compute 0 d 0..20", "compute 0 e 20..24"));
}

TEST(CriticalPathTest, TracesMayBeIncomplete) {
  const planner::Plan plan = PipelinePlan(1);
  CriticalPath path = FindCriticalPath(plan, {}, {3, 100, 200});
  EXPECT_THAT(Show(plan, path), ElementsAre("idle 0 100..200"));
  EXPECT_EQ(Sum(path), 100);
  // Of devices, phases and actors that the plan lacks; without a sender; with another host's clock.
  path = FindCriticalPath(plan,
                          {{7, 0, 0, 0, 3, 110, 120},
                           {0, 9, 0, 0, 3, 110, 120},
                           {0, 0, 9, 0, 3, 110, 120},
                           {0, 1, 1, 0, 3, 90'000, 90'001},
                           {1, 0, 0, 0, 3, 120, 150},
                           {1, 1, 1, 0, 3, 150, 190}},
                          {3, 100, 200});
  EXPECT_THAT(Show(plan, path), ElementsAre("idle 1 100..120", "communication 1 recv 120..150",
                                            "compute 1 g 150..190", "idle 1 190..200"));
  EXPECT_EQ(Sum(path), 100);
  // Acts without a duration, at one time.
  path = FindCriticalPath(plan,
                          {{0, 0, 0, 0, 3, 150, 150},
                           {0, 1, 1, 0, 3, 150, 150},
                           {1, 0, 0, 0, 3, 150, 150},
                           {1, 1, 1, 0, 3, 150, 150}},
                          {3, 100, 200});
  EXPECT_EQ(Sum(path), 100);
  EXPECT_EQ(path.idle_ns, 100);
}

// Device 1 has its data at 30 and begins at 60; from 35 to 50 device 0 computes the next
// micro-batch, which it may do beside device 1 only if they have two cores.
TEST(CriticalPathTest, DevicesThatShareCoresWaitForThem) {
  const planner::Plan plan = PipelinePlan(2);
  const std::vector<TraceEvent> events = {
      {0, 0, 0, 0, 0, 0, 20}, {0, 1, 1, 0, 0, 20, 25}, {0, 0, 0, 1, 0, 35, 50},
      {1, 0, 0, 0, 0, 5, 30}, {1, 1, 1, 0, 0, 60, 90},
  };
  const StepWindow window = {0, 0, 90};
  for (const uint32_t num_at_once : {1u, 2u}) {
    const SharedCores cores = {{0, 0}, {num_at_once}};
    const CriticalPath path = FindCriticalPath(plan, events, window, &cores);
    EXPECT_THAT(Show(plan, path), ElementsAre("compute 0 f 0..20", "communication 1 recv 20..30",
                                              "idle 1 30..60", "compute 1 g 60..90"));
    EXPECT_EQ(Sum(path), 90);
    EXPECT_EQ(path.core_wait_ns, num_at_once == 1 ? 15 : 0);
    EXPECT_EQ(path.core_wait_ns + path.idle_ns, 30);
  }
  const SharedCores own = {{0, 1}, {1, 1}};
  EXPECT_EQ(FindCriticalPath(plan, events, window, &own).core_wait_ns, 0);
  EXPECT_EQ(FindCriticalPath(plan, events, window).core_wait_ns, 0);
  // Of devices and groups that are not described.
  const SharedCores unknown = {{7}, {1}};
  EXPECT_EQ(FindCriticalPath(plan, events, window, &unknown).core_wait_ns, 0);
}

// The second transfer is as large as the first, which took 5; then it waits for a core, on which
// device 0 computes from 125 to 145. What is left is communication: the link may have been slow.
TEST(CriticalPathTest, CommunicationMayWaitForACore) {
  const planner::Plan plan = PipelinePlan(2);
  const std::vector<TraceEvent> events = {
      {0, 0, 0, 0, 0, 0, 20},    {0, 1, 1, 0, 0, 20, 25},   {1, 0, 0, 0, 0, 5, 25},
      {1, 1, 1, 0, 0, 25, 30},   {0, 0, 0, 0, 1, 100, 120}, {0, 1, 1, 0, 1, 120, 150},
      {0, 0, 0, 1, 1, 125, 145}, {1, 0, 0, 0, 1, 105, 150}, {1, 1, 1, 0, 1, 150, 190},
  };
  const StepWindow window = {1, 100, 190};
  const SharedCores cores = {{0, 0}, {1}};
  const CriticalPath path = FindCriticalPath(plan, events, window, &cores);
  EXPECT_THAT(Show(plan, path), ElementsAre("compute 0 f 100..120", "communication 1 recv 120..150",
                                            "compute 1 g 150..190"));
  EXPECT_EQ(Sum(path), 90);
  EXPECT_EQ(path.core_wait_ns, 20);
  EXPECT_EQ(path.exposed_communication_ns, 10);
  EXPECT_EQ(path.idle_ns, 0);
  EXPECT_EQ(path.devices[1].communication_ns, 5);
  EXPECT_EQ(FindCriticalPath(plan, events, window).exposed_communication_ns, 30);
}

// A kernel launched on a stream is recorded from its launch, long before it runs.
TEST(CriticalPathTest, LaunchedKernelsBeginWhenTheStreamIsFree) {
  const planner::Plan plan = CollectivePlan();
  const CriticalPath path = FindCriticalPath(
      plan, {{0, 0, 0, 0, 0, 1, 10}, {0, 2, 0, 0, 0, 2, 15}, {0, 3, 0, 0, 0, 3, 30}}, {0, 0, 30});
  EXPECT_THAT(Show(plan, path), ElementsAre("idle 0 0..1", "compute 0 a 1..10",
                                            "compute 0 c 10..15", "compute 0 d 15..30"));
}

TEST(CriticalPathTest, TheMedianIsOfStepsThatAreTracedAsAWhole) {
  EnginePlanBuilder b(1);
  b.AddDevice();
  const uint32_t x = b.AddRegister(0);
  b.BeginPhase(0, "F", PhaseKind::kForward);
  b.AddKernel(0, "a", "t.iota", {}, {x});
  const planner::Plan plan = b.Build();
  std::vector<TraceEvent> events;
  std::vector<StepWindow> windows;
  const auto add = [&](int64_t step, int64_t duration, bool is_whole) {
    windows.push_back({step, 0, duration});
    events.push_back({0, 0, 0, 0, step, 0, 1});
    if (is_whole) events.push_back({0, kNone, 0, 0, step, 0, 1});
  };
  EXPECT_FALSE(MedianTracedStep(plan, events, windows).has_value());
  add(0, 1000, true);
  EXPECT_EQ(MedianTracedStep(plan, events, windows)->step, 0);
  add(1, 40, false);
  add(2, 30, true);
  add(3, 10, true);
  add(4, 20, true);
  EXPECT_EQ(MedianTracedStep(plan, events, windows)->step, 4);
}

TEST(CriticalPathTest, TracedStepsAreThoseOfWhichAllEventsAreThere) {
  EnginePlanBuilder b;
  b.AddDevice();
  const uint32_t x = b.AddRegister(0);
  b.BeginPhase(0, "F", PhaseKind::kForward);
  b.AddKernel(0, "a", "t.iota", {}, {x});
  const planner::Plan plan = b.Build();
  EXPECT_EQ(FindTracedSteps(plan, {}), std::nullopt);
  // The first event of step 4 is lost.
  std::vector<TraceEvent> events = {{0, kNone, 0, 0, 4, 0, 1}};
  EXPECT_EQ(FindTracedSteps(plan, events), std::nullopt);
  for (const int64_t step : {5, 6, 7}) {
    events.push_back({0, 0, 0, 0, step, 0, 1});
    events.push_back({0, kNone, 0, 0, step, 0, 1});
  }
  EXPECT_EQ(FindTracedSteps(plan, events), (StepRange{5, 7}));
}

// --- A real trace
// ---------------------------------------------------------------------------------

// Computes for 2 ms.
class WorkKernel : public kernels::Kernel {
 public:
  absl::Status Run(const kernels::KernelArgs&) override {
    const SteadyClock clock;
    const int64_t end_ns = clock.NowNs() + 2'000'000;
    while (clock.NowNs() < end_ns) {
    }
    return absl::OkStatus();
  }
};

TEST(CriticalPathTest, ExplainsStepsOfTwoDevices) {
  constexpr uint32_t kMicrobatches = 3;
  const planner::Plan plan = PipelinePlan(kMicrobatches, "t.work");
  kernels::KernelRegistry kernels = EngineTestKernels();
  kernels::KernelDef work;
  work.create = [](const graph::KernelSpec&, Device&,
                   Stream&) -> absl::StatusOr<std::unique_ptr<kernels::Kernel>> {
    return std::make_unique<WorkKernel>();
  };
  ASSERT_TRUE(kernels.Add("t.work", work).ok());
  SessionOptions options;
  options.kernels = &kernels;
  options.trace = true;
  const auto session = Session::Start(plan, options);
  ASSERT_TRUE(session.ok()) << session.status();
  // Threads that have no core make steps idle, and their communication long. On a busy machine that
  // is not so of all of them.
  double least_unexplained = 1;
  double least_waiting = 1;
  const SteadyClock clock;
  for (int64_t step = 0; step < 300 && (least_unexplained > 0.05 || least_waiting > 0.1); ++step) {
    const int64_t begin_ns = clock.NowNs();
    const auto result = (*session)->Run({});
    ASSERT_TRUE(result.ok()) << result.status();
    const StepWindow window = {step, begin_ns, result->end_ns};
    const std::vector<TraceEvent> events = (*session)->TakeTrace();
    ASSERT_TRUE(MedianTracedStep(plan, events, {window}).has_value());
    const CriticalPath path = FindCriticalPath(plan, events, window);
    ASSERT_EQ(Sum(path), result->end_ns - begin_ns);
    for (const DeviceTime& device : path.devices) {
      EXPECT_GE(device.compute_ns, kMicrobatches * int64_t{2'000'000});
      EXPECT_GE(device.bubble_ns, 0);
      EXPECT_LE(device.hidden_communication_ns, device.communication_ns);
    }
    // One f, then a g each micro-batch.
    const auto duration = static_cast<double>(path.duration_ns());
    EXPECT_GE(path.duration_ns(), (kMicrobatches + 1) * int64_t{2'000'000});
    least_unexplained = std::min(least_unexplained, static_cast<double>(path.idle_ns) / duration);
    least_waiting = std::min(least_waiting, 1 - static_cast<double>(path.compute_ns) / duration);
    const MeanPath mean = MeanCriticalPath(plan, events, {window}, 10);
    EXPECT_EQ(mean.num_steps, 1);
    EXPECT_DOUBLE_EQ(mean.duration_s, 1e-9 * duration);
    ASSERT_EQ(mean.device_compute_s.size(), 2u);
    EXPECT_NEAR(mean.device_compute_s[1], 1e-9 * static_cast<double>(path.devices[1].compute_ns),
                1e-12);
    EXPECT_NEAR(mean.idle_s, 1e-9 * static_cast<double>(path.idle_ns), 1e-12);
    ASSERT_EQ(mean.steps.size(), 1u);
    EXPECT_EQ(mean.steps[0].step, window.step);
    EXPECT_EQ(mean.steps[0].duration_ns, path.duration_ns());
    EXPECT_EQ(mean.steps[0].idle_ns, path.idle_ns);
    EXPECT_NEAR(mean.compute_s + mean.exposed_communication_s + mean.idle_s, mean.duration_s, 1e-9);
  }
  EXPECT_LE(least_unexplained, 0.05);
  EXPECT_LE(least_waiting, 0.1);
}

}  // namespace
}  // namespace penstock::actors
