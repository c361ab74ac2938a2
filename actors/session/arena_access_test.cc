#include "actors/session/arena_access.h"

#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "base/emulated_device.h"

namespace penstock::actors {
namespace {

std::unique_ptr<Device> MakeDevice(const std::string& kind) {
  if (kind == "cpu") return CreateCpuDevice(1);
  return EmulatedDevice::Create({.has_thread = kind == "threaded"});
}

class ArenaAccessTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ArenaAccessTest, ReadsWhatWasWrittenAndNothingElse) {
  const std::unique_ptr<Device> device = MakeDevice(GetParam());
  constexpr size_t kArena = 3 * ArenaAccess::kChunkBytes;
  const std::unique_ptr<Memory> arena = *device->Allocate(kArena, MemoryKind::kDevice);
  const auto access = *ArenaAccess::Create(*device, *arena, nullptr, absl::Seconds(30));
  std::vector<std::byte> expected(kArena);
  // Nothing, a part of a chunk, and more than one.
  const std::pair<uint64_t, uint64_t> ranges[] = {
      {7, 0}, {100, 5000}, {5000, ArenaAccess::kChunkBytes + 12345}};
  uint8_t seed = 1;
  for (const auto& [begin, num_bytes] : ranges) {
    ++seed;
    const auto value = [seed](uint64_t i) { return static_cast<std::byte>(seed + i % 251); };
    uint64_t filled = 0;
    const absl::Status written =
        access->Write(begin, num_bytes, [&](uint64_t offset, size_t size, std::byte* bytes) {
          EXPECT_EQ(offset, filled);
          filled += size;
          for (size_t i = 0; i < size; ++i) bytes[i] = value(offset + i);
        });
    EXPECT_EQ(written, absl::OkStatus());
    EXPECT_EQ(filled, num_bytes);
    for (uint64_t i = 0; i < num_bytes; ++i) expected[begin + i] = value(i);
    std::vector<std::byte> found(kArena);
    EXPECT_EQ(access->Read(0, kArena,
                           [&](uint64_t offset, size_t size, const std::byte* bytes) {
                             std::memcpy(found.data() + offset, bytes, size);
                           }),
              absl::OkStatus());
    EXPECT_TRUE(found == expected);
  }
}

TEST_P(ArenaAccessTest, ReachesWhatLiesOnTheHost) {
  const std::unique_ptr<Device> device = MakeDevice(GetParam());
  constexpr size_t kArena = 128;
  constexpr size_t kOnHost = 64;
  const std::unique_ptr<Memory> arena = *device->Allocate(kArena, MemoryKind::kDevice);
  const std::unique_ptr<Memory> host = *device->Allocate(kOnHost, MemoryKind::kPinned);
  const auto access = *ArenaAccess::Create(*device, *arena, host->data(), absl::Seconds(30));
  for (const auto& [begin, size] : {std::pair(size_t{0}, kArena), std::pair(kArena, kOnHost)}) {
    const auto value = [begin = begin](uint64_t i) { return static_cast<std::byte>(begin + i); };
    ASSERT_EQ(access->Write(begin, size,
                            [&](uint64_t offset, size_t count, std::byte* bytes) {
                              for (size_t i = 0; i < count; ++i) bytes[i] = value(offset + i);
                            }),
              absl::OkStatus());
  }
  for (size_t i = 0; i < kOnHost; ++i) {
    EXPECT_EQ(host->data()[i], static_cast<std::byte>(kArena + i));
  }
  std::vector<std::byte> found(kArena + kOnHost);
  for (const auto& [begin, size] : {std::pair(size_t{0}, kArena), std::pair(kArena, kOnHost)}) {
    ASSERT_EQ(
        access->Read(begin, size,
                     [&, begin = begin](uint64_t offset, size_t count, const std::byte* bytes) {
                       std::memcpy(found.data() + begin + offset, bytes, count);
                     }),
        absl::OkStatus());
  }
  for (size_t i = 0; i < kArena; ++i) EXPECT_EQ(found[i], static_cast<std::byte>(i));
  for (size_t i = 0; i < kOnHost; ++i)
    EXPECT_EQ(found[kArena + i], static_cast<std::byte>(kArena + i));
}

INSTANTIATE_TEST_SUITE_P(Devices, ArenaAccessTest, ::testing::Values("cpu", "threaded", "polled"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace penstock::actors
