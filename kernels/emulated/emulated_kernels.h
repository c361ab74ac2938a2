// Kernels of the CPU on an emulated device (base/emulated_device.h): a run captures its arguments,
// waits in its stream and is then done by the kernel of the CPU, as a GPU's would be.
//
// Thread rule: as kernel.h; the wrapped kernels run where the device runs its work.

#ifndef PENSTOCK_KERNELS_EMULATED_EMULATED_KERNELS_H_
#define PENSTOCK_KERNELS_EMULATED_EMULATED_KERNELS_H_

#include "kernels/kernel.h"

namespace penstock::kernels {

// `registry` with every kernel wrapped. Its kernels are made on emulated devices only, so a planner
// takes the traits of `registry` itself (TraitsOf).
KernelRegistry EmulatedKernels(const KernelRegistry& registry);

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_EMULATED_EMULATED_KERNELS_H_
