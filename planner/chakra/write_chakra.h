// Writes a plan as Chakra execution traces: a file for each rank, and the communicator groups.
//
//   DIR/trace.RANK.et      metadata, then nodes (chakra_node.h)
//   DIR/comm_groups.json   {"1": [0, 1], "2": [2, 3], ...}: ranks by pg_name, as ASTRA-sim's
//                          configuration of communicator groups has them
//
// Each program of a folded plan is lowered once (program_nodes.h); the ranks that run it differ in
// their groups and peers. Nodes:
//   kernels, feeds, fetches  COMP_NODE with num_ops and tensor_size, both at least 1, because a
//                            roofline divides by them; a copy to or from the host is a
//                            MEM_STORE_NODE or MEM_LOAD_NODE
//   collectives              COMM_COLL_NODE; comm_size is what a rank brings, of the rank that
//                            brings most; comm_tag tells collectives of a group apart
//   permutes                 a COMM_SEND_NODE, a COMM_RECV_NODE, and a METADATA_NODE after both
//   sends and receives       COMM_SEND_NODE and COMM_RECV_NODE; two ranks use each tag once
//   begin, end of a phase    METADATA_NODE of no duration; with is_cpu_op, so that it does not
//                            wait for the rank's device
//
// Durations of computation are those of kernel_seconds.h on the rank's device, in nanoseconds, and
// in whole microseconds that are rounded so that the sum over a stream is right at each node.
//
// Thread rule: a pure function but for the files.

#ifndef PENSTOCK_PLANNER_CHAKRA_WRITE_CHAKRA_H_
#define PENSTOCK_PLANNER_CHAKRA_WRITE_CHAKRA_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "graph/op.h"
#include "planner/plan/folded_plan.h"
#include "planner/search/machine.h"

namespace penstock::planner {

struct ChakraOptions {
  // Whose traces are written; empty: all. With `one_of_each_program`, the first rank of each
  // program and those with which it exchanges messages, such as the other members of a ring, which
  // then stand for all that run their programs.
  std::vector<uint32_t> ranks;
  bool one_of_each_program = false;
  uint32_t num_steps = 1;
};

struct ChakraFiles {
  uint64_t num_traces = 0;
  uint64_t num_groups = 0;
  uint64_t num_nodes = 0;
  uint64_t num_bytes = 0;
};

// Into a folder that exists; traces that are there are replaced, and those of other ranks removed.
// `stage_orders`: as in Simulation. Errors name the file, or the rank that the plan lacks.
// REQUIRES: the plan verifies; the machine has a device for each of the plan's.
absl::StatusOr<ChakraFiles> WriteChakra(const FoldedPlan& plan,
                                        const std::vector<std::vector<uint32_t>>& stage_orders,
                                        const graph::OpRegistry& ops, const Machine& machine,
                                        const ChakraOptions& options, const std::string& folder);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_CHAKRA_WRITE_CHAKRA_H_
