#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/random.h"
#include "planner/plan/event_queue_internal.h"

namespace penstock::planner::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

std::vector<std::pair<double, int>> TakeAll(EventQueue<int>* queue) {
  std::vector<std::pair<double, int>> taken;
  while (!queue->empty()) taken.push_back(queue->Take());
  return taken;
}

TEST(EventQueueTest, EventsComeInTheOrderOfTimeAndThenAsAdded) {
  EventQueue<int> queue;
  EXPECT_TRUE(queue.empty());
  queue.Add(2, 1);
  queue.Add(2, 2);
  queue.Add(1, 3);
  queue.Add(2, 4);  // another run of the same time
  queue.Add(3, 5);
  queue.Add(2, 6);
  EXPECT_THAT(TakeAll(&queue),
              ElementsAre(Pair(1, 3), Pair(2, 1), Pair(2, 2), Pair(2, 4), Pair(2, 6), Pair(3, 5)));
}

// What happens may add to the run that is being taken, or begin it anew after its end.
TEST(EventQueueTest, EventsAreAddedWhileARunIsTaken) {
  EventQueue<int> queue;
  queue.Add(1, 1);
  queue.Add(1, 2);
  EXPECT_EQ(queue.Take(), std::pair(1.0, 1));
  queue.Add(1, 3);
  EXPECT_EQ(queue.Take(), std::pair(1.0, 2));
  EXPECT_EQ(queue.Take(), std::pair(1.0, 3));
  EXPECT_TRUE(queue.empty());
  queue.Add(1, 4);
  queue.Add(2, 5);
  EXPECT_EQ(queue.Take(), std::pair(1.0, 4));
  queue.Add(1, 6);
  EXPECT_THAT(TakeAll(&queue), ElementsAre(Pair(1, 6), Pair(2, 5)));
}

// Beside a list that is searched for the first.
TEST(EventQueueTest, RandomEventsComeInOrder) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    EventQueue<int> queue;
    std::vector<std::pair<double, int>> expected;  // as added
    double now = 0;
    int added = 0;
    for (uint64_t i = 0; i < 2000; ++i) {
      const auto word = RandomWord({seed, 0, 0}, i);
      if (word % 3 != 0 || expected.empty()) {
        const double time = now + static_cast<double>(word / 3 % 4);
        expected.emplace_back(time, added);
        queue.Add(time, added++);
        continue;
      }
      auto first = expected.begin();
      for (auto it = expected.begin(); it != expected.end(); ++it) {
        if (it->first < first->first) first = it;
      }
      ASSERT_EQ(queue.Take(), *first) << "seed " << seed << ", event " << i;
      now = first->first;
      expected.erase(first);
    }
  }
}

}  // namespace
}  // namespace penstock::planner::internal
