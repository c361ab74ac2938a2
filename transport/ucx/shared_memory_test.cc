#include "transport/ucx/shared_memory.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "gtest/gtest.h"

#include "base/device.h"

namespace penstock::transport::ucx {
namespace {

constexpr size_t kBytes = (5 << 20) + 12345;

std::unique_ptr<Memory> MakeArena() {
  return *CreateCpuDevice(1)->Allocate(kBytes, MemoryKind::kDevice);
}

TEST(SharedMemoryTest, BytesStayAndAreSeenByAnotherProcess) {
  const auto shared = SharedMemory::Create();
  ASSERT_NE(shared, nullptr);
  const auto arena = MakeArena();
  std::memcpy(arena->data() + 4096, "before", 6);
  arena->data()[kBytes - 1] = std::byte{9};
  ASSERT_TRUE(SharedMemory::BeginsHugePage(arena->data()));
  const uint64_t place = shared->Share(arena->data(), kBytes);
  ASSERT_NE(place, kNoPlace);
  EXPECT_EQ(std::memcmp(arena->data() + 4096, "before", 6), 0);
  EXPECT_EQ(arena->data()[kBytes - 1], std::byte{9});  // beyond the last whole page
  std::memcpy(arena->data() + (4 << 20), "after", 5);

  const pid_t child = fork();
  if (child == 0) {
    const auto peer = PeerMemory::Open(shared->address());
    if (peer == nullptr) _exit(1);
    const std::byte* before = peer->Find(place + 4096, 6);
    const std::byte* after = peer->Find(place + (4 << 20), 5);
    _exit(before != nullptr && after != nullptr && std::memcmp(before, "before", 6) == 0 &&
                  std::memcmp(after, "after", 5) == 0
              ? 0
              : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(SharedMemoryTest, PlacesAreNotTrusted) {
  const auto shared = SharedMemory::Create();
  const auto peer = PeerMemory::Open(shared->address());
  ASSERT_NE(peer, nullptr);
  const auto arena = MakeArena();
  const uint64_t place = shared->Share(arena->data(), kBytes);
  const size_t size = SharedMemory::WholePages(kBytes);
  EXPECT_NE(peer->Find(place, size), nullptr);
  EXPECT_NE(peer->Find(place + size, 0), nullptr);
  EXPECT_EQ(peer->Find(place, size + 1), nullptr);
  EXPECT_EQ(peer->Find(place + 1, size), nullptr);
  EXPECT_EQ(peer->Find(place + 1, ~uint64_t{0}), nullptr);
  EXPECT_EQ(peer->Find(place + size + 1, 0), nullptr);
  EXPECT_EQ(peer->Find(kNoPlace, 1), nullptr);
  EXPECT_EQ(peer->Find(~uint64_t{0}, 1), nullptr);
  EXPECT_EQ(peer->Find(place * 2, 1), nullptr);  // a region that is not there yet
  const auto second = MakeArena();
  EXPECT_EQ(shared->Share(second->data(), kBytes), place * 2);
  EXPECT_NE(peer->Find(place * 2, 1), nullptr);
}

TEST(SharedMemoryTest, WhatIsLeftOfAProcessCanBeRead) {
  auto shared = SharedMemory::Create();
  auto arena = MakeArena();
  std::memcpy(arena->data(), "left", 4);
  const uint64_t place = shared->Share(arena->data(), kBytes);
  const auto peer = PeerMemory::Open(shared->address());
  const std::byte* bytes = peer->Find(place, 4);
  shared.reset();
  arena.reset();
  EXPECT_EQ(std::memcmp(bytes, "left", 4), 0);
}

TEST(SharedMemoryTest, OtherDirectoriesAreRefused) {
  const auto shared = SharedMemory::Create();
  SharedAddress address = shared->address();
  ++address.token;
  EXPECT_EQ(PeerMemory::Open(address), nullptr);
  address = shared->address();
  address.descriptor = 0;
  EXPECT_EQ(PeerMemory::Open(address), nullptr);
  address = shared->address();
  address.process = 0;
  EXPECT_EQ(PeerMemory::Open(address), nullptr);
  EXPECT_EQ(PeerMemory::Open({}), nullptr);
  // A file that could shrink under its readers.
  const int file = memfd_create("penstock", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(file, 1 << 20), 0);
  EXPECT_EQ(PeerMemory::Open({shared->address().process, static_cast<uint64_t>(file), 0}), nullptr);
  close(file);
}

TEST(SharedMemoryTest, TooLittleIsNotShared) {
  const auto shared = SharedMemory::Create();
  const auto arena = MakeArena();
  EXPECT_EQ(shared->Share(arena->data(), 4095), kNoPlace);
}

}  // namespace
}  // namespace penstock::transport::ucx
