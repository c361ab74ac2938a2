#include "base/process_cores.h"

#include <sched.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/machine.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;

ProcessCores On(std::vector<uint32_t> processors, std::vector<CoreQuota> quotas = {}) {
  return {std::move(processors), std::move(quotas)};
}

TEST(ProcessCoresTest, OfThisProcessAreThoseOfTheAffinityMask) {
  std::thread([] {
    cpu_set_t all;
    CPU_ZERO(&all);
    ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
    const ProcessCores cores = CoresOfThisProcess();
    EXPECT_EQ(cores.processors.size(), static_cast<size_t>(CPU_COUNT(&all)));
    for (const uint32_t processor : cores.processors) EXPECT_TRUE(CPU_ISSET(processor, &all));
    EXPECT_EQ(CountCores({cores}), UsableCores());
    // The last one that is allowed.
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cores.processors.back(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_THAT(CoresOfThisProcess().processors, ElementsAre(cores.processors.back()));
    EXPECT_EQ(UsableCores(), 1);
  }).join();
}

TEST(CountCoresTest, AProcessorCountsOnce) {
  EXPECT_EQ(CountCores({On({0}), On({0})}), 1);
  EXPECT_EQ(CountCores({On({0}), On({1})}), 2);
  EXPECT_EQ(CountCores({On({0, 1}), On({1, 2}), On({1, 2})}), 3);
  EXPECT_EQ(CountCores({}), 1);
  EXPECT_EQ(CountCores({On({})}), 1);
}

TEST(CountCoresTest, AQuotaCountsOnceForAGroup) {
  EXPECT_EQ(CountCores({On({0, 1, 2, 3}, {{"a", 1.5}})}), 2);
  EXPECT_EQ(CountCores({On({0, 1}, {{"a", 1}}), On({2, 3}, {{"a", 1}})}), 1);
  EXPECT_EQ(CountCores({On({0, 1}, {{"a", 1}}), On({2, 3}, {{"b", 1}})}), 2);
  // Halves of cores add up, before a part of a core counts as one.
  EXPECT_EQ(CountCores({On({0, 1}, {{"a", 0.5}}), On({2, 3}, {{"b", 0.5}})}), 1);
  EXPECT_EQ(CountCores({On({0}, {{"a", 0.5}}), On({0}, {{"b", 0.25}})}), 1);
  EXPECT_EQ(CountCores({On({0, 1}, {{"a", 100}})}), 2);
}

TEST(CountCoresTest, AParentsQuotaIsSharedByItsGroups) {
  const std::vector<ProcessCores> processes = {On({0, 1, 2, 3}, {{"a", 2}, {"top", 3}}),
                                               On({0, 1, 2, 3}, {{"b", 2}, {"top", 3}})};
  EXPECT_EQ(CountCores({processes[0]}), 2);
  EXPECT_EQ(CountCores(processes), 3);
}

// As of a process in a container, which sees its own group as the top, and one outside.
TEST(CountCoresTest, AParentsQuotaHoldsForAProcessThatDoesNotSeeIt) {
  const ProcessCores inside = On({0, 1}, {{"g", 2}});
  const ProcessCores outside = On({0, 1}, {{"g", 2}, {"p", 1}});
  EXPECT_EQ(CountCores({inside, outside}), 1);
  EXPECT_EQ(CountCores({outside, inside}), 1);
  // Two levels, each seen by another process.
  const ProcessCores top = On({2, 3}, {{"p", 2}, {"top", 1}});
  const ProcessCores middle = On({0, 1}, {{"g", 2}, {"p", 2}});
  EXPECT_EQ(CountCores({inside, middle, top}), 1);
  EXPECT_EQ(CountCores({top, middle, inside}), 1);
}

TEST(CountCoresTest, AHierarchyMountedTwiceCountsOnce) {
  EXPECT_EQ(CountCores({On({0, 1, 2, 3}, {{"g", 3}, {"p", 2}, {"g", 3}, {"p", 2}})}), 2);
}

// The example of the header; and one where neither all masks nor all quotas are the bound.
TEST(CountCoresTest, MasksAndQuotasHoldAtOnce) {
  const std::vector<ProcessCores> processes = {On({0, 1}), On({0, 1}, {{"g", 1}}),
                                               On({2, 3}, {{"g", 1}})};
  EXPECT_EQ(CountCores({processes[0], processes[1]}), 2);
  EXPECT_EQ(CountCores({processes[1], processes[2]}), 1);
  EXPECT_EQ(CountCores(processes), 3);
  EXPECT_EQ(CountCores({On({0}), On({0}), On({1, 2, 3}, {{"g", 1}})}), 2);
  // The flow has to take back that the first process uses processor 0.
  EXPECT_EQ(CountCores({On({0, 1}, {{"a", 1}}), On({0}, {{"b", 1}})}), 2);
}

TEST(CountCoresTest, WorksForLargeHosts) {
  std::vector<ProcessCores> processes;
  for (uint32_t i = 0; i < 256; ++i) {
    ProcessCores& process = processes.emplace_back();
    for (uint32_t processor = 0; processor < 512; ++processor) {
      process.processors.push_back(processor);
    }
    process.quotas = {{std::to_string(i), 1.5}, {"pods", 300}};
  }
  EXPECT_EQ(CountCores(processes), 300);
}

TEST(FindCoreSharersTest, OverlapAndScarceQuotasJoin) {
  EXPECT_THAT(FindCoreSharers({}), ElementsAre());
  EXPECT_THAT(FindCoreSharers({On({0}), On({1}), On({0})}), ElementsAre(0, 1, 0));
  EXPECT_THAT(FindCoreSharers({On({0, 1}), On({2, 3}), On({1, 2})}), ElementsAre(0, 0, 0));
  EXPECT_THAT(FindCoreSharers({On({0}, {{"a", 1}}), On({1}, {{"a", 1}}), On({2})}),
              ElementsAre(0, 0, 1));
  // There is enough for all.
  EXPECT_THAT(FindCoreSharers({On({0}, {{"a", 2}}), On({1}, {{"a", 2}})}), ElementsAre(0, 1));
  EXPECT_THAT(FindCoreSharers({On({0}, {{"a", 1}, {"top", 1}}), On({1}, {{"b", 1}, {"top", 1}})}),
              ElementsAre(0, 0));
}

}  // namespace
}  // namespace penstock
