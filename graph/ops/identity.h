// The family of operators whose result is their operand, laid out or stored in another way. What
// redistributes parameters may have the attribute `per_use`: it runs in each phase that reads its
// result, once a micro-batch, and the result is not kept longer. A parameter that has it is
// gathered so where its readers need it less split than it is kept.
//
// Thread rule: as Op.

#ifndef PENSTOCK_GRAPH_OPS_IDENTITY_H_
#define PENSTOCK_GRAPH_OPS_IDENTITY_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "graph/ops/common.h"

namespace penstock::graph::ops {

// What an execution reads and writes.
enum class IdentityWork : uint8_t {
  kMove,       // the operand, into the result
  kTakePart,   // the part of the operand that the result holds
  kPlacePart,  // the operand, into its place in a larger result
  kFold,       // the operand, folded into the result that is there
};

struct IdentityDef {
  std::string_view name;
  OpRole role = OpRole::kCompute;
  IdentityWork work = IdentityWork::kMove;
  bool is_differentiable = false;  // those that a user's graph may hold
  std::vector<AttrSpec> attributes = {};
};
std::unique_ptr<const Op> MakeIdentity(IdentityDef def);

}  // namespace penstock::graph::ops

#endif  // PENSTOCK_GRAPH_OPS_IDENTITY_H_
