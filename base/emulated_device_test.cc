#include "base/emulated_device.h"

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kTimeoutNs = 10'000'000'000;

// Runs `function(context, pointers)` on the stream.
void Launch(Stream& stream, absl::Status (*function)(void*, const EmulatedRun&), void* context,
            std::vector<void*> pointers, uint64_t launch = kNoLaunch) {
  auto& emulated = static_cast<EmulatedStream&>(stream);
  EmulatedRun& run = emulated.BeginLaunch();
  run.function = function;
  run.context = context;
  run.pointers = std::move(pointers);
  run.launch = launch;
  emulated.EndLaunch();
}

absl::Status Increment(void*, const EmulatedRun& run) {
  ++*static_cast<int*>(run.pointers[0]);
  return absl::OkStatus();
}

absl::Status Fail(void*, const EmulatedRun&) { return absl::DataLossError("the disk is on fire"); }

absl::Status Throw(void*, const EmulatedRun&) { throw std::runtime_error("out of luck"); }

// With and without a thread of its own.
class EmulatedDeviceTest : public ::testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<Memory> Allocate(size_t num_bytes, MemoryKind kind = MemoryKind::kDevice) {
    return device_->Allocate(num_bytes, kind).value();
  }
  absl::Status Finish(Stream& stream) { return WaitUntilDone(stream, *event_, kTimeoutNs); }
  int Read(const Memory& memory) {
    int value = -1;
    stream_->Copy(&value, memory.data(), sizeof(int), CopyKind::kDeviceToHost);
    EXPECT_EQ(Finish(*stream_), absl::OkStatus());
    return value;
  }

  const std::unique_ptr<EmulatedDevice> device_ =
      EmulatedDevice::Create({.has_thread = GetParam(), .seed = 1});
  const std::unique_ptr<Event> event_ = device_->CreateEvent();
  const std::unique_ptr<Stream> stream_ = device_->CreateStream();
};

