// The processors of this machine that the process may use, and how threads are placed on them.
//
// A processor is what the system schedules on: a core, or one of a core's hardware threads.
//
// Example: two NUMA nodes of two cores with two hardware threads each, seven of the eight
// processors allowed. Distributed to two devices, the first gets both cores of the first node, that
// is four processors, and the second the three of the other node.
//
// Thread rule: values; Load is slow (milliseconds) and thread-safe.

#ifndef PENSTOCK_BASE_CPU_TOPOLOGY_H_
#define PENSTOCK_BASE_CPU_TOPOLOGY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock {

// The processors that may be used, and which of them share a core.
class CpuTopology {
 public:
  // Of this machine: the processors in the calling thread's affinity mask. Where hwloc cannot tell
  // how they share cores, each is taken for a core.
  static CpuTopology Load();
  // Of a machine in hwloc's notation ("numa:2 core:4 pu:2"), of which the processors `allowed` (all
  // where it is empty) may be used.
  static absl::StatusOr<CpuTopology> FromDescription(const std::string& description,
                                                     const std::vector<int>& allowed = {});

  // Processors by core. Cores that share caches and memory are next to each other.
  const std::vector<std::vector<int>>& cores() const { return cores_; }
  // Of all cores together.
  int num_processors() const;

  // Keeps `count` processors, as many cores as possible: a core's further hardware threads go
  // first, then the last cores. All are kept where `count` is 0 or more than there are.
  void Limit(int count);

  // Which processes or devices share a processor if there are more of them than processors.
  enum class Sharing : uint8_t {
    kNeighbours,  // for those that exchange messages
    kRoundRobin,  // for neighbours that compute at the same time
  };
  // Processors for `count` processes or devices, in contiguous blocks of whole cores. Where there
  // are fewer cores, hardware threads are distributed. Empty sets if there are no processors.
  std::vector<std::vector<int>> Distribute(int count, Sharing sharing = Sharing::kNeighbours) const;

 private:
  explicit CpuTopology(std::vector<std::vector<int>> cores) : cores_(std::move(cores)) {}

  std::vector<std::vector<int>> cores_;  // none is empty
};

// Confines the calling thread, and those that it starts from here on, to `processors`.
// REQUIRES: not empty.
absl::Status PinThisThread(const std::vector<int>& processors);

}  // namespace penstock

#endif  // PENSTOCK_BASE_CPU_TOPOLOGY_H_
