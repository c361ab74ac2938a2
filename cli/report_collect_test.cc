#include "cli/report_collect.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/report_operators.h"
#include "cli/report_page.h"
#include "cli/report_timeline.h"
#include "gmock/gmock.h"

#include "actors/trace/critical_path.h"
#include "base/strings.h"
#include "graph/op.h"
#include "tests/support/xml_error.h"

namespace penstock::cli {
namespace {

using ::testing::IsEmpty;

constexpr int64_t kMs = 1'000'000;

graph::TileDesc Tile(Shape shape) {
  graph::TileDesc tile;
  tile.shape = shape;
  tile.global = shape;
  tile.offset = Shape(shape.size(), 0);
  tile.microbatch_stride = Shape(shape.size(), 0);
  return tile;
}

planner::ActorPlan Actor(planner::ActorKind kind, const std::string& name, uint32_t target,
                         uint32_t kernel) {
  planner::ActorPlan actor;
  actor.kind = kind;
  actor.name = name;
  actor.target = target;
  actor.kernel = kernel;
  return actor;
}

// Two stages of a device each. Both have a forward phase with products of two layers, and the first
// sends 1000 bytes to the second.
class ReportCollectTest : public ::testing::Test {
 protected:
  ReportCollectTest() {
    using planner::ActorKind;
    plan_.name = "p";
    plan_.num_microbatches = 1;
    plan_.kernels = {{"matmul", {}, {Tile({10, 20}), Tile({20, 30})}, {Tile({10, 30})}}};
    plan_.transfers = {{.source = 0, .destination = 1, .num_bytes = 1000}};
    plan_.stages = {{.devices = {0}}, {.devices = {1}}};
    plan_.devices.resize(2);
    for (uint32_t d = 0; d < 2; ++d) {
      planner::DevicePlan& device = plan_.devices[d];
      device.stage = d;
      device.arena_bytes = 1000;
      device.state_bytes = 600;
      device.channel_bytes = 300;
      device.workspace_bytes = 50;
      device.actors = {
          Actor(ActorKind::kKernel, "h0.out", planner::kNone, 0),
          Actor(ActorKind::kKernel, "h1.out", planner::kNone, 0),
          Actor(d == 0 ? ActorKind::kSend : ActorKind::kRecv, "x_7", 0, planner::kNone)};
      planner::RegisterPlan sent;
      sent.register_class = planner::RegisterClass::kChannel;
      sent.slot_bytes = 256;
      device.registers = {sent};
      // The second product reads the first; what is sent is made by it, or read by the first.
      device.channels = {{.producer = 0, .consumer = 1},
                         {.producer = d == 0 ? 1u : 2u, .consumer = d == 0 ? 2u : 0u}};
      device.channels[1].reg = 0;
      device.phases.resize(2);
      device.phases[0].name = "F";
      device.phases[0].num_actors = 2;
      device.phases[0].predicted_s = 0.002;
      device.phases[1].name = "x";
      device.phases[1].kind = planner::PhaseKind::kTransfer;
      device.phases[1].lane = planner::Lane::kFloating;
      device.phases[1].first_actor = 2;
      device.phases[1].num_actors = 1;
    }
    // Two steps of 10 ms; the second computes 1 and 3 ms on device 0, then sends for 2 ms, then
    // device 1 computes 2 and 1 ms.
    for (int64_t step = 0; step < 2; ++step) {
      const int64_t t = step * 10 * kMs;
      Add(step, 0, 0, 0, t, t + kMs);
      Add(step, 0, 1, 0, t + kMs, t + 4 * kMs);
      Add(step, 0, planner::kNone, 0, t, t + 4 * kMs);
      Add(step, 0, 2, 1, t + 4 * kMs, t + 6 * kMs);
      Add(step, 0, planner::kNone, 1, t + 4 * kMs, t + 6 * kMs);
      Add(step, 1, 2, 1, t, t + 6 * kMs);
      Add(step, 1, planner::kNone, 1, t, t + 6 * kMs);
      Add(step, 1, 0, 0, t + 6 * kMs, t + 8 * kMs);
      Add(step, 1, 1, 0, t + 8 * kMs, t + 9 * kMs);
      Add(step, 1, planner::kNone, 0, t + 6 * kMs, t + 10 * kMs);
      windows_.push_back({step, t, t + 10 * kMs});
    }
    summary_.steps = 2;
    summary_.losses = {3, 2};
    summary_.step_times_s = {0.010, 0.010};
    summary_.tokens_per_step = 100;
    summary_.final_loss = 2;
    summary_.validations = {{1, 2.5}};
    summary_.validation_loss = 2.25;
    summary_.unigram_entropy = kNoNumber;
    summary_.has_trace = true;
  }

  void Add(int64_t step, uint32_t device, uint32_t actor, uint32_t phase, int64_t begin_ns,
           int64_t end_ns) {
    events_.push_back({device, actor, phase, 0, step, begin_ns, end_ns});
  }

