// What the kernels of an operator were measured to take on a kind of device, beside what the
// device's peak rates allow: the longer of flops at the peak rate of the dtype and bytes at the
// rate of the memory (Williams, Waterman & Patterson, "Roofline: an insightful visual performance
// model", 2009).
//
// Kernels of an operator that their flops hold up are measured apart from those that their bytes
// do: a product of two square matrices reaches the peak rate, one with few rows waits for memory.
//
// Example: {op = "gelu", bound = kMemory, slowdown = {{10, 3}, {1000, 4}}}: a gelu whose bytes pass
// through the memory in 10 us takes 30 us, one of 1 ms takes 4 ms, one of 100 us takes 350 us.
//
// Thread rule: values and pure functions.

#ifndef PENSTOCK_PLANNER_CLUSTER_MEASURED_KERNEL_H_
#define PENSTOCK_PLANNER_CLUSTER_MEASURED_KERNEL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

#include "base/dtype.h"

namespace penstock::planner {

// What the peak rates hold up most.
enum class RooflineBound : uint8_t { kCompute, kMemory };

std::string_view Name(RooflineBound bound);  // "compute", "memory"
// The bound of that name; nullopt: there is none.
std::optional<RooflineBound> ParseRooflineBound(std::string_view name);

// How much longer than the peak rates allow a kernel of one size takes.
struct SlowdownPoint {
  double roofline_us = 0;  // what the peak rates allow
  double factor = 1;       // measured time / roofline_us; below 1 where caches help

  friend bool operator==(const SlowdownPoint&, const SlowdownPoint&) = default;
};

// A curve of measurements for one operator.
struct MeasuredKernel {
  std::string op;                                // its name in the OpRegistry
  DType dtype = DType::kF32;                     // that it computes in
  RooflineBound bound = RooflineBound::kMemory;  // of the kernels that were measured
  std::vector<SlowdownPoint> slowdown;           // by increasing roofline_us

  friend bool operator==(const MeasuredKernel&, const MeasuredKernel&) = default;
};

inline constexpr int64_t kMaxMeasuredKernels = 1024;  // of a kind of device
inline constexpr int64_t kMaxSlowdownPoints = 64;     // of one curve
inline constexpr double kMinRooflineUs = 1e-9;        // of SlowdownPoint::roofline_us
inline constexpr double kMaxRooflineUs = 1e15;        // likewise
inline constexpr double kMinSlowdown = 1e-3;          // of SlowdownPoint::factor
inline constexpr double kMaxSlowdown = 1e9;           // likewise

// There is a point, times grow, and all is within the limits. Errors are worded to follow the name
// of what they are about.
absl::Status CheckMeasuredKernel(const MeasuredKernel& measured);

// Interpolates linearly in the logarithm of the time; constant beyond the ends.
double SlowdownAt(const MeasuredKernel& measured, double roofline_us);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_CLUSTER_MEASURED_KERNEL_H_
