#include "kernels/cpu/copy.h"

#include "base/copy_bytes.h"
#include "kernels/cpu/cpu_kernel.h"

namespace penstock::kernels {
namespace {

class Copy : public CpuKernel {
 public:
  using CpuKernel::CpuKernel;

  absl::Status Run(const KernelArgs& args) override {
    CopyBytes(pool_, args.inputs[0], args.outputs[0], spec_.outputs[0].num_bytes());
    return absl::OkStatus();
  }
};

KernelOr CreateCopy(const KernelSpec& spec, Device& device, Stream&) {
  RETURN_IF_ERROR(CheckDevice(spec, device));
  return std::make_unique<Copy>(spec, device);
}

bool CanAliasCopy(const KernelSpec& spec, int input) {
  return spec.inputs[input].num_bytes() == spec.outputs[0].num_bytes();
}

}  // namespace

void CopyBytes(ThreadPool& pool, const void* source, void* target, size_t num_bytes) {
  if (source == target) return;
  const auto* from = static_cast<const std::byte*>(source);
  auto* to = static_cast<std::byte*>(target);
  pool.ParallelFor(static_cast<int64_t>(num_bytes), kGrain * sizeof(float),
                   [&](int64_t begin, int64_t end, int) {
                     penstock::CopyBytes(to + begin, from + begin,
                                         static_cast<size_t>(end - begin));
                   });
}

KernelDef CopyDef() { return {.create = CreateCopy, .can_alias = CanAliasCopy}; }

KernelDef CopyKernel() { return CopyDef(); }

}  // namespace penstock::kernels
