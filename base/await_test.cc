#include "base/await.h"

#include <chrono>
#include <thread>

#include "gtest/gtest.h"

namespace penstock {
namespace {

TEST(AwaitTest, ReturnsWhatHoldsWithoutWaiting) {
  absl::Mutex mutex;
  const absl::MutexLock lock(&mutex);
  bool is_done = true;
  EXPECT_TRUE(AwaitFor(absl::Condition(&is_done), absl::ZeroDuration(), &mutex));
  EXPECT_TRUE(AwaitFor(absl::Condition(&is_done), absl::InfiniteDuration(), &mutex));
  is_done = false;
  EXPECT_FALSE(AwaitFor(absl::Condition(&is_done), absl::ZeroDuration(), &mutex));
  EXPECT_FALSE(AwaitFor(absl::Condition(&is_done), -absl::Seconds(1), &mutex));
}

TEST(AwaitTest, WaitsForAsLongAsItIsTold) {
  absl::Mutex mutex;
  const absl::MutexLock lock(&mutex);
  const bool is_done = false;
  // Longer than the interval in which it looks at the clock.
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(AwaitFor(absl::Condition(&is_done), absl::Milliseconds(1200), &mutex));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1200));
}

TEST(AwaitTest, ReturnsWhenAnotherThreadMakesItHold) {
  for (const absl::Duration timeout : {absl::Minutes(5), absl::InfiniteDuration()}) {
    absl::Mutex mutex;
    bool is_waiting = false;
    bool is_done = false;
    std::thread other([&] {
      const absl::MutexLock lock(&mutex, absl::Condition(&is_waiting));
      is_done = true;
    });
    {
      const absl::MutexLock lock(&mutex);
      is_waiting = true;
      EXPECT_TRUE(AwaitFor(absl::Condition(&is_done), timeout, &mutex));
    }
    other.join();
  }
}

}  // namespace
}  // namespace penstock
