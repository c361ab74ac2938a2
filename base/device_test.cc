#include "base/device.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "gtest/gtest.h"

namespace penstock {
namespace {

TEST(CpuDeviceTest, AllocatesZeroedAlignedMemory) {
  const auto device = CreateCpuDevice(1);
  EXPECT_EQ(device->kind(), "cpu");
  for (size_t num_bytes : {size_t{0}, size_t{1}, size_t{100}, size_t{5} << 20}) {
    for (MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kPinned, MemoryKind::kHost}) {
      const auto memory = device->Allocate(num_bytes, kind);
      ASSERT_TRUE(memory.ok());
      EXPECT_EQ((*memory)->num_bytes(), num_bytes);
      std::byte* data = (*memory)->data();
      EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
      EXPECT_EQ(std::count(data, data + num_bytes, std::byte{0}), static_cast<int64_t>(num_bytes));
      std::fill(data, data + num_bytes, std::byte{1});
    }
  }
}

TEST(CpuDeviceTest, MoreThanThereIsIsAnError) {
  const auto device = CreateCpuDevice(1);
  for (size_t num_bytes : {size_t{1} << 60, SIZE_MAX}) {
    const auto memory = device->Allocate(num_bytes, MemoryKind::kDevice);
    EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_NE(memory.status().message().find(std::to_string(num_bytes)), std::string::npos);
  }
}

TEST(CpuDeviceTest, StreamsRunInlineAndInOrder) {
  const auto device = CreateCpuDevice(2);
  EXPECT_EQ(device->thread_pool()->size(), 2);
  const auto stream = device->CreateStream();
  const auto event = device->CreateEvent();
  EXPECT_TRUE(stream->is_synchronous());
  EXPECT_TRUE(event->IsDone());
  int value = 1;
  stream->Launch({[](void* context) { *static_cast<int*>(context) += 1; }, &value});
  stream->Record(event.get());
  stream->Wait(event.get());
  stream->Launch({[](void* context) { *static_cast<int*>(context) *= 10; }, &value});
  EXPECT_EQ(value, 20);
  EXPECT_TRUE(event->IsDone());
  EXPECT_FALSE(stream->Poll());
}

TEST(SteadyClockTest, NeverGoesBack) {
  const SteadyClock clock;
  int64_t previous = clock.NowNs();
  for (int i = 0; i < 1000; ++i) {
    const int64_t now = clock.NowNs();
    ASSERT_GE(now, previous);
    previous = now;
  }
}

}  // namespace
}  // namespace penstock
