// Kernels for floats of 16 bits out of those for f32: operands are converted to f32 in the
// workspace, and results are rounded from there. Sums are f32 inside a run, whatever the kernel.
//
// Thread rule: as kernel.h.

#ifndef PENSTOCK_KERNELS_CPU_CONVERTING_H_
#define PENSTOCK_KERNELS_CPU_CONVERTING_H_

#include <memory>

#include "base/device.h"
#include "kernels/kernel.h"

namespace penstock::kernels {

// A CPU device and stream on which definitions are tried.
struct TrialDevice {
  std::shared_ptr<Device> device;
  std::shared_ptr<Stream> stream;
};
TrialDevice MakeTrialDevice();

// The definition with kernels for operands and results of 16 bits where it has none itself: where
// its `create` refuses the spec on the trial device, but not the spec in f32.
KernelDef WithConversions(KernelDef def, const TrialDevice& trial);

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_CONVERTING_H_
