#include "bench/profile.h"

#include <algorithm>
#include <string_view>

#include "gtest/gtest.h"

#include "planner/cluster/cluster_file.h"

namespace penstock::bench {
namespace {

TEST(ProfileTest, AMeasuredMachineIsADescriptionOfACluster) {
  int num_parts = 0;  // that were told
  int num_all = 0;
  const absl::StatusOr<planner::Cluster> cluster =
      MeasureMachine({.num_devices = 4,
                      .num_cores = 2,
                      .num_attempts = 2,
                      .on_progress = [&](int done, int all, std::string_view next) {
                        EXPECT_EQ(done, num_parts++);
                        EXPECT_FALSE(next.empty());
                        num_all = all;
                      }});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(num_parts, num_all);
  EXPECT_GT(num_parts, 20);
  EXPECT_EQ(cluster->num_devices(), 4);
  const planner::ClusterSpec& spec = cluster->spec();
  EXPECT_EQ(spec.devices_at_once, 2);
  const planner::DeviceKind& core = spec.kinds[0];
  // Any core of this century, and none of the next.
  EXPECT_GT(core.peak_flops_per_s[static_cast<size_t>(DType::kF32)], 1e8);
  EXPECT_LT(core.peak_flops_per_s[static_cast<size_t>(DType::kF32)], 1e14);
  EXPECT_GT(core.memory_bytes_per_s, 1e7);
  EXPECT_LT(core.memory_bytes_per_s, 1e13);
  EXPECT_GT(spec.levels[0].bytes_per_s, 1e6);
  EXPECT_GT(spec.levels[0].latency_s, 1e-9);
  EXPECT_LT(spec.levels[0].latency_s, 1e-1);
  // Small products are less efficient than the best.
  EXPECT_LT(core.efficiency.front().fraction, 0.9);

  // Each operator of the models, in some sizes: a product is no faster than the peak allows.
  EXPECT_GT(core.kernels.size(), 30u);
  // In bf16 and f16 as well, which have peaks of their own.
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(Name(dtype));
    EXPECT_GT(core.peak_flops_per_s[static_cast<size_t>(dtype)], 1e8);
    for (const char* op : {"matmul", "layer_norm_grad", "bias_gelu"}) {
      const auto measured = std::find_if(core.kernels.begin(), core.kernels.end(),
                                         [&](const planner::MeasuredKernel& kernel) {
                                           return kernel.op == op && kernel.dtype == dtype;
                                         });
      ASSERT_NE(measured, core.kernels.end()) << op;
      EXPECT_GT(measured->slowdown.size(), 3u) << op;
      if (measured->op == "matmul") {
        EXPECT_GT(measured->slowdown.back().factor, 0.5);
      }
    }
  }

  // Every kind between two processes and between four, each size by some variant.
  ASSERT_EQ(spec.collectives.size(), 8u);
  int num_growing = 0;
  for (const planner::MeasuredCollective& measured : spec.collectives) {
    for (const planner::CollectiveTimes& times : measured.times) {
      EXPECT_GT(times.us[0], 0.1);
      EXPECT_LT(times.us[0], 1e8);
    }
    num_growing += static_cast<int>(measured.times.back().us[0] > measured.times.front().us[0]);
  }
  EXPECT_GE(num_growing, 6) << "more bytes take longer, unless other programs took the cores";

  const absl::StatusOr<planner::Cluster> again =
      planner::ParseCluster(planner::FormatCluster(*cluster), "profile.toml");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->spec(), spec);
}

}  // namespace
}  // namespace penstock::bench
