#include "actors/engine/trace_ring.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TraceEvent EventThatEnds(int64_t end_ns) {
  TraceEvent event;
  event.end_ns = end_ns;
  return event;
}

std::vector<int64_t> EndsOf(const std::vector<TraceEvent>& events) {
  std::vector<int64_t> ends;
  for (const TraceEvent& event : events) ends.push_back(event.end_ns);
  return ends;
}

TEST(TraceRingTest, ReturnsEventsByTheirEnds) {
  TraceRing ring(4);
  for (const int64_t end : {10, 30, 20}) ring.Add(EventThatEnds(end));
  EXPECT_THAT(EndsOf(ring.Take()), ElementsAre(10, 20, 30));
}

TEST(TraceRingTest, DropsTheOldestWhenFull) {
  TraceRing ring(3);
  for (int64_t end = 1; end <= 8; ++end) ring.Add(EventThatEnds(end));
  EXPECT_THAT(EndsOf(ring.Take()), ElementsAre(6, 7, 8));
}

TEST(TraceRingTest, KeepsTheOrderOfEventsThatEndTogether) {
  TraceRing ring(3);
  for (uint32_t actor = 0; actor < 5; ++actor) {
    TraceEvent event = EventThatEnds(7);
    event.actor = actor;
    ring.Add(event);
  }
  std::vector<uint32_t> actors;
  for (const TraceEvent& event : ring.Take()) actors.push_back(event.actor);
  EXPECT_THAT(actors, ElementsAre(2, 3, 4));
}

TEST(TraceRingTest, BeginsAnewOnceTaken) {
  TraceRing ring(2);
  for (int64_t end = 1; end <= 3; ++end) ring.Add(EventThatEnds(end));
  ring.Take();
  EXPECT_THAT(ring.Take(), IsEmpty());
  for (int64_t end = 7; end <= 9; ++end) ring.Add(EventThatEnds(end));
  EXPECT_THAT(EndsOf(ring.Take()), ElementsAre(8, 9));
}

}  // namespace
}  // namespace penstock::actors
