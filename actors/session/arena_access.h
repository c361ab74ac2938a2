// Blocking copies between host memory and a device's arena, for states that are initialised, read
// and written between steps. Copies to and from an asynchronous device go through a small buffer of
// pinned memory on a stream of their own. What of the arena lies on the host is touched there.
//
// Thread rule: thread-safe. The caller ensures that the device does not use the bytes during a
// copy.

#ifndef PENSTOCK_ACTORS_SESSION_ARENA_ACCESS_H_
#define PENSTOCK_ACTORS_SESSION_ARENA_ACCESS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/device.h"

namespace penstock::actors {

// Copies to and from the arena of one device, chunk by chunk.
class ArenaAccess {
 public:
  // The size of the pinned buffer.
  static constexpr size_t kChunkBytes = size_t{8} << 20;

  // `host_arena` is what follows the bytes of `arena` in the host's memory; null if nothing does.
  // All must outlive the result. A chunk whose copy takes longer than `timeout` fails.
  static absl::StatusOr<std::unique_ptr<ArenaAccess>> Create(Device& device, Memory& arena,
                                                             std::byte* host_arena,
                                                             absl::Duration timeout);

  // Stores the new contents of a chunk in `bytes`. Offsets count from the beginning of the write.
  using Fill = absl::FunctionRef<void(uint64_t offset, size_t size, std::byte* bytes)>;
  // Writes `num_bytes` to the arena from `begin` on: calls `fill` for one chunk after the other.
  // Fails with the error of the device, or with kDeadlineExceeded. REQUIRES: the range lies in one
  // memory of the arena.
  absl::Status Write(uint64_t begin, uint64_t num_bytes, Fill fill);

  // Takes the contents of a chunk. Offsets count from the beginning of the read.
  using Take = absl::FunctionRef<void(uint64_t offset, size_t size, const std::byte* bytes)>;
  // Reads `num_bytes` of the arena from `begin` on: calls `take` for one chunk after the other.
  // Fails as Write does. REQUIRES: the range lies in one memory of the arena.
  absl::Status Read(uint64_t begin, uint64_t num_bytes, Take take);

 private:
  ArenaAccess(Device& device, Memory& arena, std::byte* host_arena, absl::Duration timeout);
  // Where the host can use the byte; null: nowhere.
  std::byte* OnHost(uint64_t offset) const;

  std::byte* const arena_;
  const uint64_t arena_bytes_;
  std::byte* const host_arena_;
  const bool is_synchronous_;
  const int64_t timeout_ns_;
  absl::Mutex mutex_;
  // Null for a synchronous device:
  std::unique_ptr<Memory> chunk_ ABSL_PT_GUARDED_BY(mutex_);
  std::unique_ptr<Event> event_ ABSL_PT_GUARDED_BY(mutex_);
  std::unique_ptr<Stream> stream_ ABSL_PT_GUARDED_BY(mutex_);
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_SESSION_ARENA_ACCESS_H_
