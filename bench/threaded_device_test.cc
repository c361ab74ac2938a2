#include "bench/threaded_device.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace penstock::bench {
namespace {

struct Append {
  std::vector<int>* values;
  int value;
  std::chrono::milliseconds delay{0};

  static void Run(void* context) {
    const auto& append = *static_cast<Append*>(context);
    std::this_thread::sleep_for(append.delay);
    append.values->push_back(append.value);
  }
};

void Await(const Event& event) {
  while (!event.IsDone()) std::this_thread::yield();
}

TEST(ThreadedDevice, RunsAStreamInOrderBesideItsOwner) {
  const std::unique_ptr<Device> device = CreateThreadedDevice();
  const std::unique_ptr<Stream> stream = device->CreateStream();
  const std::unique_ptr<Event> event = device->CreateEvent();
  EXPECT_FALSE(stream->is_synchronous());
  EXPECT_TRUE(event->IsDone());
  std::vector<int> values;
  std::vector<Append> appends;
  for (int i = 0; i < 5000; ++i) appends.push_back({&values, i});  // more than it queues
  appends[0].delay = std::chrono::milliseconds(20);
  for (Append& append : appends) stream->Launch({&Append::Run, &append});
  stream->Record(event.get());
  Await(*event);
  ASSERT_EQ(values.size(), appends.size());
  for (int i = 0; i < 5000; ++i) EXPECT_EQ(values[i], i);
}

TEST(ThreadedDevice, LaunchDoesNotWaitForTheWork) {
  const std::unique_ptr<Device> device = CreateThreadedDevice();
  std::atomic<bool> may_end = false;
  const std::unique_ptr<Stream> stream = device->CreateStream();
  const std::unique_ptr<Event> event = device->CreateEvent();
  stream->Launch({[](void* context) {
                    while (!*static_cast<std::atomic<bool>*>(context)) std::this_thread::yield();
                  },
                  &may_end});
  stream->Record(event.get());
  EXPECT_FALSE(event->IsDone());
  may_end = true;
  Await(*event);
}

TEST(ThreadedDevice, AStreamWaitsForAnEventOfAnother) {
  const std::unique_ptr<Device> device = CreateThreadedDevice();
  std::vector<int> values;
  Append first = {&values, 1, std::chrono::milliseconds(20)};
  Append second = {&values, 2};
  const std::unique_ptr<Stream> one = device->CreateStream();
  const std::unique_ptr<Stream> other = device->CreateStream();
  const std::unique_ptr<Event> event = device->CreateEvent();
  const std::unique_ptr<Event> end = device->CreateEvent();
  one->Launch({&Append::Run, &first});
  one->Record(event.get());
  other->Wait(event.get());
  other->Launch({&Append::Run, &second});
  other->Record(end.get());
  Await(*end);
  EXPECT_EQ(values, (std::vector<int>{1, 2}));
}

// A stream that has slept wakes for the next launch.
TEST(ThreadedDevice, WakesForALaunch) {
  const std::unique_ptr<Device> device = CreateThreadedDevice();
  const std::unique_ptr<Stream> stream = device->CreateStream();
  const std::unique_ptr<Event> event = device->CreateEvent();
  std::vector<int> values;
  Append append = {&values, 1};
  for (int i = 0; i < 3; ++i) {
    stream->Launch({&Append::Run, &append});
    stream->Record(event.get());
    Await(*event);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(values.size(), 3u);
}

}  // namespace
}  // namespace penstock::bench