  Report Collect() {
    summary_.traced = actors::StepRange{0, 1};
    summary_.path = actors::FindCriticalPath(plan_, events_, windows_[1]);
    summary_.mean_path = actors::MeanCriticalPath(plan_, events_, windows_, 10);
    Report report;
    CollectReport({plan_, summary_, events_, ops_}, &report);
    return report;
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
  planner::Plan plan_;
  std::vector<actors::TraceEvent> events_;
  std::vector<actors::StepWindow> windows_;
  RunSummary summary_;
};

TEST_F(ReportCollectTest, NumbersAndCurves) {
  const Report report = Collect();
  EXPECT_EQ(report.final_loss, 2);
  EXPECT_DOUBLE_EQ(report.tokens_per_s, 10'000);
  ASSERT_EQ(report.losses.size(), 2u);
  EXPECT_EQ(report.losses[1].step, 2);
  EXPECT_EQ(report.losses[1].value, 2);
  // The one between steps, then the last.
  ASSERT_EQ(report.validation_losses.size(), 2u);
  EXPECT_EQ(report.validation_losses[0].step, 1);
  EXPECT_EQ(report.validation_losses[1].step, 2);
  EXPECT_EQ(report.validation_losses[1].value, 2.25);
  ASSERT_TRUE(report.path.has_value());
  EXPECT_EQ(report.path->step, 2);
  EXPECT_DOUBLE_EQ(report.path->compute_s + report.path->exposed_s + report.path->idle_s, 0.010);
  EXPECT_DOUBLE_EQ(report.path->exposed_s, 0.002);
  ASSERT_FALSE(report.path_acts.empty());
  EXPECT_EQ(report.path_acts[0].name, "h1.out");
  EXPECT_DOUBLE_EQ(report.path_acts[0].seconds, 0.003);
}

TEST_F(ReportCollectTest, StagesArePredictedAndMeasured) {
  const Report report = Collect();
  ASSERT_EQ(report.stages.size(), 2u);
  const ReportStage& first = report.stages[0];
  ASSERT_EQ(first.phases.size(), 2u);
  EXPECT_EQ(first.phases[0].name, "forward");
  EXPECT_DOUBLE_EQ(first.phases[0].predicted_s, 0.002);
  EXPECT_DOUBLE_EQ(first.phases[0].compute_s, 0.004);
  EXPECT_EQ(first.phases[1].name, "communication");
  EXPECT_DOUBLE_EQ(first.phases[1].transfer_s, 0.002);
  EXPECT_DOUBLE_EQ(first.total.compute_s, 0.004);
  // It computes for 3 of 4 ms; a receive that waits beside it does not count.
  EXPECT_DOUBLE_EQ(report.stages[1].phases[0].wait_s, 0.001);
  EXPECT_DOUBLE_EQ(report.stages[1].total.wait_s, 0.001);
  // The first computes 4 ms and sends for 2; the second waits 1 ms in its phase.
  const auto is_divided = [](const ReportStepParts& parts, double compute_s, double wait_s) {
    EXPECT_DOUBLE_EQ(parts.step_s, 0.010);
    EXPECT_NEAR(parts.compute_s, compute_s, 1e-12);
    EXPECT_NEAR(parts.transfer_s, 0.002, 1e-12);
    EXPECT_NEAR(parts.wait_s, wait_s, 1e-12);
    EXPECT_NEAR(parts.compute_s + parts.transfer_s + parts.wait_s + parts.outside_s, 0.010, 1e-12);
  };
  is_divided(first.parts, 0.004, 0);
  is_divided(report.stages[1].parts, 0.003, 0.001);
  double allocated = 0;
  for (const ReportMemory& part : first.allocated_memory) allocated += part.bytes;
  EXPECT_GE(allocated, 1000);
  EXPECT_THAT(first.predicted_memory, IsEmpty());
  double measured = 0;
  for (const ReportMemory& part : first.measured_memory) measured += part.bytes;
  EXPECT_EQ(measured, 600 + 256 + 50);  // one step's value at a time
  events_.clear();
  EXPECT_THAT(Collect().stages[0].measured_memory, IsEmpty());
}

TEST_F(ReportCollectTest, OperatorsHaveRates) {
  const Report report = Collect();
  // Both layers together, on each stage, and both sides of the transfer.
  ASSERT_EQ(report.operators.size(), 4u);
  const ReportOperator& slowest = report.operators[0];
  EXPECT_EQ(slowest.op, "matmul");
  EXPECT_EQ(slowest.name, "h*.out");
  EXPECT_EQ(slowest.where, "stage 0, F");
  EXPECT_EQ(slowest.calls, 2);
  EXPECT_DOUBLE_EQ(slowest.seconds, 0.004);
  EXPECT_DOUBLE_EQ(slowest.share, 4.0 / 11);
  EXPECT_DOUBLE_EQ(slowest.flops_per_s, 2 * 2 * 10 * 20 * 30 / 0.004);
  EXPECT_DOUBLE_EQ(slowest.bytes_per_s, 2 * 4 * (200 + 600 + 300) / 0.004);
  ASSERT_EQ(slowest.shapes.size(), 1u);
  EXPECT_EQ(slowest.shapes[0], "f32[10, 20], f32[20, 30] to f32[10, 30]");
  const ReportOperator& send = report.operators[2];
  EXPECT_EQ(send.name, "x_*");
  EXPECT_DOUBLE_EQ(send.bytes_per_s, 1000 / 0.002);
  EXPECT_NE(send.flops_per_s, send.flops_per_s);
}

TEST_F(ReportCollectTest, TheTimelineHasLanes) {
  const ReportTimeline timeline = Collect().timeline;
  EXPECT_EQ(timeline.step, 2);
  EXPECT_DOUBLE_EQ(timeline.span_s, 0.010);
  ASSERT_EQ(timeline.rows.size(), 2u);
  std::vector<std::string> slices;
  for (const ReportSlice& slice : timeline.slices) {
    slices.push_back(StrCat(slice.row, " ", static_cast<int>(slice.lane), " ",
                            timeline.names[slice.name], " ", 1e3 * slice.begin_s, " ",
                            1e3 * slice.end_s));
  }
  // Floating phases are not drawn; a receive is while data move.
  EXPECT_THAT(slices, ::testing::ElementsAre("0 0 F 0 4", "0 1 h0.out 0 1", "0 1 h1.out 1 4",
                                             "0 2 x_7 4 6", "1 0 F 6 10", "1 1 h0.out 6 8",
                                             "1 1 h1.out 8 9", "1 3 x_7 4 6"));
  ASSERT_FALSE(timeline.path.empty());
  EXPECT_EQ(timeline.path[0].name, "h0.out");
  EXPECT_DOUBLE_EQ(timeline.path.front().begin_s, 0);
  EXPECT_DOUBLE_EQ(timeline.path.back().end_s, 0.010);
}

TEST_F(ReportCollectTest, OnlyTheLongestKernelsAreKept) {
  // While device 1 waits for the data.
  for (size_t i = 0; i < kMaxKernelSlices + 10; ++i) {
    const int64_t t = 10 * kMs + 300 * static_cast<int64_t>(i);
    Add(1, 1, 0, 0, t, t + 50);
  }
  std::stable_sort(events_.begin(), events_.end(),
                   [](const auto& a, const auto& b) { return a.end_ns < b.end_ns; });
  const ReportTimeline timeline = Collect().timeline;
  EXPECT_EQ(timeline.omitted_kernels.count, 14);
  EXPECT_NEAR(timeline.omitted_kernels.longest_s, 50e-9, 1e-12);
  EXPECT_NEAR(timeline.omitted_kernels.total_s, 14 * 50e-9, 1e-12);
  EXPECT_LE(timeline.path.size(), kMaxPathSlices);
}

TEST_F(ReportCollectTest, OfManyDevicesEachStageHasSome) {
  plan_.devices.resize(100, plan_.devices[1]);
  plan_.stages[0].devices = {0};
  plan_.stages[1].devices.clear();
  for (uint32_t d = 1; d < 100; ++d) plan_.stages[1].devices.push_back(d);
  actors::CriticalPath path;
  path.step = windows_[1];
  const ReportTimeline timeline = MakeTimeline(plan_, events_, path);
  ASSERT_EQ(timeline.rows.size(), kMaxTimelineRows);
  EXPECT_EQ(timeline.rows[0].device, 0u);
  EXPECT_EQ(timeline.rows[1].device, 1u);
  EXPECT_EQ(timeline.num_devices, 100u);
}

TEST_F(ReportCollectTest, WithoutATraceThePageSaysWhy) {
  events_.clear();
  summary_.has_trace = false;
  Report report;
  CollectReport({plan_, summary_, events_, ops_}, &report);
  EXPECT_FALSE(report.path.has_value());
  EXPECT_EQ(report.timeline.span_s, 0);
  EXPECT_THAT(report.no_trace, ::testing::HasSubstr("Nothing was recorded"));
  const std::string page = RenderReport(report);
  EXPECT_EQ(testing::XmlError(page), "");
  EXPECT_THAT(page, ::testing::HasSubstr("Nothing was recorded"));
}

TEST_F(ReportCollectTest, APageOfWhatWasCollectedIsWellFormed) {
  Report report = Collect();
  report.title = "p";
  const std::string page = RenderReport(report);
  EXPECT_EQ(testing::XmlError(page), "");
  EXPECT_THAT(page, ::testing::HasSubstr("A step of "));
}

}  // namespace
}  // namespace penstock::cli
