// Runs a graph on one device, node by node, without planner or engine: the reference that every
// other way to run it is held against.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_TESTS_SUPPORT_INTERPRETER_H_
#define PENSTOCK_TESTS_SUPPORT_INTERPRETER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "base/device.h"
#include "base/tensor.h"
#include "graph/graph.h"
#include "kernels/kernel.h"

namespace penstock::testing {

struct InterpretOptions {
  uint64_t seed = 0;
  int64_t step = 1;
};

struct Interpretation {
  std::vector<Tensor> returns;
  std::map<std::string, Tensor> assigned;  // by the name of the state: what `assign` writes
};

// One step. `feeds` holds every input, parameter and state by name. Unsharded whatever the graph's
// shardings say; operators that only move data between devices pass their operand on.
absl::StatusOr<Interpretation> InterpretStep(const graph::Graph& graph,
                                             const kernels::KernelRegistry& kernels,
                                             const std::map<std::string, Tensor>& feeds,
                                             const InterpretOptions& options = {});

// The values returned by one step.
absl::StatusOr<std::vector<Tensor>> Interpret(const graph::Graph& graph,
                                              const kernels::KernelRegistry& kernels,
                                              const std::map<std::string, Tensor>& feeds,
                                              const InterpretOptions& options = {});

// The tile that is the whole of a tensor.
kernels::TileDesc WholeTile(const TensorType& type);

// Makes the kernel of `spec` and runs it once on tiles; returns the output tiles.
absl::StatusOr<std::vector<Tensor>> RunKernel(const kernels::KernelRegistry& kernels,
                                              Device& device, const kernels::KernelSpec& spec,
                                              absl::Span<const Tensor> inputs,
                                              const InterpretOptions& options = {});

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_INTERPRETER_H_
