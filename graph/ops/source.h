// Operators that make values out of nothing, and random ones: what their attributes say.
//
// Thread rule: as Op.

#ifndef PENSTOCK_GRAPH_OPS_SOURCE_H_
#define PENSTOCK_GRAPH_OPS_SOURCE_H_

#include <memory>
#include <string_view>

#include "graph/ops/common.h"

namespace penstock::graph::ops {

// input, parameter, state: the type stands in the statement.
struct DeclaredDef {
  std::string_view name;
  OpRole role = OpRole::kInput;
  bool has_initializer = false;  // takes init, std, stream, memory, and per_use (identity.h)
};
std::unique_ptr<const Op> MakeDeclared(DeclaredDef def);

// A tensor of draws, at `flops` an element.
std::unique_ptr<const Op> MakeRandom(std::string_view name, double flops);

// The type that the attributes `shape` (default: a scalar) and `dtype` say.
TensorType AttributeType(const Attributes& attributes, DType default_dtype);

// Sets `shape` and `dtype` where they are absent.
void AdoptType(const TensorType& declared, Attributes& attributes);

// The stream of a random operator fits 32 bits.
absl::Status CheckStream(const Attributes& attributes);

}  // namespace penstock::graph::ops

#endif  // PENSTOCK_GRAPH_OPS_SOURCE_H_
