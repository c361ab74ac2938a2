#include "base/time_slice.h"

#include <sys/resource.h>

#include <thread>

#include "gtest/gtest.h"

namespace penstock {
namespace {

TEST(TimeSliceTest, KeepsTheNiceValueOfTheThread) {
  std::thread([] {
    ASSERT_EQ(setpriority(PRIO_PROCESS, 0, 3), 0);
    RequestShortSlices();
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), 3);
  }).join();
}

TEST(TimeSliceTest, MayBeAskedForAgain) {
  std::thread([] { EXPECT_EQ(RequestShortSlices(), RequestShortSlices()); }).join();
}

}  // namespace
}  // namespace penstock
