// The schedules that a search chooses among.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_SEARCH_SCHEDULES_H_
#define PENSTOCK_PLANNER_SEARCH_SCHEDULES_H_

#include <cstdint>
#include <vector>

#include "planner/policy/policy.h"
#include "planner/search/enumerate_strategies.h"
#include "planner/search/search.h"
#include "planner/strategy/strategy.h"

namespace penstock::planner {

// By so much of its step a schedule has to be faster than any strategy by the first one: more and
// smaller phases cost what estimates do not see.
inline constexpr double kLeastScheduleGain = 0.01;

// The built-in policies that are registered, can be run, and plan the order of a pipeline without
// trying others: 1f1b, which is interleaved where groups have several chunks, first, then simple
// ones before those that split backward phases or place stages back and forth. Without 1f1b, the
// first is another. The policies live as long as the registry or a copy of it.
std::vector<const Policy*> SchedulesToTry(const PolicyRegistry& policies);

// Whether the policy orders `chunks` chunks a group.
bool OrdersChunks(const Policy& policy, int64_t chunks);

// Those of the problem that order the strategy's chunks, in the problem's order; of what is no
// pipeline, or where a strategy is given that none orders, the first.
std::vector<const Policy*> SchedulesOf(const SearchProblem& problem, const Strategy& strategy);

// Whether backward phases are split by this schedule.
bool SplitsBackward(const SearchProblem& problem, const Policy& policy);

// The problem's limits, with no other numbers of chunks than some schedule orders.
SearchLimits LimitsOfSchedules(const SearchProblem& problem);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_SCHEDULES_H_
