#include "transport/ucx/replay_window.h"

#include <cstdint>
#include <random>
#include <set>

#include "gtest/gtest.h"

namespace penstock::transport::ucx {
namespace {

bool TakeOnce(ReplayWindow& window, uint64_t serial) {
  if (!window.MayAccept(serial)) return false;
  window.Accept(serial);
  return true;
}

TEST(ReplayWindowTest, TakesEachOnceInOrder) {
  ReplayWindow window;
  for (uint64_t serial = 0; serial < 5000; ++serial) {
    EXPECT_TRUE(TakeOnce(window, serial));
    EXPECT_FALSE(TakeOnce(window, serial));
  }
  EXPECT_FALSE(TakeOnce(window, 4000));
}

TEST(ReplayWindowTest, TakesLateOnes) {
  ReplayWindow window;
  for (const uint64_t serial : {0, 1, 3, 700, 2, 699}) EXPECT_TRUE(TakeOnce(window, serial));
  for (const uint64_t serial : {0, 1, 3, 700, 2, 699}) EXPECT_FALSE(TakeOnce(window, serial));
}

TEST(ReplayWindowTest, RefusesWhatIsTooOld) {
  ReplayWindow window;
  EXPECT_TRUE(TakeOnce(window, ReplayWindow::kSize + 10));
  EXPECT_FALSE(TakeOnce(window, 10));
  EXPECT_TRUE(TakeOnce(window, 11));
  EXPECT_TRUE(TakeOnce(window, uint64_t{1} << 60));  // far ahead
  EXPECT_FALSE(TakeOnce(window, ReplayWindow::kSize + 11));
  EXPECT_TRUE(TakeOnce(window, (uint64_t{1} << 60) - 1));
  EXPECT_FALSE(TakeOnce(window, ReplayWindow::kNever));
  EXPECT_TRUE(TakeOnce(window, ReplayWindow::kNever - 1));
  EXPECT_FALSE(TakeOnce(window, 12));
}

// Against a set that remembers all.
TEST(ReplayWindowTest, RandomOrder) {
  std::mt19937_64 random(1);
  ReplayWindow window;
  std::set<uint64_t> taken;
  uint64_t next = 0;
  for (int i = 0; i < 200'000; ++i) {
    const uint64_t ahead = random() % 100 == 0 ? random() % 3000 : random() % 3;
    const uint64_t serial =
        random() % 2 == 0 ? next + ahead : next - std::min(next, random() % 1200);
    const bool is_expected =
        serial >= next || (next - serial <= ReplayWindow::kSize && !taken.contains(serial));
    EXPECT_EQ(TakeOnce(window, serial), is_expected) << serial << " of " << next;
    if (is_expected) taken.insert(serial);
    next = std::max(next, taken.empty() ? 0 : *taken.rbegin() + 1);
  }
}

}  // namespace
}  // namespace penstock::transport::ucx
