#include "cli/measured_latency.h"

#include <vector>

#include "gtest/gtest.h"

#include "tests/support/engine_plan.h"

namespace penstock::cli {
namespace {

using actors::TraceEvent;
using testing::EnginePlanBuilder;

// Device 0 sends to device 1, and all_reduces with device 2.
class MeasuredLatencyTest : public ::testing::Test {
 protected:
  MeasuredLatencyTest() {
    for (uint32_t device = 0; device < 3; ++device) {
      builder_.AddDevice();
      builder_.AddRegister(device);
      builder_.BeginPhase(device, "F", planner::PhaseKind::kForward);
    }
    send_ = builder_.AddSend(0, "send", 0, 1);
    receive_ = builder_.AddRecv(1, "receive", 0, builder_.last_transfer());
    const uint32_t sum =
        builder_.AddCollectiveSpec(CollectiveKind::kAllReduce, {0, 2}, {testing::kWidth, 0}, true);
    first_ = builder_.AddCollective(0, "sum", sum, 0, 0);
    second_ = builder_.AddCollective(2, "sum", sum, 0, 0);
    plan_ = builder_.Build();
  }

  void Add(uint32_t device, uint32_t actor, int64_t step, int64_t begin_ns, int64_t end_ns) {
    TraceEvent event;
    event.device = device;
    event.actor = actor;
    event.step = step;
    event.begin_ns = begin_ns;
    event.end_ns = end_ns;
    events_.push_back(event);
  }

  EnginePlanBuilder builder_;
  uint32_t send_ = 0;
  uint32_t receive_ = 0;
  uint32_t first_ = 0;
  uint32_t second_ = 0;
  planner::Plan plan_;
  std::vector<TraceEvent> events_;
};

TEST_F(MeasuredLatencyTest, IsTheLowestOfATransfer) {
  const uint64_t num_bytes = plan_.transfers[0].num_bytes;
  for (int64_t step = 0; step < 3; ++step) {
    const int64_t sent_ns = 1'000'000 * step;
    Add(0, send_, step, sent_ns, sent_ns + 300'000 - 100'000 * step);
    Add(1, receive_, step, sent_ns - 500'000, sent_ns + 400'000 - 100'000 * step);
  }
  const std::optional<double> latency = MeasuredLatency(plan_, events_, {0, 1, 1}, 1e9);
  ASSERT_TRUE(latency.has_value());
  EXPECT_NEAR(*latency, 100e-6 - static_cast<double>(num_bytes) * 1e-9, 1e-12);
}

TEST_F(MeasuredLatencyTest, OfACollectiveIsThatOfOneOfItsMessages) {
  Add(0, first_, 0, 0, 90'000);
  Add(2, second_, 0, 10'000, 100'000);
  const std::optional<double> slow = MeasuredLatency(plan_, events_, {0, 0, 1}, 1e12);
  ASSERT_TRUE(slow.has_value());
  EXPECT_GT(*slow, 10e-6);
  EXPECT_LE(*slow, 80e-6);
}

TEST_F(MeasuredLatencyTest, NeedsACommunicationBetweenProcesses) {
  Add(0, send_, 0, 0, 300'000);
  Add(1, receive_, 0, 0, 300'000);
  EXPECT_FALSE(MeasuredLatency(plan_, events_, {0, 0, 1}, 1e9).has_value());
  EXPECT_FALSE(MeasuredLatency(plan_, {}, {0, 1, 1}, 1e9).has_value());
}

// Faster than the link: the clocks of two hosts differ.
TEST_F(MeasuredLatencyTest, IsNeverNegative) {
  Add(0, send_, 0, 0, 10);
  Add(1, receive_, 0, 5, 15);
  EXPECT_EQ(MeasuredLatency(plan_, events_, {0, 1, 1}, 1e3), 0.0);
}

}  // namespace
}  // namespace penstock::cli
