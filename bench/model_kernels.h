// The kernels of small models, timed: what each operator takes beyond what the peak rates of a core
// allow.
//
// Steps of the built-in models run in several sizes, on one device and with strategies that have
// operators of their own. So operators, dtypes and shapes are those of real steps, and so is what
// caches still hold when a kernel begins: what the kernel before it made, but not large weights.
// All cores work at once, as the devices of a step do: they share caches and the memory's rate.
//
// Other programs and virtual machines slow a machine down for seconds. So Measure may run several
// times; of each kernel the fastest run counts.
//
// Thread rule: one thread.

#ifndef PENSTOCK_BENCH_MODEL_KERNELS_H_
#define PENSTOCK_BENCH_MODEL_KERNELS_H_

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

#include "planner/cluster/cluster_model.h"
#include "planner/cluster/measured_kernel.h"
#include "planner/plan/plan.h"

namespace penstock::bench {

class ModelKernels {
 public:
  // Runs all models once more. `on_model` is told the name of each before it runs, NumModelRuns()
  // times, and may be null. REQUIRES: num_cores >= 1, the same every time.
  absl::Status Measure(int64_t num_cores,
                       const std::function<void(std::string_view name)>& on_model = nullptr);

  // Measured time over the roofline of `core`, which has the peak rates of one core. In order of
  // name and dtype. REQUIRES: Measure has run.
  std::vector<planner::MeasuredKernel> SlowdownsOn(const planner::DeviceKind& core) const;

 private:
  struct ModelRun {
    planner::Plan plan;
    std::vector<std::vector<double>> seconds;  // of each device, of each actor: the least
  };

  std::vector<ModelRun> runs_;
};

int NumModelRuns();  // of Measure

}  // namespace penstock::bench

#endif  // PENSTOCK_BENCH_MODEL_KERNELS_H_
