// On the emulated device: the times are those of a CPU, but work runs later, and the memory cannot
// be touched, as on a GPU.

#include "bench/gpu_profile.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "gtest/gtest.h"

#include "base/emulated_device.h"
#include "kernels/emulated/emulated_kernels.h"
#include "planner/cluster/cluster_file.h"

namespace penstock::bench {
namespace {

GpuProfileOptions ShortOptions() {
  GpuProfileOptions options;
  options.product_sizes = {8, 64};
  options.sum_elements = int64_t{1} << 16;
  options.copy_bytes = int64_t{1} << 16;
  options.least_ns = 1'000'000;
  return options;
}

bool LargerProductsAreFaster(const planner::DeviceKind& kind) {
  for (size_t i = 1; i < kind.efficiency.size(); ++i) {
    if (kind.efficiency[i - 1].fraction >= kind.efficiency[i].fraction) return false;
  }
  for (const planner::MeasuredKernel& kernel : kind.kernels) {
    for (size_t i = 1; i < kernel.slowdown.size(); ++i) {
      if (kernel.slowdown[i - 1].factor <= kernel.slowdown[i].factor) return false;
    }
  }
  return true;
}

TEST(GpuProfileTest, MeasuresADeviceThatRunsItsWorkLater) {
  const kernels::KernelRegistry kernels = kernels::EmulatedKernels(kernels::CpuKernels());
  const std::unique_ptr<Device> device = EmulatedDevice::Create({.has_thread = true, .seed = 1});
  absl::StatusOr<planner::DeviceKind> kind = MeasureDeviceKind(*device, kernels, ShortOptions());
  // Another process that takes the core falsifies times as short as these, so measure again then.
  constexpr int kMaxRepeats = 10;
  for (int i = 0; i < kMaxRepeats && kind.ok() && !LargerProductsAreFaster(*kind); ++i) {
    kind = MeasureDeviceKind(*device, kernels, ShortOptions());
  }
  ASSERT_TRUE(kind.ok()) << kind.status();
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    EXPECT_GT(kind->peak_flops_per_s[static_cast<size_t>(dtype)], 1e6) << Name(dtype);
  }
  ASSERT_EQ(kind->efficiency.size(), 2u);
  EXPECT_EQ(kind->efficiency[0].flops, 2.0 * 8 * 8 * 8);
  EXPECT_LT(kind->efficiency[0].fraction, kind->efficiency[1].fraction);
  EXPECT_EQ(kind->efficiency[1].fraction, 1);
  // Each other type has a curve of its own, which gives back what was measured.
  for (const DType dtype : {DType::kF64, DType::kBF16, DType::kF16}) {
    for (const std::string_view op : {"matmul", "einsum_bias_gelu"}) {
      const auto found = std::find_if(
          kind->kernels.begin(), kind->kernels.end(),
          [&](const auto& kernel) { return kernel.op == op && kernel.dtype == dtype; });
      ASSERT_NE(found, kind->kernels.end()) << op << " " << Name(dtype);
      ASSERT_EQ(found->slowdown.size(), 2u);
      EXPECT_GT(found->slowdown[0].factor, found->slowdown[1].factor);
    }
  }
  EXPECT_GT(kind->memory_bytes_per_s, 1e6);
  EXPECT_GT(kind->host_link_bytes_per_s, 1e6);
  EXPECT_GT(kind->launch_s, 1e-9);
  EXPECT_LT(kind->launch_s, 1e-2);

  // As a description that plans are made for.
  kind->name = "emulated";
  kind->memory_bytes = 1 << 30;
  planner::ClusterSpec spec;
  spec.name = "one";
  spec.kinds.push_back(*std::move(kind));
  const auto cluster = planner::Cluster::Create(std::move(spec));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const auto again = planner::ParseCluster(planner::FormatCluster(*cluster), "gpu.toml");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->spec(), cluster->spec());
}

// As GPUs have none for f64.
TEST(GpuProfileTest, ATypeWithoutProductsHasNoRate) {
  kernels::KernelRegistry kernels;
  const kernels::KernelRegistry all = kernels::EmulatedKernels(kernels::CpuKernels());
  for (const std::string_view name : all.Names()) {
    kernels::KernelDef def = *all.Find(name);
    def.create = [create = def.create](
                     const kernels::KernelSpec& spec, Device& device,
                     Stream& stream) -> absl::StatusOr<std::unique_ptr<kernels::Kernel>> {
      if (spec.inputs[0].dtype == DType::kF64) return absl::UnimplementedError("not in f64");
      return create(spec, device, stream);
    };
    ASSERT_EQ(kernels.Add(std::string(name), std::move(def)), absl::OkStatus());
  }
  const std::unique_ptr<Device> device = EmulatedDevice::Create({.has_thread = true, .seed = 1});
  const auto kind = MeasureDeviceKind(*device, kernels, ShortOptions());
  ASSERT_TRUE(kind.ok()) << kind.status();
  EXPECT_EQ(kind->peak_flops_per_s[static_cast<size_t>(DType::kF64)], 0);
  EXPECT_GT(kind->peak_flops_per_s[static_cast<size_t>(DType::kBF16)], 0);
}

TEST(GpuProfileTest, AnErrorOfTheDeviceIsReturned) {
  const std::unique_ptr<Device> device = EmulatedDevice::Create({.has_thread = true, .seed = 1});
  GpuProfileOptions options = ShortOptions();
  options.copy_bytes = int64_t{1} << 50;
  const kernels::KernelRegistry kernels = kernels::EmulatedKernels(kernels::CpuKernels());
  EXPECT_EQ(MeasureDeviceKind(*device, kernels, options).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace penstock::bench
