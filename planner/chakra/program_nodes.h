// The program of a device as nodes with dependencies: what a trace of some steps holds, before it
// belongs to a rank.
//
// An instance of a phase is a node at its beginning, a node for each of its actors, and a node at
// its end, one after another. What the engine waits for (plan/plan.h) becomes dependencies:
//   tokens    in a phase: on the producer; between phases: of the beginning on the producer
//   credits   of the beginning on the consumer that returns the last one needed
//   lanes     of the beginning on the end of the instance before it
//   groups    collectives of one group in a phase: each on the one before it
// Credits are left out where the lane implies them.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_CHAKRA_PROGRAM_NODES_H_
#define PENSTOCK_PLANNER_CHAKRA_PROGRAM_NODES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "planner/plan/plan.h"

namespace penstock::planner {

struct ProgramNode {
  uint32_t phase = 0;      // of the program
  uint32_t instance = 0;   // of the phase, over all steps
  uint32_t actor = kNone;  // of the program; kNone: the beginning or end of the phase
  bool is_end = false;
  // Dependencies: those behind the previous node's, up to these.
  uint32_t data_deps_end = 0;
  uint32_t ctrl_deps_end = 0;
};

struct ProgramNodes {
  std::vector<ProgramNode> nodes;  // each after those that it depends on
  // Indices into `nodes`.
  std::vector<uint32_t> data_deps;
  std::vector<uint32_t> ctrl_deps;

  absl::Span<const uint32_t> DataDepsOf(uint32_t node) const;
  absl::Span<const uint32_t> CtrlDepsOf(uint32_t node) const;
};

// `order`: the types (policy/phase.h) of the phases of the compute lane in one step, in order;
// types that the program lacks are passed over. `group_of`: of each actor, the group whose
// collectives start in order; kNone for others. An error if the program cannot go on by itself.
absl::StatusOr<ProgramNodes> LowerProgram(const DevicePlan& program, uint32_t num_microbatches,
                                          absl::Span<const uint32_t> order,
                                          absl::Span<const uint32_t> group_of, uint32_t num_steps);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_CHAKRA_PROGRAM_NODES_H_
