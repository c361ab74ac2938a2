// Kernels of a job whose devices may be of several kinds.
//
// Thread rule: values and pure functions.

#ifndef PENSTOCK_KERNELS_DEVICE_KERNELS_H_
#define PENSTOCK_KERNELS_DEVICE_KERNELS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "graph/kernel_spec.h"
#include "kernels/kernel.h"

namespace penstock::kernels {

// By Device::kind().
using KernelsByKind = absl::flat_hash_map<std::string, std::shared_ptr<const KernelRegistry>>;

// What a planner may rely on where one program runs on devices of several kinds: a kernel exists if
// each kind has it, and has as much workspace as the one that needs most. REQUIRES: `kinds` is not
// empty.
graph::KernelTraits CommonTraits(std::vector<graph::KernelTraits> kinds);

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_DEVICE_KERNELS_H_
