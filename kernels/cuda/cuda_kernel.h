// What the kernels of a GPU share on the host: the kernel object, and how a spec's tiles and dtypes
// become the arguments of a launch.
//
// A group of kernels is a header with its launches, a *.cu file with device code, and a
// *_kernels.cc file that makes KernelDefs of them.
//
// Kernels are made on any device, so that a planner may ask without a GPU what there is; only those
// made for a stream of a CudaDevice run.
//
// Thread rule: as kernels/kernel.h.

#ifndef PENSTOCK_KERNELS_CUDA_CUDA_KERNEL_H_
#define PENSTOCK_KERNELS_CUDA_CUDA_KERNEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/kernel.h"

namespace penstock::kernels::cuda {

// Gives a run's work to the stream.
using LaunchFunction = std::function<absl::Status(const KernelArgs& args, CudaStream& stream)>;

// A kernel that launches by `launch`, which captures by value what it needs of the spec.
inline KernelOr MakeKernel(const KernelSpec& spec, Stream& stream, LaunchFunction launch) {
  class CudaKernel : public Kernel {
   public:
    CudaKernel(std::string op, CudaStream* stream, LaunchFunction launch)
        : op_(std::move(op)), stream_(stream), launch_(std::move(launch)) {}

    absl::Status Run(const KernelArgs& args) override {
      if (stream_ == nullptr) {
        return absl::FailedPreconditionError(
            StrCat("the cuda kernel for ", op_, " needs a stream of a cuda device"));
      }
      if (stream_->fault() == nullptr) return stream_->status();  // it could not be made
      return launch_(args, *stream_);
    }

   private:
    const std::string op_;
    CudaStream* const stream_;  // null: made on trial
    const LaunchFunction launch_;
  };
  return std::make_unique<CudaKernel>(spec.op, dynamic_cast<CudaStream*>(&stream),
                                      std::move(launch));
}

// The stream's batch of the type (launch_batch.h); null for a kernel made on trial.
template <typename Batch>
Batch* BatchOf(Stream& stream) {
  auto* const cuda_stream = dynamic_cast<CudaStream*>(&stream);
  return cuda_stream != nullptr ? cuda_stream->BatchOf<Batch>() : nullptr;
}

inline absl::Status Unsupported(const KernelSpec& spec, DType dtype) {
  return absl::UnimplementedError(
      StrCat("there is no cuda kernel for ", spec.op, " on ", Name(dtype),
             dtype == DType::kF64 ? "; its kernel computes in f32" : ""));
}

// f(std::type_identity<T>()) for the T of the list that holds `dtype`, or an error.
template <typename... Ts, typename F>
KernelOr WithType(TypeList<Ts...>, const KernelSpec& spec, DType dtype, F&& f) {
  KernelOr made = Unsupported(spec, dtype);
  ((dtype == DTypeOf<Ts>() && (made = f(std::type_identity<Ts>()), true)) || ...);
  return made;
}

// Floats of 16 bits are computed with in f32. Kernels that compute in the type of their operands
// otherwise take f64 as well: AllFloats, and these numbers, and what they convert.
using DeviceNumbers = TypeList<float, double, BFloat16, Float16, int32_t, int64_t>;
using DeviceNatives = TypeList<float, double, BFloat16, Float16, int32_t, int64_t, bool>;
// Kernels whose statistics, scalars or sums are f32 whatever their operands are have no f64.
using DeviceFloats = TypeList<float, BFloat16, Float16>;

// f(std::type_identity<T>()) for a kernel of DeviceFloats, T that of the main operand. Of the
// others and the results, those that the operator does not want in T, such as statistics, are f32.
template <typename F>
KernelOr WithFloat(const KernelSpec& spec, F&& f) {
  return WithType(DeviceFloats(), spec, MainDType(spec), std::forward<F>(f));
}

// f(std::type_identity<T>(), std::type_identity<R>()) for a kernel whose results are of type R: T,
// or f32 for an operand T of 16 bits.
template <typename... Ts, typename F>
KernelOr WithResultType(TypeList<Ts...> types, const KernelSpec& spec, F&& f) {
  return WithType(types, spec, MainDType(spec), [&]<typename T>(std::type_identity<T> type) {
    if constexpr (kIsHalf<T>) {
      if (spec.outputs[0].dtype == DType::kF32) return f(type, std::type_identity<float>());
    }
    return f(type, type);
  });
}

inline absl::StatusOr<Indices::Type> IndexType(const KernelSpec& spec, int input) {
  switch (spec.inputs[input].dtype) {
    case DType::kI8:
      return Indices::kI8;
    case DType::kU8:
      return Indices::kU8;
    case DType::kI32:
      return Indices::kI32;
    case DType::kI64:
      return Indices::kI64;
    default:
      return absl::UnimplementedError(StrCat("the cuda kernel for ", spec.op,
                                             " takes integers as indices, not ",
                                             Name(spec.inputs[input].dtype)));
  }
}

inline FaultSite SiteOf(const KernelArgs& args, CudaStream& stream) {
  return {stream.fault(), args.launch, stream.offsets()};
}

// Whether this run adds to its results.
inline bool AddsToResults(const KernelSpec& spec, const KernelArgs& args) {
  return spec.accumulate && args.microbatch != 0;
}

// Result i, or null where it is not wanted.
template <typename T>
T* OptionalOutput(const KernelArgs& args, size_t i) {
  return args.outputs.size() > i ? static_cast<T*>(args.outputs[i]) : nullptr;
}

// ToStatus for the launch of a kernel.
inline absl::Status Launched(const KernelSpec& spec, LaunchResult result) {
  return result == 0 ? absl::OkStatus() : ToStatus(result, StrCat("launching ", spec.op));
}

// ---- The groups: each adds its kernels.

void AddElementwiseKernels(KernelRegistry* registry);
void AddRandomKernels(KernelRegistry* registry);
void AddOptimizerKernels(KernelRegistry* registry);
void AddCopyKernels(KernelRegistry* registry);
void AddLocalKernels(KernelRegistry* registry);
void AddRowKernels(KernelRegistry* registry);
void AddReduceKernels(KernelRegistry* registry);
void AddSumSquaresKernels(KernelRegistry* registry);
void AddContractionKernels(KernelRegistry* registry);
void AddEpilogueKernels(KernelRegistry* registry);
void AddAttentionKernels(KernelRegistry* registry);
void AddImageKernels(KernelRegistry* registry);
void AddRoutingKernels(KernelRegistry* registry);

// Adds a kernel. REQUIRES: no other has its name.
void AddKernel(KernelRegistry* registry, std::string op, KernelDef def);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_CUDA_KERNEL_H_
