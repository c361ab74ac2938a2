// Registered memory that the other processes of this host can read in place.
//
// A process keeps such memory in sealed memory files, and the directory of these files in another
// one. The address of the process names the directory. A process of the same host that may open its
// descriptors (the same user, process and IPC namespace) maps the directory and the regions
// read-only. Only processes that could also attach a debugger may do that. A file lives as long as
// it is mapped, so the bytes of a dead peer stay readable.
//
// A place, which messages carry, is a region and an offset in it, as one number.

#ifndef PENSTOCK_TRANSPORT_UCX_SHARED_MEMORY_H_
#define PENSTOCK_TRANSPORT_UCX_SHARED_MEMORY_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace penstock::transport::ucx {

// Names the directory of a process. All zero: it has none.
struct SharedAddress {
  uint64_t process = 0;
  uint64_t descriptor = 0;
  uint64_t token = 0;          // what the directory begins with
  uint64_t ipc_namespace = 0;  // memory is not shared with another
};

// No place.
inline constexpr uint64_t kNoPlace = 0;

inline constexpr int kMaxSharedRegions = 256;

struct SharedDirectory;

// The memory of this process.
//
// Thread rule: any thread.
class SharedMemory {
 public:
  // Null where the system has no memory files.
  static std::unique_ptr<SharedMemory> Create();
  // The memory itself stays.
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  SharedAddress address() const;

  // Replaces the whole pages of [data, data + num_bytes) by a memory file with the same bytes at
  // the same addresses. Returns the place of `data`, or kNoPlace and changes nothing if that is not
  // possible. Processes forked from this one afterwards share the memory with it.
  // REQUIRES: private, anonymous, writable memory that begins with a huge page and that nobody uses
  // during the call.
  uint64_t Share(void* data, size_t num_bytes);

  static bool BeginsHugePage(const void* data);
  // How many of `num_bytes` are shared: those in whole pages.
  static size_t WholePages(size_t num_bytes);

 private:
  SharedMemory(SharedDirectory* directory, int descriptor);

  SharedDirectory* const directory_;
  const int descriptor_;
  absl::Mutex mutex_;
  std::vector<int> files_ ABSL_GUARDED_BY(mutex_);
};

// The memory of another process.
//
// Thread rule: any thread.
class PeerMemory {
 public:
  // Null if the directory cannot be seen from here.
  static std::unique_ptr<PeerMemory> Open(const SharedAddress& address);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // The bytes at a place, valid as long as this object; null if there are fewer than `num_bytes`,
  // or they cannot be mapped. `place` is not trusted.
  const std::byte* Find(uint64_t place, uint64_t num_bytes);

 private:
  struct Region {
    std::atomic<const std::byte*> begin{nullptr};
    uint64_t num_bytes = 0;  // written before `begin`
  };

  PeerMemory(uint64_t process, const SharedDirectory* directory)
      : process_(process), directory_(directory) {}
  const std::byte* Map(uint64_t index);

  const uint64_t process_;
  const SharedDirectory* const directory_;
  std::array<Region, kMaxSharedRegions> regions_;
  absl::Mutex mutex_;
  std::array<bool, kMaxSharedRegions> is_refused_ ABSL_GUARDED_BY(mutex_) = {};  // of the regions
};

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_SHARED_MEMORY_H_
