#include "bench/messages_bench.h"

#include "gtest/gtest.h"

namespace penstock::bench {
namespace {

TEST(MessagesBenchTest, MeasuresEachPlacement) {
  const kernels::KernelRegistry kernels = kernels::CpuKernels();
  struct Kind {
    Placement placement;
    bool is_asleep;
  };
  for (const Kind& kind : {Kind{Placement::kThreads, false}, Kind{Placement::kProcesses, false},
                           Kind{Placement::kProcessesOneCore, false},
                           Kind{Placement::kThreads, true}, Kind{Placement::kProcesses, true}}) {
    MessagesBenchOptions options;
    options.placement = kind.placement;
    options.is_asleep = kind.is_asleep;
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
