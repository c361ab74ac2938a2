#include "bench/actors_bench.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "actors/session/session.h"
#include "actors/trace/trace.h"
#include "bench/count_allocations.h"

namespace penstock::bench {
namespace {

class ActorsBench : public ::testing::TestWithParam<ActsShape> {
 protected:
  static ActsBenchResult Measure(uint32_t num_actors, uint32_t num_transfers = 4) {
    ActsBenchOptions options;
    options.shape = GetParam();
    options.num_actors = num_actors;
    options.num_transfers = num_transfers;
    options.seconds = 0;
    options.count_allocations = NumAllocations;
    const absl::StatusOr<ActsBenchResult> result = MeasureActs(options);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : ActsBenchResult();
  }

  // The fewest of several steps: threads that happen to wake each other once more send a message.
  static double MeasureAllocations(uint32_t num_actors, uint32_t num_transfers = 4) {
    double fewest = Measure(num_actors, num_transfers).allocations_per_step;
    for (int i = 0; i < 4; ++i) {
      fewest = std::min(fewest, Measure(num_actors, num_transfers).allocations_per_step);
    }
    return fewest;
  }
};

TEST_P(ActorsBench, Measures) {
  const ActsBenchResult result = Measure(1000);
  EXPECT_GE(result.acts_per_step, 1000);
  EXPECT_GT(result.ns_per_act, 1);  // or acts are not fired one by one, but as a graph
  EXPECT_GT(result.step_us * 1e3, result.ns_per_act);
  EXPECT_EQ(result.communication_us > 0, GetParam() == ActsShape::kCommunication);
}

// What a step takes from the heap (feeds, its report) does not depend on how many actors act in it,
// nor on how many of them communicate.
TEST_P(ActorsBench, AnActAllocatesNothing) {
  if (!CountsAllocations()) GTEST_SKIP() << "the sanitizer owns operator new";
  const double few = MeasureAllocations(100);
  EXPECT_GT(few, 0);
  EXPECT_LT(few, 100);
  EXPECT_NEAR(MeasureAllocations(20000), few, 2);
  if (GetParam() == ActsShape::kCommunication) {
    EXPECT_NEAR(MeasureAllocations(100, 8), few, 2);
  }
}

// The measurement is of acts beside which communication arrives, not of communication after them.
TEST(ActsPlan, CommunicationArrivesWhileActsRun) {
  ActsBenchOptions options;
  options.shape = ActsShape::kCommunication;
  options.num_actors = 20'000;
  const kernels::KernelRegistry kernels = ActsKernels();
  actors::SessionOptions session_options;
  session_options.kernels = &kernels;
  session_options.trace = true;
  const auto session = actors::Session::Start(ActsPlan(options), session_options);
  ASSERT_TRUE(session.ok()) << session.status();
  const planner::DevicePlan& device = (*session)->plan().devices[0];
  // Kernels of a step that begin after the last receive or all_reduce has ended.
  const auto count_kernels_after = [&]() -> int64_t {
    int64_t ended_ns = 0;
    EXPECT_TRUE((*session)->Run({}).ok());
    const std::vector<actors::TraceEvent> events = (*session)->TakeTrace();
    const auto kind = [&](const actors::TraceEvent& event) {
      return device.actors[event.actor].kind;
    };
    const auto is_act = [](const actors::TraceEvent& event) {
      return event.device == 0 && event.actor != planner::kNone;
    };
    for (const actors::TraceEvent& event : events) {
      if (is_act(event) && (kind(event) == planner::ActorKind::kRecv ||
                            kind(event) == planner::ActorKind::kCollective)) {
        ended_ns = std::max(ended_ns, event.end_ns);
      }
    }
    return std::count_if(events.begin(), events.end(), [&](const actors::TraceEvent& event) {
      return is_act(event) && kind(event) == planner::ActorKind::kKernel &&
             event.begin_ns >= ended_ns;
    });
  };
  // In one of these steps at least, as other programs may hold up the other device.
  constexpr int kSteps = 200;
  int64_t most = 0;
  for (int step = 0; step < kSteps && most < 100; ++step) {
    most = std::max(most, count_kernels_after());
  }
  EXPECT_GE(most, 100);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ActorsBench, ::testing::ValuesIn(kActsShapes),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST(WakeLatency, IsMeasured) {
  const absl::StatusOr<WakeLatency> latency = MeasureWakeLatency(10);
  ASSERT_TRUE(latency.ok()) << latency.status();
  for (const Latency& measured : {latency->polling, latency->sleeping}) {
    EXPECT_GT(measured.fastest_us, 0);
    EXPECT_GE(measured.median_us, measured.fastest_us);
  }
}

TEST(CountAllocations, CountsNew) {
  if (!CountsAllocations()) GTEST_SKIP() << "the sanitizer owns operator new";
  const uint64_t before = NumAllocations();
  for (int i = 0; i < 5; ++i) delete ::new int(i);
  ::operator delete (::operator new (64, std::align_val_t{64}), std::align_val_t{64});
  EXPECT_GE(NumAllocations() - before, 1u);
}

}  // namespace
}  // namespace penstock::bench
