#include "actors/engine/phase_graph.h"

#include <vector>

#include "gtest/gtest.h"

namespace penstock::actors {
namespace {

SlotGroup Slots(uint32_t slots, bool per_microbatch) {
  SlotGroup group;
  group.slots = slots;
  group.per_microbatch = per_microbatch;
  return group;
}

// Whether every group of an instance has the slot that it has `period` instances later.
bool Repeats(const Phase& phase, const std::vector<SlotGroup>& groups, int64_t num_microbatches,
             int64_t period) {
  for (int64_t instance = 0; instance < 200; ++instance) {
    const auto slots_of = [&](int64_t number) {
      const int64_t step = phase.per_microbatch ? number / num_microbatches : number;
      const int64_t microbatch = phase.per_microbatch ? number % num_microbatches : 0;
      std::vector<int64_t> slots = {microbatch};
      for (const SlotGroup& group : groups) {
        slots.push_back((group.per_microbatch ? step * num_microbatches + microbatch : step) %
                        group.slots);
      }
      return slots;
    };
    if (slots_of(instance) != slots_of(instance + period)) return false;
  }
  return true;
}

TEST(PhaseGraphTest, ThePeriodIsTheLeastAfterWhichSlotsRepeat) {
  for (const bool per_microbatch : {false, true}) {
    for (const int64_t num_microbatches : {1, 2, 3, 4}) {
      for (const uint32_t slots : {1, 2, 3, 4, 6}) {
        for (const uint32_t per_step_slots : {1, 2, 3}) {
          Phase phase;
          phase.per_microbatch = per_microbatch;
          const std::vector<SlotGroup> groups = {Slots(slots, true), Slots(per_step_slots, false)};
          const int64_t period = PeriodOf(phase, groups, num_microbatches);
          ASSERT_LE(period, kMaxGraphsOfPhase);
          EXPECT_TRUE(Repeats(phase, groups, num_microbatches, period))
              << period << " with " << slots << " and " << per_step_slots << " slots";
          for (int64_t less = 1; less < period; ++less) {
            EXPECT_FALSE(Repeats(phase, groups, num_microbatches, less))
                << less << " instead of " << period;
          }
        }
      }
    }
  }
}

TEST(PhaseGraphTest, HostCopiesHaveTwoSlots) {
  Phase phase;
  phase.has_host_copies = true;
  EXPECT_EQ(PeriodOf(phase, {}, 1), 2);
  EXPECT_EQ(PeriodOf(phase, {}, 3), 6);
}

TEST(PhaseGraphTest, LongPeriodsDoNotOverflow) {
  Phase phase;
  const std::vector<SlotGroup> groups = {Slots(4'294'967'291u, true), Slots(4'294'967'279u, true)};
  EXPECT_GT(PeriodOf(phase, groups, 1'000'003), kMaxGraphsOfPhase);
}

TEST(PhaseGraphTest, SaysWhyAPhaseIsNotCaptured) {
  Phase phase;
  std::vector<Actor> actors(2);
  EXPECT_EQ(WhyNotCaptured(phase, actors, 1), "");
  EXPECT_EQ(WhyNotCaptured(phase, actors, kMaxGraphsOfPhase), "");
  EXPECT_EQ(WhyNotCaptured(phase, actors, kMaxGraphsOfPhase + 1),
            "its slots repeat after more than 64 instances");
  EXPECT_EQ(WhyNotCaptured(phase, {actors.data(), 1}, 1), "a single act");
  actors[1].num_joins = 1;
  EXPECT_EQ(WhyNotCaptured(phase, actors, 1), "collectives");
  actors[0].runs_on_stream = false;
  EXPECT_EQ(WhyNotCaptured(phase, actors, 1), "communication");
  phase.num_stream_comms = 1;
  EXPECT_EQ(WhyNotCaptured(phase, actors, 1), "collectives");
}

TEST(PhaseGraphTest, DescribesThePhases) {
  EXPECT_EQ(DescribeGraphs({3, 3, {}}), "3 of 3 phases");
  EXPECT_EQ(DescribeGraphs({5, 2, {"communication", "a single act", "communication"}}),
            "2 of 5 phases; others: a single act (1), communication (2)");
}

}  // namespace
}  // namespace penstock::actors
