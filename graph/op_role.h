// What an operator is to the passes over a graph, beside what it computes. Most operators are
// kCompute, those of applications always.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_GRAPH_OP_ROLE_H_
#define PENSTOCK_GRAPH_OP_ROLE_H_

#include <cstdint>

namespace penstock::graph {

// What passes take an operator for. The order matters: IsCollective compares.
enum class OpRole : uint8_t {
  kCompute,
  kAdd,  // the sum of two terms
  // Made from nothing but attributes, the same wherever they are made.
  kConstant,
  // Declared.
  kInput,      // fed each step
  kParameter,  // trained
  kState,      // outlives a step, like a parameter
  // Its first operand, declared, holds its second from the next step on.
  kAssign,
  // The same elements in other shapes or places.
  kReshape,
  kRoll,
  // What planning replaces by the operators below.
  kReshard,
  kReceive,  // from another mesh
  // Within a device.
  kLocalSlice,
  kAccumulate,          // over micro-batches
  kGatherMicrobatches,  // likewise
  kJoinSubBatches,      // its operands, side by side
  kToHost,
  kToDevice,
  // Between devices.
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kPermute,
  kHaloExchange,
};

// Its node declares a value that stays from one step to the next.
constexpr bool HoldsState(OpRole role) {
  return role == OpRole::kParameter || role == OpRole::kState;
}

// Has no operands that a device would have to compute or hold first.
constexpr bool IsLeaf(OpRole role) { return role == OpRole::kInput || role == OpRole::kConstant; }

// Copies between the memories of a device and its host.
constexpr bool IsHostCopy(OpRole role) {
  return role == OpRole::kToHost || role == OpRole::kToDevice;
}

// Its result is complete once all micro-batches have contributed.
constexpr bool FormsWhole(OpRole role) {
  return role == OpRole::kAccumulate || role == OpRole::kGatherMicrobatches;
}

// Devices exchange data in it.
constexpr bool IsCollective(OpRole role) { return role >= OpRole::kAllReduce; }

// Its result is its operand, laid out in another way.
constexpr bool IsRedistribution(OpRole role) {
  return role == OpRole::kReshard || role == OpRole::kLocalSlice || FormsWhole(role) ||
         IsCollective(role);
}

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_OP_ROLE_H_
