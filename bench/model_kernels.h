// The kernels of small models, timed: what each operator takes beyond what the peak rates of a core
// allow.
//
// Steps of the built-in models are planned in several sizes, for one device and with strategies
// that have operators of their own, and their kernels are run by themselves. So the operators,
// their dtypes and the shapes of their tensors are those of real steps.
//
// Thread rule: one thread.

#ifndef PENSTOCK_BENCH_MODEL_KERNELS_H_
#define PENSTOCK_BENCH_MODEL_KERNELS_H_

#include <vector>

#include "absl/status/statusor.h"

#include "planner/cluster/cluster_model.h"

namespace penstock::bench {

// `core`: the peak rates of one core. In order of name and dtype.
absl::StatusOr<std::vector<planner::MeasuredKernel>> MeasureModelKernels(
    const planner::DeviceKind& core);

}  // namespace penstock::bench

#endif  // PENSTOCK_BENCH_MODEL_KERNELS_H_
