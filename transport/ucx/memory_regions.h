// The registered memory of a process, as one endpoint sees it: UCX's handle of each region, and
// where peers of the same host can read it (shared_memory.h).
//
// Thread rule: external synchronisation.

#ifndef PENSTOCK_TRANSPORT_UCX_MEMORY_REGIONS_H_
#define PENSTOCK_TRANSPORT_UCX_MEMORY_REGIONS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ucp/api/ucp.h>

#include "transport/ucx/shared_memory.h"

namespace penstock::transport::ucx {

class MemoryRegions {
 public:
  struct Registration {
    ucp_mem_h handle = nullptr;  // null: not registered
    uint64_t place = kNoPlace;   // kNoPlace: not all of the bytes are shared
  };

  // `place` is that of the region's whole pages; kNoPlace: the region is not shared.
  void Add(const void* data, size_t num_bytes, ucp_mem_h handle, uint64_t place) {
    const size_t shared_bytes = place == kNoPlace ? 0 : SharedMemory::WholePages(num_bytes);
    regions_.push_back(
        {reinterpret_cast<uintptr_t>(data), num_bytes, shared_bytes, {handle, place}});
  }

  // How the `num_bytes` at `data` are registered, if they lie in one region.
  Registration Find(const void* data, size_t num_bytes) const {
    for (const Region& region : regions_) {
      const uintptr_t offset = reinterpret_cast<uintptr_t>(data) - region.begin;
      if (!IsWithin(offset, num_bytes, region.num_bytes)) continue;
      Registration found = region.registration;
      found.place =
          IsWithin(offset, num_bytes, region.shared_bytes) ? found.place + offset : kNoPlace;
      return found;
    }
    return {};
  }

 private:
  struct Region {
    uintptr_t begin = 0;
    size_t num_bytes = 0;
    size_t shared_bytes = 0;
    Registration registration;
  };

  static bool IsWithin(uintptr_t offset, size_t num_bytes, size_t limit) {
    return offset <= limit && num_bytes <= limit - offset;
  }

  std::vector<Region> regions_;
};

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_MEMORY_REGIONS_H_
