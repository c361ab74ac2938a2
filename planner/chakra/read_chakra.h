// Chakra traces of all ranks of a job, read from a folder (chakra_files.h) and joined: which nodes
// depend on each other, and which meet.
//
// A send meets the receive of its destination that has the same source, destination and tag: the
// n-th the n-th, in the order of the files. A collective meets those of the other members of its
// group that have the same tag or, without tags, are the group's n-th on their rank.
//
// Every rank of a group that communicates needs a trace. If traces stand for the ranks that run the
// same program (ChakraMetadata), collectives meet among those that are there.
//
// Steps are numbered from 0: each of them has a node that ends it.
//
// Nothing is trusted: lengths, ids, dependencies, ranks, sizes and groups are checked. Errors name
// the file, the byte where a message begins, and the node; of messages that do not meet, the rank,
// the node, its peer and the tag.
//
// Thread rule: values, and a pure function but for the files.

#ifndef PENSTOCK_PLANNER_CHAKRA_READ_CHAKRA_H_
#define PENSTOCK_PLANNER_CHAKRA_READ_CHAKRA_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "base/collective.h"
#include "planner/chakra/chakra_node.h"
#include "planner/plan/plan.h"

namespace penstock::planner {

inline constexpr uint32_t kMaxTracedSteps = 1 << 16;

struct TracedNode {
  double seconds = 0;  // of computation
  uint64_t id = 0;     // in its file
  uint32_t name = 0;   // in ChakraTraces::names
  uint32_t num_deps = 0;
  uint32_t dependents_end = 0;  // in ChakraTraces::dependents, behind those of the node before
  uint32_t meeting = kNone;     // of communication
  uint32_t stream = 0;          // of computation, on its rank
  uint32_t step = kNone;        // below kMaxTracedSteps
  ChakraNodeType type = ChakraNodeType::kInvalid;
};

// Nodes that communicate with each other.
struct TracedMeeting {
  std::optional<CollectiveKind> kind;  // nullopt: a message, from the first member to the second
  uint32_t group = 0;                  // of a collective
  uint64_t num_bytes = 0;              // comm_size
  std::vector<uint32_t> members;       // nodes
};

struct ChakraTraces {
  uint32_t num_ranks = 0;            // of the job
  std::vector<uint32_t> ranks;       // that have traces, increasing
  std::vector<uint32_t> stands_for;  // of each trace: ranks of its program
  std::vector<uint32_t> nodes_end;   // of each trace: where its nodes end
  std::vector<TracedNode> nodes;     // of a trace in the order of its file
  std::vector<uint32_t> dependents;  // nodes
  std::vector<TracedMeeting> meetings;
  std::vector<std::vector<uint32_t>> groups;  // ranks
  std::vector<std::string> names;

  absl::Span<const uint32_t> DependentsOf(uint32_t node) const;
  uint32_t TraceOf(uint32_t node) const;  // index of its trace
  // "node 7 'h0.w' of rank 3".
  std::string Describe(uint32_t node) const;
};

absl::StatusOr<ChakraTraces> ReadChakra(const std::string& folder);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_CHAKRA_READ_CHAKRA_H_
