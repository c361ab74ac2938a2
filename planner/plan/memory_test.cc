#include "planner/plan/memory.h"

#include <ctime>
#include <vector>

#include "gtest/gtest.h"

#include "tests/support/random.h"

namespace penstock::planner {
namespace {

TEST(MemoryTest, AlignsUp) {
  EXPECT_EQ(AlignUp(0), 0u);
  EXPECT_EQ(AlignUp(1), 64u);
  EXPECT_EQ(AlignUp(64), 64u);
  EXPECT_EQ(AlignUp(65), 128u);
}

TEST(MemoryTest, BuffersThatNeverMeetShareBytes) {
  std::vector<Lifetime> lifetimes = {{100, {{0, 1}}}, {100, {{2, 3}}}, {100, {{4, 5}}}};
  EXPECT_EQ(PackLifetimes(&lifetimes), 128u);
  for (const Lifetime& lifetime : lifetimes) EXPECT_EQ(lifetime.offset, 0u);
}

TEST(MemoryTest, ALifetimeIncludesItsLastPosition) {
  std::vector<Lifetime> lifetimes = {{64, {{0, 1}}}, {64, {{1, 2}}}};
  EXPECT_EQ(PackLifetimes(&lifetimes), 128u);
}

TEST(MemoryTest, ABufferMayLieWhereAnotherIsAwayForAWhile) {
  std::vector<Lifetime> lifetimes = {{64, {{0, 1}, {4, 5}}}, {64, {{2, 3}}}, {64, {{3, 4}}}};
  EXPECT_EQ(MostLiveBytes(lifetimes), 128u);
  EXPECT_EQ(PackLifetimes(&lifetimes), 128u);
  EXPECT_NE(lifetimes[2].offset, lifetimes[0].offset);
  EXPECT_NE(lifetimes[2].offset, lifetimes[1].offset);
  EXPECT_EQ(lifetimes[0].offset, lifetimes[1].offset);
}

TEST(MemoryTest, WhatIsHeldKeepsAwayFromWhatIsTouched) {
  std::vector<Lifetime> lifetimes = {{64, {{0, 1}}, {{4, 5}}}, {64, {{2, 3}}, {{4, 5}}}};
  EXPECT_EQ(PackLifetimes(&lifetimes), 64u);
  lifetimes.push_back({64, {{5, 6}}});
  EXPECT_EQ(PackLifetimes(&lifetimes), 64u);
  lifetimes.back().touched = lifetimes.back().spans;
  EXPECT_EQ(PackLifetimes(&lifetimes), 128u);
  EXPECT_NE(lifetimes[2].offset, lifetimes[0].offset);
}

TEST(MemoryTest, BuffersThatFollowEachOtherLeaveWhatEachDoesNotUse) {
  std::vector<Lifetime> lifetimes = {{64, {{0, 1}}}, {64, {{2, 3}}}, {64, {{2, 3}}}};
  lifetimes[1].follows_previous = true;
  EXPECT_EQ(PackLifetimes(&lifetimes), 128u);
  EXPECT_EQ(lifetimes[0].offset, 0u);
  EXPECT_EQ(lifetimes[1].offset, 64u);
  EXPECT_EQ(lifetimes[2].offset, 0u);
}

TEST(MemoryTest, FillsTheSmallestGap) {
  // The two large ones stand at 0 and 192; between them lived 64 bytes, later reused.
  std::vector<Lifetime> lifetimes = {
      {256, {{0, 9}}}, {128, {{0, 2}}}, {64, {{3, 9}}}, {64, {{3, 9}}}};
  EXPECT_EQ(PackLifetimes(&lifetimes), 384u);
  EXPECT_EQ(lifetimes[0].offset, 0u);
  EXPECT_EQ(lifetimes[1].offset, 256u);
  EXPECT_EQ(lifetimes[2].offset, 256u);
  EXPECT_EQ(lifetimes[3].offset, 320u);
}

// The slots of a pipeline's stashed activations: the first and the last are in use at other times
// than those between, which count as one.
TEST(MemoryTest, SlotsThatAreInUseAlikeTakeNoTime) {
  constexpr int kRegisters = 1500;
  constexpr int kSlots = 64;
  std::vector<Lifetime> lifetimes;
  for (int r = 0; r < kRegisters; ++r) {
    for (int slot = 0; slot < kSlots; ++slot) {
      const int64_t first = slot == kSlots - 1 ? r : 0;
      const int64_t last = slot == 0 ? 2 * kRegisters - r : 2 * kRegisters;
      Lifetime& lifetime = lifetimes.emplace_back();
      lifetime.bytes = 100;
      lifetime.spans = {{first, last}};
      lifetime.follows_previous = slot > 0;
    }
  }
  const std::clock_t begin = std::clock();
  EXPECT_EQ(PackLifetimes(&lifetimes), uint64_t{128} * kRegisters * kSlots);
  EXPECT_LT(std::clock() - begin, 10 * CLOCKS_PER_SEC);
  for (size_t i = 1; i < lifetimes.size(); ++i) {
    if (lifetimes[i].follows_previous) {
      ASSERT_EQ(lifetimes[i].offset, lifetimes[i - 1].offset + 128);
    }
  }
}

TEST(MemoryTest, NothingNeedsNothing) {
  std::vector<Lifetime> none;
  EXPECT_EQ(PackLifetimes(&none), 0u);
  std::vector<Lifetime> empty = {{0, {{0, 3}}}, {0, {{0, 3}}}};
  EXPECT_EQ(PackLifetimes(&empty), 0u);
}

TEST(MemoryTest, RandomBuffersStayApartAndPackWell) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    testing::Random random(seed);
    std::vector<Lifetime> lifetimes;
    for (int64_t i = random.Between(1, 60); i > 0; --i) {
      const int64_t first = random.Below(40);
      lifetimes.push_back(
          {static_cast<uint64_t>(random.Between(1, 5000)), {{first, first + random.Below(12)}}});
      // Every other time, some buffers follow each other.
      lifetimes.back().follows_previous =
          seed % 2 == 1 && lifetimes.size() > 1 && random.Below(4) == 0;
    }
    const uint64_t total = PackLifetimes(&lifetimes);
    uint64_t peak = 0;
    for (int64_t position = 0; position < 60; ++position) {
      uint64_t live = 0;
      for (const Lifetime& lifetime : lifetimes) {
        if (lifetime.spans[0].first <= position && position <= lifetime.spans[0].last)
          live += AlignUp(lifetime.bytes);
      }
      peak = std::max(peak, live);
    }
    EXPECT_EQ(MostLiveBytes(lifetimes), peak);
    EXPECT_GE(total, peak);
    if (seed % 2 == 0) {
      EXPECT_LE(total, peak * 3 / 2) << "seed " << seed;
    }
    for (size_t a = 0; a < lifetimes.size(); ++a) {
      if (lifetimes[a].follows_previous) {
        EXPECT_EQ(lifetimes[a].offset, lifetimes[a - 1].offset + AlignUp(lifetimes[a - 1].bytes));
      }
      EXPECT_EQ(lifetimes[a].offset % kArenaAlignment, 0u);
      EXPECT_LE(lifetimes[a].offset + lifetimes[a].bytes, total);
      for (size_t b = 0; b < a; ++b) {
        const bool meet = lifetimes[a].spans[0].first <= lifetimes[b].spans[0].last &&
                          lifetimes[b].spans[0].first <= lifetimes[a].spans[0].last;
        const bool overlap =
            lifetimes[a].offset < lifetimes[b].offset + AlignUp(lifetimes[b].bytes) &&
            lifetimes[b].offset < lifetimes[a].offset + AlignUp(lifetimes[a].bytes);
        EXPECT_FALSE(meet && overlap) << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace penstock::planner
