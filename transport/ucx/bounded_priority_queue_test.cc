#include "transport/ucx/bounded_priority_queue.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace penstock::transport::ucx {
namespace {

struct Element {
  uint32_t channel = 0;
  uint32_t num_turns = 0;  // still to be taken
  Element* next = nullptr;
};

using Queue = BoundedPriorityQueue<Element>;

void Remove(Queue* queue, const Element* element) {
  queue->Remove([element](const Element& other) { return &other == element; });
}

TEST(BoundedPriorityQueueTest, TheLowestChannelGoesFirst) {
  Queue queue;
  Element elements[4];
  for (int i = 0; i < 4; ++i) {
    elements[i].channel = i % 2 == 0 ? 5 : 3;
    queue.Add(&elements[i]);
  }
  for (int i : {1, 3, 0, 2}) {
    EXPECT_EQ(queue.TakeTurn(), &elements[i]) << "within a channel, the first added";
    Remove(&queue, &elements[i]);
  }
  EXPECT_TRUE(queue.empty());
}

TEST(BoundedPriorityQueueTest, TheOldestIsOvertakenSoOftenAndNotMore) {
  Queue queue;
  Element oldest{.channel = 7};
  Element urgent{.channel = 3};
  queue.Add(&oldest);
  queue.Add(&urgent);
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < kMaxOvertaking; ++i) EXPECT_EQ(queue.TakeTurn(), &urgent);
    EXPECT_EQ(queue.TakeTurn(), &oldest);
  }
  Remove(&queue, &urgent);
  for (uint32_t i = 0; i < 2 * kMaxOvertaking; ++i) EXPECT_EQ(queue.TakeTurn(), &oldest);
}

// However much that is more urgent comes all the time.
TEST(BoundedPriorityQueueTest, EachHasItsTurnsWithinTheBound) {
  std::mt19937 random(1);
  for (int round = 0; round < 100; ++round) {
    Queue queue;
    std::vector<Element> elements(1 + random() % 8);
    uint32_t num_turns = 0;
    for (Element& element : elements) {
      element.channel = 100 + random() % 3;
      element.num_turns = 1 + random() % 5;
      num_turns += element.num_turns;
      queue.Add(&element);
    }
    std::vector<Element> urgent(3);
    for (Element& element : urgent) {
      element.channel = random() % 3;
      element.num_turns = 1 + random() % 5;
      queue.Add(&element);
    }
    for (uint32_t turn = 0; turn < num_turns * (kMaxOvertaking + 1); ++turn) {
      Element* next = queue.TakeTurn();
      if (--next->num_turns > 0) continue;
      Remove(&queue, next);
      if (next->channel >= 100) continue;
      next->num_turns = 1 + random() % 5;
      queue.Add(next);
    }
    for (const Element& element : elements) EXPECT_EQ(element.num_turns, 0u);
  }
}

}  // namespace
}  // namespace penstock::transport::ucx
