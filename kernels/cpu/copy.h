// The kernel that copies its operand's elements in order: copy and reshape.
//
// Thread rule: as kernel.h.

#ifndef PENSTOCK_KERNELS_CPU_COPY_H_
#define PENSTOCK_KERNELS_CPU_COPY_H_

#include "base/thread_pool.h"
#include "kernels/kernel.h"

namespace penstock::kernels {

// Nothing when source and target are the same memory.
void CopyBytes(ThreadPool& pool, const void* source, void* target, size_t num_bytes);

// Output 0 may be the operand's memory.
KernelDef CopyDef();

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_COPY_H_
