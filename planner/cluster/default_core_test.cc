#include "planner/cluster/default_core.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace penstock::planner {
namespace {

TEST(DefaultCoreTest, ItsFileIsRead) {
  const DeviceKind& core = DefaultCore();
  EXPECT_TRUE(CheckDeviceKind(core).ok()) << CheckDeviceKind(core);
  EXPECT_GT(core.peak_flops_per_s[static_cast<size_t>(DType::kF32)],
            core.peak_flops_per_s[static_cast<size_t>(DType::kF64)]);
}

// Operators that compute much for each byte take longer than their bytes need; those of products
// take what the peak rate allows.
TEST(DefaultCoreTest, OperatorsTakeWhatTheyWereMeasuredToTake) {
  const auto slowdown = [](std::string_view op, double us) {
    const std::vector<MeasuredKernel>& kernels = DefaultCore().kernels;
    const auto found =
        std::find_if(kernels.begin(), kernels.end(), [&](const MeasuredKernel& kernel) {
          return kernel.op == op && kernel.dtype == DType::kF32;
        });
    return found == kernels.end() ? 0 : SlowdownAt(*found, us);
  };
  EXPECT_GT(slowdown("softmax", 100), 5 * slowdown("add", 100));
  EXPECT_GT(slowdown("dropout", 100), 2 * slowdown("add", 100));
  EXPECT_NEAR(slowdown("matmul", 1e4), 1, 0.3);
}

}  // namespace
}  // namespace penstock::planner
