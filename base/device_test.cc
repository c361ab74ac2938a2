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

TEST(CpuDeviceTest, StreamsCopyAtOnce) {
  const auto device = CreateCpuDevice(2);
  EXPECT_TRUE(device->is_synchronous());
  EXPECT_EQ(device->thread_pool()->size(), 2);
  const auto stream = device->CreateStream();
  const auto event = device->CreateEvent();
  EXPECT_TRUE(event->IsDone());
  int values[] = {1, 2, 3};
  stream->Copy(&values[1], &values[0], sizeof(int), CopyKind::kHostToDevice);
  EXPECT_EQ(values[1], 1);
  stream->Copy(nullptr, nullptr, 0, CopyKind::kDeviceToHost);
  stream->Record(event.get());
  stream->Wait(event.get());
  stream->Copy(&values[2], &values[1], sizeof(int), CopyKind::kDeviceToDevice);
  EXPECT_EQ(values[2], 1);
  EXPECT_TRUE(event->IsDone());
  EXPECT_EQ(event->error(), nullptr);
  EXPECT_FALSE(stream->Poll());
  EXPECT_EQ(stream->Reset(), absl::OkStatus());
  EXPECT_EQ(WaitUntilDone(*stream, *event, 0), absl::OkStatus());
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
