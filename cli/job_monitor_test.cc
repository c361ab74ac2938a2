#include "cli/job_monitor.h"

#include <cstdint>
#include <memory>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "actors/session/session.h"
#include "tests/support/engine_plan.h"

namespace penstock::cli {
namespace {

int64_t TotalNs(const DeviceTotals::Device& device) {
  return device.busy_ns + device.collective_ns + device.transfer_ns + device.nothing_ns;
}

// A look at a session that has stopped fails, as one does whose devices cannot be asked. Its
// devices may have worked meanwhile: only time in which no session is followed is known to be idle.
TEST(JobMonitorTest, TimeOfASessionThatDoesNotAnswerIsNotIdleTime) {
  const kernels::KernelRegistry kernels = testing::EngineTestKernels();
  actors::SessionOptions options;
  options.kernels = &kernels;
  const auto session = actors::Session::Start(testing::SendingPlan("t.iota"), options);
  ASSERT_TRUE(session.ok()) << session.status();
  JobMonitor monitor("a model", "pp=2", /*steps=*/1, /*steps_done=*/0);
  actors::Session* const followed = session->get();
  monitor.Follow({followed}, "training");
  const absl::StatusOr<JobMetrics> seen = monitor.LookForMetrics();
  ASSERT_TRUE(seen.ok()) << seen.status();
  ASSERT_EQ(seen->devices.size(), 2u);

  followed->Stop();
  absl::SleepFor(absl::Milliseconds(20));
  const absl::StatusOr<JobMetrics> silent = monitor.LookForMetrics();
  ASSERT_TRUE(silent.ok()) << silent.status();
  EXPECT_EQ(silent->status.session, 0u);
  ASSERT_EQ(silent->devices.size(), 2u);
  EXPECT_EQ(TotalNs(silent->devices[0]), TotalNs(seen->devices[0]));

  monitor.Follow({}, "finishing");
  const absl::StatusOr<JobMetrics> idle = monitor.LookForMetrics();
  ASSERT_TRUE(idle.ok()) << idle.status();
  ASSERT_EQ(idle->devices.size(), 2u);
  EXPECT_GE(TotalNs(idle->devices[0]), TotalNs(seen->devices[0]) + 20'000'000);
}

}  // namespace
}  // namespace penstock::cli
