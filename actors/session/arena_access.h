// Blocking copies between host memory and a device's arena, for states that are initialised, read
// and written between steps. To an asynchronous device they go through a small buffer of pinned
// memory and a stream of their own.
//
// Thread rule: thread-safe. Invariants: nothing that runs on the device uses the bytes meanwhile;
// the caller sees to that.

#ifndef PENSTOCK_ACTORS_SESSION_ARENA_ACCESS_H_
#define PENSTOCK_ACTORS_SESSION_ARENA_ACCESS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/device.h"

namespace penstock::actors {

class ArenaAccess {
 public:
  // What is copied at a time.
  static constexpr size_t kChunkBytes = size_t{1} << 20;

  // `device` and `arena` outlive the result. A copy of a chunk that takes longer than `timeout`
  // fails.
  static absl::StatusOr<std::unique_ptr<ArenaAccess>> Create(Device& device, Memory& arena,
                                                             absl::Duration timeout);

  // Calls `fill(offset, size, bytes)` for the ranges of `num_bytes` from `begin` on, one after the
  // other, to put there what the arena is to hold; offsets count from `begin`.
  // REQUIRES: the range lies in the arena; so for Read.
  using Fill = absl::FunctionRef<void(uint64_t offset, size_t size, std::byte* bytes)>;
  absl::Status Write(uint64_t begin, uint64_t num_bytes, Fill fill);

  // Calls `take(offset, size, bytes)` with what the arena holds, likewise.
  using Take = absl::FunctionRef<void(uint64_t offset, size_t size, const std::byte* bytes)>;
  absl::Status Read(uint64_t begin, uint64_t num_bytes, Take take);

 private:
  ArenaAccess(Device& device, Memory& arena, absl::Duration timeout);

  std::byte* const arena_;
  const bool is_synchronous_;
  const int64_t timeout_ns_;
  std::mutex mutex_;
  // Of an asynchronous device:
  std::unique_ptr<Memory> chunk_;
  std::unique_ptr<Event> event_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_SESSION_ARENA_ACCESS_H_
