// The kernels of small models, timed: what each operator takes beyond what the peak rates of a core
// allow.
//
// Steps of the built-in models run in several sizes, on one device and with strategies that have
// operators of their own. So operators, dtypes and shapes are those of real steps, and so is what
// caches still hold when a kernel begins: what the kernel before it made, but not large weights.
// All cores work at once, as the devices of a step do: they share caches and the memory's rate.
//
// Thread rule: one thread.

#ifndef PENSTOCK_BENCH_MODEL_KERNELS_H_
#define PENSTOCK_BENCH_MODEL_KERNELS_H_

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "planner/cluster/cluster_model.h"

namespace penstock::bench {

// `core`: the peak rates of one core. In order of name and dtype. `on_model` is told the name of
// each model before it runs, NumModelRuns() times, and may be null. REQUIRES: num_cores >= 1.
absl::StatusOr<std::vector<planner::MeasuredKernel>> MeasureModelKernels(
    const planner::DeviceKind& core, int64_t num_cores,
    const std::function<void(std::string_view name)>& on_model = nullptr);

int NumModelRuns();

}  // namespace penstock::bench

#endif  // PENSTOCK_BENCH_MODEL_KERNELS_H_
