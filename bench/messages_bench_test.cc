#include "bench/messages_bench.h"

#include "gtest/gtest.h"

namespace penstock::bench {
namespace {

TEST(MessagesBenchTest, MeasuresEachPlacement) {
  const kernels::KernelRegistry kernels = kernels::CpuKernels();
  for (const Placement placement :
       {Placement::kThreads, Placement::kProcesses, Placement::kProcessesOneCore}) {
    MessagesBenchOptions options;
    options.placement = placement;
    options.round_trips = 10;
    options.rounds = 2;
    options.kernels = &kernels;
    options.node_command = {PENSTOCK_FAULTY_NODE};
    const absl::StatusOr<double> us = MeasureMessages(options);
    ASSERT_TRUE(us.ok()) << us.status();
    EXPECT_GT(*us, 0);
  }
}

}  // namespace
}  // namespace penstock::bench
