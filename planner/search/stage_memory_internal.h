// What the stages of a graph hold in memory, and what passes between them: parts of MeasureWork
// (stage_work.h, which says by which rules).
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_SEARCH_STAGE_MEMORY_INTERNAL_H_
#define PENSTOCK_PLANNER_SEARCH_STAGE_MEMORY_INTERNAL_H_

#include "planner/search/stage_work.h"
#include "planner/search/staged_graph_internal.h"
#include "planner/search/work_groups_internal.h"
#include "planner/sharding/send_sharding.h"

namespace penstock::planner {

// Adds all of `memory` but what states take, and all transfers, to `work`, whose stages are there.
void AddMemoryAndTransfers(const StagedGraph& staged, const SendCosts& send_costs,
                           WorkGroups* groups, ModelWork* work);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_STAGE_MEMORY_INTERNAL_H_
