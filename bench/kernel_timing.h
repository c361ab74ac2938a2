// Runs one CPU kernel on memory of its own, to be timed.
//
// Thread rule: one thread.

#ifndef PENSTOCK_BENCH_KERNEL_TIMING_H_
#define PENSTOCK_BENCH_KERNEL_TIMING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/device.h"
#include "graph/attributes.h"
#include "kernels/kernel.h"

namespace penstock::bench {

// A tile that is the whole tensor.
kernels::TileDesc WholeTile(Shape shape, DType dtype = DType::kF32);

kernels::KernelSpec MakeKernelSpec(std::string op, graph::Attributes attributes,
                                   std::vector<kernels::TileDesc> inputs,
                                   std::vector<kernels::TileDesc> outputs);

// f32 and f64 are drawn from [0, 1), i32 and i64 are 1, others 0.
class PreparedKernel {
 public:
  // On one thread. Errors: the CPU has no such kernel.
  static absl::StatusOr<PreparedKernel> Create(const kernels::KernelSpec& spec);

  absl::Status Run();
  // Of operands and results, each once.
  size_t num_bytes() const { return num_bytes_; }

 private:
  PreparedKernel() = default;

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<Memory>> memory_;
  std::vector<void*> inputs_;
  std::vector<void*> outputs_;
  void* workspace_ = nullptr;
  size_t num_bytes_ = 0;
  std::unique_ptr<kernels::Kernel> kernel_;
};

// Seconds of one run: the least mean of several batches of runs, because whatever else runs on the
// machine only adds to it.
absl::StatusOr<double> MeasureKernelSeconds(const kernels::KernelSpec& spec);

}  // namespace penstock::bench

#endif  // PENSTOCK_BENCH_KERNEL_TIMING_H_
