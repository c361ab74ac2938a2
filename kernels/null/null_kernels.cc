// Kernels that do nothing: they measure the engine alone and are the template for a new backend. A
// backend is a folder with one function that returns a registry; see kernels/cpu/cpu_kernels.cc for
// one with a file an operator.

#include <memory>
#include <string>

#include "kernels/kernel.h"

namespace penstock::kernels {
namespace {

class NullKernel : public Kernel {
 public:
  absl::Status Run(const KernelArgs&) override { return absl::OkStatus(); }
};

absl::StatusOr<std::unique_ptr<Kernel>> CreateNull(const KernelSpec&, Device&, Stream&) {
  return std::make_unique<NullKernel>();
}

}  // namespace

KernelRegistry NullKernels(absl::Span<const std::string_view> ops) {
  KernelRegistry registry;
  for (std::string_view op : ops) {
    // A name given twice needs one kernel only.
    registry.Add(std::string(op), {.create = CreateNull, .supports_accumulate = true})
        .IgnoreError();
  }
  return registry;
}

}  // namespace penstock::kernels
