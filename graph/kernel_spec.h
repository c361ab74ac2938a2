// What a kernel is asked to compute, as data: one operator on tiles of fixed shape. Written by the
// planner into plans, read by kernels/; both speak of it with these types.
//
// Thread rule: values.

#ifndef PENSTOCK_GRAPH_KERNEL_SPEC_H_
#define PENSTOCK_GRAPH_KERNEL_SPEC_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

#include "base/dtype.h"
#include "base/shape.h"
#include "graph/attributes.h"

namespace penstock::graph {

// One operand or result as a device holds it: contiguous, row-major, of `shape`. It is the tile
// that starts at `offset` + microbatch * `microbatch_stride` (a dimension each) of the tensor
// `global`. Unsharded: shape == global and offset 0.
struct TileDesc {
  DType dtype = DType::kF32;  // of the elements
  Shape shape;                // of the tile, in elements
  Shape global;               // shape of the whole tensor; empty: that of the tile
  Shape offset;               // of micro-batch 0, in elements of `global`; empty: zero
  Shape microbatch_stride;    // likewise, what each micro-batch adds
  bool is_bound = true;       // false: an optional result that nobody reads; its pointer is null

  // Of the tile.
  int64_t num_elements() const { return NumElements(shape); }
  // Of the tile, without padding.
  size_t num_bytes() const { return static_cast<size_t>(num_elements()) * ByteSize(dtype); }
  friend bool operator==(const TileDesc&, const TileDesc&) = default;
};

// One operator on tiles. It has all that the choice of a kernel depends on.
struct KernelSpec {
  std::string op;                 // name in the OpRegistry, such as "matmul"
  Attributes attributes;          // of the node, checked by its operator
  std::vector<TileDesc> inputs;   // operands, in the operator's order
  std::vector<TileDesc> outputs;  // results, likewise
  // Every output holds a running sum: add to it instead of overwriting it, except in micro-batch
  // 0, which overwrites. Set for outputs that are partial over a temporal axis.
  bool accumulate = false;
  friend bool operator==(const KernelSpec&, const KernelSpec&) = default;
};

// What the planner must know of a device's kernels, without knowing the kernels.
struct KernelTraits {
  // OK, or why no kernel runs the spec.
  std::function<absl::Status(const KernelSpec&)> check_kernel;
  // Bytes of scratch memory that the kernel of a spec needs.
  std::function<size_t(const KernelSpec&)> workspace_bytes;
  // Whether output 0 may be the same memory as input i.
  std::function<bool(const KernelSpec&, int input)> can_alias;
  // Whether the kernel honours KernelSpec::accumulate itself.
  std::function<bool(std::string_view op)> supports_accumulate;
};

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_KERNEL_SPEC_H_
