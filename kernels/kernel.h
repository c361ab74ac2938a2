// What a device executes: a kernel is one operator at fixed local shapes on one stream of a device,
// made when a plan is loaded and run many times.
//
// On a device whose streams are asynchronous Run only gives its work to the stream. It captures the
// arguments: they change as soon as it returns. An error that it returns is one of launching; what
// goes wrong later is an error of the stream, which names KernelArgs::launch (base/device.h).
//
// Thread rule: Create and Run on the device's executor; Run may use the device's thread pool.
// Invariants: Run allocates nothing and writes only its outputs and workspace. It must give the
// same bits for the same inputs every time. A kernel holds no state that a run leaves for another,
// so several actors may share one, and several runs may wait in its stream.

#ifndef PENSTOCK_KERNELS_KERNEL_H_
#define PENSTOCK_KERNELS_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "base/device.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "graph/kernel_spec.h"

namespace penstock::kernels {

using graph::KernelSpec;
using graph::TileDesc;

// What changes from one run to the next.
struct KernelArgs {
  absl::Span<void* const> inputs;   // memory of each of KernelSpec::inputs, row-major
  absl::Span<void* const> outputs;  // likewise of KernelSpec::outputs
  void* workspace = nullptr;        // at least workspace_bytes(), 64-byte aligned
  uint64_t seed = 0;                // of the job, for random operators
  int64_t step = 0;                 // of the training, from 0, for random operators
  int64_t microbatch = 0;           // of the step, from 0; 0 for what runs once a step
  Stream* stream = nullptr;         // the one that the kernel was made for; CPU kernels ignore it
  uint64_t launch = kNoLaunch;      // names this run in an error of the stream
};

// An operator that can be run. See the top of this file.
class Kernel {
 public:
  virtual ~Kernel() = default;
  // Computes the outputs from the inputs, or has the stream do so. An error ends the step, and
  // names the actor that ran: kInvalidArgument for values that the operator refuses, such as an
  // index out of range.
  virtual absl::Status Run(const KernelArgs& args) = 0;
};

// How to make a kernel, and what it needs, before any device exists.
struct KernelDef {
  // Bytes of scratch memory for this spec. Null: none.
  std::function<size_t(const KernelSpec&, int num_threads)> workspace_bytes = nullptr;
  // A kernel for runs on `stream` of the device. An error (kUnimplemented) for dtypes the kernel
  // does not have.
  std::function<absl::StatusOr<std::unique_ptr<Kernel>>(const KernelSpec&, Device&, Stream&)>
      create = nullptr;
  // What has to be done before the first run and takes long, such as compiling code. The engine
  // calls it as it loads; a kernel made on trial goes without. Null: nothing.
  std::function<void(const KernelSpec&)> prepare = nullptr;
  // Whether output 0 may be the same memory as input i (elementwise kernels): checked by the memory
  // planner. Null: never.
  std::function<bool(const KernelSpec&, int input)> can_alias = nullptr;
  // The kernel honours KernelSpec::accumulate itself; otherwise lowering adds an accumulate node.
  bool supports_accumulate = false;
};

// Kernels by operator name for one kind of device.
class KernelRegistry {
 public:
  // Adds the kernels of an operator. kAlreadyExists: it has some.
  absl::Status Add(std::string op, KernelDef def);
  const KernelDef* Find(std::string_view op) const;  // null when unknown
  // The operators that have kernels, sorted.
  std::vector<std::string_view> Names() const;

 private:
  absl::flat_hash_map<std::string, KernelDef> defs_;
};

// What a planner asks of these kernels on devices of `num_threads`. `registry` outlives the result,
// which belongs to one thread and makes kernels on a CPU device of its own to see what they take.
graph::KernelTraits TraitsOf(const KernelRegistry& registry, int num_threads);

// Kernels of the CPU (kernels/cpu/).
KernelRegistry CpuKernels();

// Kernels that do nothing, for any operator named in `ops`: what measures the engine alone and is
// the template for a new backend (kernels/null/).
KernelRegistry NullKernels(absl::Span<const std::string_view> ops);

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_KERNEL_H_
