// Which devices of a plan a process runs.

#ifndef PENSTOCK_ACTORS_CLUSTER_DEVICE_RANGE_H_
#define PENSTOCK_ACTORS_CLUSTER_DEVICE_RANGE_H_

#include <cstdint>
#include <numeric>
#include <vector>

#include "base/blocks.h"

namespace penstock::actors {

struct DeviceRange {
  uint32_t first = 0;
  uint32_t count = 0;
  bool Has(uint32_t device) const { return device - first < count; }
};

// The devices of a process: contiguous blocks, in the order of ranks. `counts` are those of each
// process; where they are not of so many processes and devices, blocks are as equal as can be.
inline DeviceRange DevicesOfRank(int64_t rank, int64_t num_processes, int64_t num_devices,
                                 const std::vector<uint32_t>& counts = {}) {
  if (static_cast<int64_t>(counts.size()) == num_processes &&
      std::accumulate(counts.begin(), counts.end(), int64_t{0}) == num_devices) {
    return {std::accumulate(counts.begin(), counts.begin() + rank, uint32_t{0}),
            counts[static_cast<size_t>(rank)]};
  }
  const auto first = static_cast<uint32_t>(BlockBegin(rank, num_processes, num_devices));
  const auto end = static_cast<uint32_t>(BlockBegin(rank + 1, num_processes, num_devices));
  return {first, end - first};
}

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_DEVICE_RANGE_H_
