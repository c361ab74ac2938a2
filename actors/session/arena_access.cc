#include "actors/session/arena_access.h"

#include <algorithm>

#include "base/status_macros.h"

namespace penstock::actors {

ArenaAccess::ArenaAccess(Device& device, Memory& arena, std::byte* host_arena,
                         absl::Duration timeout)
    : arena_(arena.data()),
      arena_bytes_(arena.num_bytes()),
      host_arena_(host_arena),
      is_synchronous_(device.is_synchronous()),
      timeout_ns_(absl::ToInt64Nanoseconds(timeout)) {}

absl::StatusOr<std::unique_ptr<ArenaAccess>> ArenaAccess::Create(Device& device, Memory& arena,
                                                                 std::byte* host_arena,
                                                                 absl::Duration timeout) {
  std::unique_ptr<ArenaAccess> access(new ArenaAccess(device, arena, host_arena, timeout));
  if (access->is_synchronous_) return access;
  ASSIGN_OR_RETURN(access->chunk_,
                   device.Allocate(std::min(kChunkBytes, arena.num_bytes()), MemoryKind::kPinned));
  access->event_ = device.CreateEvent();
  access->stream_ = device.CreateStream();
  return access;
}

std::byte* ArenaAccess::OnHost(uint64_t offset) const {
  if (offset >= arena_bytes_ && host_arena_ != nullptr)
    return host_arena_ + (offset - arena_bytes_);
  return is_synchronous_ ? arena_ + offset : nullptr;
}

absl::Status ArenaAccess::Write(uint64_t begin, uint64_t num_bytes, Fill fill) {
  const absl::MutexLock lock(&mutex_);
  if (std::byte* const bytes = OnHost(begin); bytes != nullptr) {
    if (num_bytes > 0) fill(0, num_bytes, bytes);
    return absl::OkStatus();
  }
  for (uint64_t offset = 0; offset < num_bytes; offset += kChunkBytes) {
    const size_t size = std::min<uint64_t>(num_bytes - offset, kChunkBytes);
    fill(offset, size, chunk_->data());
    stream_->Copy(arena_ + begin + offset, chunk_->data(), size, CopyKind::kHostToDevice);
    RETURN_IF_ERROR(WaitUntilDone(*stream_, *event_, timeout_ns_));
  }
  return absl::OkStatus();
}

absl::Status ArenaAccess::Read(uint64_t begin, uint64_t num_bytes, Take take) {
  const absl::MutexLock lock(&mutex_);
  if (const std::byte* const bytes = OnHost(begin); bytes != nullptr) {
    if (num_bytes > 0) take(0, num_bytes, bytes);
    return absl::OkStatus();
  }
  for (uint64_t offset = 0; offset < num_bytes; offset += kChunkBytes) {
    const size_t size = std::min<uint64_t>(num_bytes - offset, kChunkBytes);
    stream_->Copy(chunk_->data(), arena_ + begin + offset, size, CopyKind::kDeviceToHost);
    RETURN_IF_ERROR(WaitUntilDone(*stream_, *event_, timeout_ns_));
    take(offset, size, chunk_->data());
  }
  return absl::OkStatus();
}

}  // namespace penstock::actors
