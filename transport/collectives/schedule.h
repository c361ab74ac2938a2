// From a collective's specification to one rank's flows: data in, data out.
//
// Algorithms:
//   direct all_reduce      every rank folds its own block straight from the peers' inputs in rank
//                          order, and sends the result to everyone; data of one small chunk every
//                          rank folds all itself, which is the same association in one step less
//   ring all_reduce        reduce_scatter and all_gather around the ring; each rank sends and
//                          receives 2 (n - 1) / n of the data (Patarasuk and Yuan, "Bandwidth
//                          optimal all-reduce algorithms for clusters of workstations", 2009)
//   ring broadcast         a chain from the root, chunk behind chunk
//   hierarchical           a block has a delegate on each host but its owner's, all blocks of an
//                          owner's position among its host's ranks the same. Terms are folded by
//                          the delegates, whose results the owner folds; what an owner has to hand
//                          out goes to the delegates, who hand it on. So a block crosses from a
//                          host to another once, and all ranks of a host share that work
//   all_to_all, permute    every message straight to its receiver, in all algorithms; of an
//                          all_to_all, empty blocks are not sent
//
// Of several tensors, each chunk is of one of them: its messages are read and written where the
// tensor lies, and follow each other as those of one long tensor do.
//
// In place (input and output the same memory) an all_reduce overwrites only what has been read:
// a rank receives the result of a block only when its own send of that block is done, and the owner
// of a block writes an element of the result when it has read all terms of it. What every rank
// folds itself waits in scratch memory until nobody reads the input any more.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_TRANSPORT_COLLECTIVES_SCHEDULE_H_
#define PENSTOCK_TRANSPORT_COLLECTIVES_SCHEDULE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "base/collective.h"
#include "transport/collectives/flow.h"

namespace penstock::transport {

// A copy within a rank.
struct LocalCopy {
  uint32_t tensor = 0;
  int64_t input_offset = 0;  // bytes
  int64_t output_offset = 0;
  int64_t num_bytes = 0;
};

struct Schedule {
  std::vector<std::unique_ptr<Flow>> flows;
  std::vector<LocalCopy> copies;  // from input to output, at the start
  int64_t scratch_bytes = 0;
  int64_t result_bytes = 0;  // of scratch, copied to the beginning of the output at the end
};

// REQUIRES: CheckCollective(spec) is OK and rank is in the group.
// `can_view`: of each rank, whether its memory can be read where it lies.
Schedule MakeSchedule(const CollectiveSpec& spec, int rank, const std::vector<bool>& can_view);

// The devices with which `rank` exchanges messages, whoever can view whose memory: ascending.
std::vector<uint32_t> PeersOf(const CollectiveSpec& spec, int rank);

bool IsReduction(const CollectiveSpec& spec);

// Whether a run's messages, a number for each chunk of a block and phase, number kMaxMessages at
// most. REQUIRES: counts of the right number, none negative, and chunks that hold an element.
bool FitsMessages(const CollectiveSpec& spec);

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_COLLECTIVES_SCHEDULE_H_
