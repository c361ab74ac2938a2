// A CPU device that shows what a session does with its memory: how much it allocates, and which
// bytes of its arena it has written. Memory is filled with random bytes instead of zeros, so every
// write is seen.
//
// Thread rule: as Device; `touched_lines` is called while nothing writes.

#ifndef PENSTOCK_TESTS_SUPPORT_WATCHED_DEVICE_H_
#define PENSTOCK_TESTS_SUPPORT_WATCHED_DEVICE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/device.h"

namespace penstock::testing {

inline constexpr uint64_t kLineBytes = 64;

// Outlives the device. What it says of touched lines holds while the session lives.
class WatchedMemory {
 public:
  void Add(std::byte* data, size_t num_bytes, MemoryKind kind) {
    num_bytes_[static_cast<size_t>(kind)] += num_bytes;
    if (kind != MemoryKind::kDevice) return;
    std::mt19937_64 random(num_bytes);
    std::vector<std::byte> pattern(num_bytes);
    for (std::byte& byte : pattern) byte = static_cast<std::byte>(random());
    std::memcpy(data, pattern.data(), num_bytes);
    data_ = data;
    pattern_ = std::move(pattern);
  }

  uint64_t num_bytes(MemoryKind kind) const { return num_bytes_[static_cast<size_t>(kind)]; }

  // Of the device's memory that was allocated last: whether each line has been written.
  std::vector<bool> touched_lines() const {
    std::vector<bool> lines;
    for (uint64_t begin = 0; begin < pattern_.size(); begin += kLineBytes) {
      const uint64_t size = std::min<uint64_t>(kLineBytes, pattern_.size() - begin);
      lines.push_back(std::memcmp(data_ + begin, pattern_.data() + begin, size) != 0);
    }
    return lines;
  }

 private:
  uint64_t num_bytes_[3] = {};  // by MemoryKind
  const std::byte* data_ = nullptr;
  std::vector<std::byte> pattern_;
};

class WatchedDevice : public Device {
 public:
  explicit WatchedDevice(WatchedMemory* watched) : watched_(*watched) {}

  std::string kind() const override { return inner_->kind(); }
  bool is_synchronous() const override { return inner_->is_synchronous(); }
  absl::StatusOr<std::unique_ptr<Memory>> Allocate(size_t num_bytes, MemoryKind kind) override {
    absl::StatusOr<std::unique_ptr<Memory>> memory = inner_->Allocate(num_bytes, kind);
    if (memory.ok()) watched_.Add((*memory)->data(), num_bytes, kind);
    return memory;
  }
  std::unique_ptr<Stream> CreateStream() override { return inner_->CreateStream(); }
  std::unique_ptr<Event> CreateEvent() override { return inner_->CreateEvent(); }
  ThreadPool* thread_pool() override { return inner_->thread_pool(); }

 private:
  WatchedMemory& watched_;
  const std::unique_ptr<Device> inner_ = CreateCpuDevice(1);
};

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_WATCHED_DEVICE_H_