INSTANTIATE_TEST_SUITE_P(Threads, EmulatedDeviceTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Own" : "None"; });

TEST_P(EmulatedDeviceTest, TheHostCannotTouchItsMemory) {
  const std::unique_ptr<Memory> memory = Allocate(100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 64, 0u);
  volatile char* data = reinterpret_cast<volatile char*>(memory->data());
  EXPECT_DEATH([[maybe_unused]] const char read = data[0], "");
  EXPECT_DEATH(data[99] = 1, "");
  for (const MemoryKind kind : {MemoryKind::kPinned, MemoryKind::kHost}) {
    const std::unique_ptr<Memory> host = Allocate(100, kind);
    host->data()[99] = std::byte{1};
  }
}

TEST_P(EmulatedDeviceTest, CopiesReachIt) {
  const std::unique_ptr<Memory> one = Allocate(sizeof(int));
  const std::unique_ptr<Memory> two = Allocate(2 * sizeof(int));
  EXPECT_EQ(Read(*one), 0);
  const int value = 42;
  stream_->Copy(one->data(), &value, sizeof(int), CopyKind::kHostToDevice);
  stream_->Copy(two->data() + sizeof(int), one->data(), sizeof(int), CopyKind::kDeviceToDevice);
  stream_->Copy(nullptr, nullptr, 0, CopyKind::kHostToDevice);
  int read = 0;
  stream_->Copy(&read, two->data() + sizeof(int), sizeof(int), CopyKind::kDeviceToHost);
  EXPECT_EQ(Finish(*stream_), absl::OkStatus());
  EXPECT_EQ(read, 42);
}

TEST_P(EmulatedDeviceTest, RunsInOrderAfterTheLaunch) {
  const std::unique_ptr<Memory> memory = Allocate(sizeof(int));
  const int two = 2;
  constexpr int kRuns = 3000;  // more than its queue holds
  for (int i = 0; i < kRuns; ++i) Launch(*stream_, &Increment, nullptr, {memory->data()});
  EXPECT_EQ(Read(*memory), kRuns);
  Launch(*stream_, &Increment, nullptr, {memory->data()});
  stream_->Copy(memory->data(), &two, sizeof(int), CopyKind::kHostToDevice);
  Launch(*stream_, &Increment, nullptr, {memory->data()});
  EXPECT_EQ(Read(*memory), 3);
}

TEST_P(EmulatedDeviceTest, AnEventIsDoneWhenItsStreamHasComeToIt) {
  std::atomic<bool> is_open{!GetParam()};  // who polls would wait for ever
  const auto wait = [](void* context, const EmulatedRun&) {
    while (!static_cast<std::atomic<bool>*>(context)->load()) std::this_thread::yield();
    return absl::OkStatus();
  };
  EXPECT_TRUE(event_->IsDone());
  Launch(*stream_, wait, &is_open, {});
  stream_->Record(event_.get());
  EXPECT_FALSE(event_->IsDone());
  if (GetParam()) {
    const std::unique_ptr<Event> late = device_->CreateEvent();
    EXPECT_EQ(WaitUntilDone(*stream_, *late, 1'000'000).code(),
              absl::StatusCode::kDeadlineExceeded);
    EXPECT_FALSE(event_->IsDone());
    is_open = true;
    EXPECT_EQ(WaitUntilDone(*stream_, *late, kTimeoutNs), absl::OkStatus());
  }
  EXPECT_EQ(Finish(*stream_), absl::OkStatus());
  EXPECT_TRUE(event_->IsDone());
  EXPECT_EQ(event_->error(), nullptr);
}

TEST_P(EmulatedDeviceTest, EventsTellTheTimeBetweenThem) {
  const std::unique_ptr<Event> begin = device_->CreateTimedEvent();
  const std::unique_ptr<Event> end = device_->CreateTimedEvent();
  constexpr int64_t kBusyNs = 2'000'000;
  const auto work = [](void*, const EmulatedRun&) {
    const SteadyClock clock;
    const int64_t begin_ns = clock.NowNs();
    while (clock.NowNs() < begin_ns + kBusyNs) continue;
    return absl::OkStatus();
  };
  stream_->Record(begin.get());
  Launch(*stream_, work, nullptr, {});
  stream_->Record(end.get());
  EXPECT_EQ(Finish(*stream_), absl::OkStatus());
  EXPECT_GE(end->NsSince(*begin), kBusyNs);
  EXPECT_LE(begin->NsSince(*end), -kBusyNs);
}

TEST_P(EmulatedDeviceTest, AStreamWaitsForAnEventOfAnother) {
  const std::unique_ptr<Stream> other = device_->CreateStream();
  const std::unique_ptr<Memory> memory = Allocate(sizeof(int));
  const std::unique_ptr<Event> event = device_->CreateEvent();
  for (int i = 0; i < 100; ++i) {
    const int value = i;
    stream_->Copy(memory->data(), &value, sizeof(int), CopyKind::kHostToDevice);
    for (int k = 0; k < 20; ++k) Launch(*stream_, &Increment, nullptr, {memory->data()});
    stream_->Record(event.get());
    other->Wait(event.get());
    int read = -1;
    other->Copy(&read, memory->data(), sizeof(int), CopyKind::kDeviceToHost);
    const std::unique_ptr<Event> done = device_->CreateEvent();
    other->Record(done.get());
    while (!done->IsDone()) {
      other->Poll();
      stream_->Poll();
    }
    ASSERT_EQ(read, i + 20);
  }
}

TEST_P(EmulatedDeviceTest, AnErrorTravelsWithTheStreamAndToThoseThatWaitForIt) {
  const std::unique_ptr<Stream> other = device_->CreateStream();
  const std::unique_ptr<Stream> third = device_->CreateStream();
  const std::unique_ptr<Memory> memory = Allocate(sizeof(int));
  const std::unique_ptr<Event> event = device_->CreateEvent();
  Launch(*stream_, &Increment, nullptr, {memory->data()});
  Launch(*stream_, &Fail, nullptr, {}, 17);
  Launch(*stream_, &Increment, nullptr, {memory->data()});
  Launch(*stream_, &Throw, nullptr, {}, 18);
  stream_->Record(event.get());
  other->Wait(event.get());
  Launch(*other, &Increment, nullptr, {memory->data()});
  EXPECT_EQ(Finish(*stream_), absl::DataLossError("the disk is on fire"));
  ASSERT_NE(event->error(), nullptr);
  EXPECT_EQ(event->error()->launch, 17u);
  EXPECT_EQ(Finish(*other).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Finish(*third), absl::OkStatus());
  for (Stream* stream : {stream_.get(), other.get()}) {
    EXPECT_EQ(stream->Reset(), absl::OkStatus());
    EXPECT_EQ(Finish(*stream), absl::OkStatus());
  }
  EXPECT_EQ(Read(*memory), 1);  // what came after the failure was skipped, on both streams
  Launch(*other, &Throw, nullptr, {}, 19);
  EXPECT_THAT(std::string(Finish(*other).message()), HasSubstr("its kernel threw: out of luck"));
}

TEST_P(EmulatedDeviceTest, ForeignMemoryIsAnError) {
  int value = 0;
  const std::unique_ptr<Memory> memory = Allocate(sizeof(int));
  Launch(*stream_, &Increment, nullptr, {&value}, 3);
  EXPECT_THAT(std::string(Finish(*stream_).message()), HasSubstr("no memory of the device"));
  EXPECT_EQ(event_->error()->launch, 3u);
  EXPECT_EQ(stream_->Reset(), absl::OkStatus());
  stream_->Copy(memory->data() + 1, &value, sizeof(int), CopyKind::kHostToDevice);
  EXPECT_THAT(std::string(Finish(*stream_).message()), HasSubstr("a copy of 4 bytes to"));
  EXPECT_EQ(event_->error()->launch, kNoLaunch);
}

TEST_P(EmulatedDeviceTest, AStreamThatGoesDropsItsWork) {
  const std::unique_ptr<Memory> memory = Allocate(sizeof(int));
  for (int i = 0; i < 50; ++i) {
    const std::unique_ptr<Stream> stream = device_->CreateStream();
    for (int k = 0; k < 100; ++k) Launch(*stream, &Increment, nullptr, {memory->data()});
  }
  EXPECT_LE(Read(*memory), 5000);
}

TEST_P(EmulatedDeviceTest, MoreMemoryThanThereIsIsAnError) {
  for (const size_t num_bytes : {size_t{1} << 60, SIZE_MAX}) {
    EXPECT_EQ(device_->Allocate(num_bytes, MemoryKind::kDevice).status().code(),
              absl::StatusCode::kResourceExhausted);
  }
}

// Where work runs in Poll, a seed gives one order and others others.
TEST(EmulatedOrderTest, IsDrawnFromTheSeed) {
  const auto order_of = [](uint64_t seed) {
    const auto device = EmulatedDevice::Create({.has_thread = false, .seed = seed});
    std::vector<int> order;
    const std::unique_ptr<Stream> streams[] = {device->CreateStream(), device->CreateStream()};
    std::pair<std::vector<int>*, int> contexts[] = {{&order, 0}, {&order, 1}};
    for (int i = 0; i < 10; ++i) {
      for (int s = 0; s < 2; ++s) {
        Launch(*streams[s],
               [](void* context, const EmulatedRun&) {
                 const auto* pair = static_cast<std::pair<std::vector<int>*, int>*>(context);
                 pair->first->push_back(pair->second);
                 return absl::OkStatus();
               },
               &contexts[s], {});
      }
    }
    while (order.size() < 20) {
      streams[0]->Poll();
      streams[1]->Poll();
    }
    return order;
  };
  EXPECT_EQ(order_of(1), order_of(1));
  EXPECT_NE(order_of(1), order_of(2));
}

// ---- Graphs.

absl::Status AddValue(void*, const EmulatedRun& run) {
  *static_cast<int*>(run.pointers[0]) += static_cast<int>(run.values[1]);
  return absl::OkStatus();
}

TEST_P(EmulatedDeviceTest, AGraphRunsAtItsLaunchesWithTheirSteps) {
  const std::unique_ptr<Memory> one = Allocate(sizeof(int));
  const std::unique_ptr<Memory> two = Allocate(sizeof(int));
  auto& stream = dynamic_cast<EmulatedStream&>(*stream_);
  ASSERT_EQ(stream.BeginCapture(), absl::OkStatus());
  EmulatedRun& run = stream.BeginLaunch();
  run.function = &AddValue;
  run.pointers = {one->data()};
  run.values = {0, 5, 0, 0};
  run.step_value = 1;
  stream.EndLaunch();
  stream_->Copy(two->data(), one->data(), sizeof(int), CopyKind::kDeviceToDevice);
  const auto graph = stream.EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(Read(*one), 0);
  stream.Launch(**graph, {});
  EXPECT_EQ(Read(*two), 5);
  stream.Launch(**graph, {.step = 100});
  stream.Launch(**graph, {.step = static_cast<uint64_t>(-2)});
  EXPECT_EQ(Read(*two), 5 + 105 + 3);
}

TEST_P(EmulatedDeviceTest, AnErrorInAGraphNamesTheLaunch) {
  auto& stream = dynamic_cast<EmulatedStream&>(*stream_);
  ASSERT_EQ(stream.BeginCapture(), absl::OkStatus());
  Launch(*stream_, &Fail, nullptr, {}, 7);
  const auto graph = stream.EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(Finish(*stream_), absl::OkStatus());
  stream.Launch(**graph, {.launch = 30});
  EXPECT_EQ(Finish(*stream_).code(), absl::StatusCode::kDataLoss);
  ASSERT_NE(event_->error(), nullptr);
  EXPECT_EQ(event_->error()->launch, 37u);
}

TEST_P(EmulatedDeviceTest, AGraphHoldsKernelsAndCopiesAlone) {
  const std::unique_ptr<Event> event = device_->CreateEvent();
  const std::unique_ptr<Memory> memory = Allocate(sizeof(int));
  auto& stream = dynamic_cast<EmulatedStream&>(*stream_);
  ASSERT_EQ(stream.BeginCapture(), absl::OkStatus());
  Launch(*stream_, &Increment, nullptr, {memory->data()});
  stream_->Record(event.get());
  EXPECT_EQ(stream.EndCapture().status().code(), absl::StatusCode::kFailedPrecondition);
  // Nothing has run, and the stream goes on; the event, too.
  Launch(*stream_, &Increment, nullptr, {memory->data()});
  stream_->Record(event.get());
  stream_->Wait(event.get());
  EXPECT_EQ(Read(*memory), 1);
}

}  // namespace
}  // namespace penstock
