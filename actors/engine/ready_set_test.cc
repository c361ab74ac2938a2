#include "actors/engine/ready_set.h"

#include <algorithm>
#include <random>
#include <set>

#include "gtest/gtest.h"

namespace penstock::actors {
namespace {

using planner::kNone;

TEST(ReadySet, TakesTheFirstInARange) {
  ReadySet set(200);
  for (const uint32_t actor : {3u, 64u, 130u, 199u}) set.Add(actor);
  EXPECT_EQ(set.TakeFirst(0, 3), kNone);
  EXPECT_EQ(set.TakeFirst(4, 64), kNone);
  EXPECT_EQ(set.TakeFirst(4, 200), 64u);
  EXPECT_FALSE(set.Contains(64));
  EXPECT_EQ(set.TakeFirst(0, 200), 3u);
  EXPECT_EQ(set.TakeFirst(131, 199), kNone);
  EXPECT_EQ(set.TakeFirst(199, 200), 199u);
  EXPECT_EQ(set.TakeFirst(5, 5), kNone);
  EXPECT_TRUE(set.Contains(130));
}

TEST(ReadySet, AgreesWithASetOfNumbers) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const uint32_t size = random() % 300 + 1;
    ReadySet set(size);
    ReadySet initial(size);
    std::set<uint32_t> expected;
    for (int i = 0; i < 200; ++i) {
      const uint32_t begin = random() % (size + 1);
      const uint32_t end = begin + random() % (size + 1 - begin);
      switch (random() % 4) {
        case 0:
          if (begin == size) break;
          initial.Add(begin);
          break;
        case 1:
          if (begin == size) break;
          set.Add(begin);
          expected.insert(begin);
          break;
        case 2:
          set.AddFrom(initial, begin, end);
          for (uint32_t k = begin; k < end; ++k) {
            if (initial.Contains(k)) expected.insert(k);
          }
          break;
        default: {
          const auto first = expected.lower_bound(begin);
          const bool is_there = first != expected.end() && *first < end;
          ASSERT_EQ(set.TakeFirst(begin, end), is_there ? *first : kNone);
          if (is_there) expected.erase(first);
        }
      }
    }
  }
}

}  // namespace
}  // namespace penstock::actors
