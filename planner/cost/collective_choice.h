// Which algorithm and chunks a collective gets: read off a table of measurements, so that a choice,
// and with it the association of a reduction, depends on nothing but the plan. Where its processes
// will be, a plan does not know; it is told for how many hosts to choose.
//
// Example: of 20 MiB the row of 16 MiB counts; in it, the first way that is as good as the best.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_COST_COLLECTIVE_CHOICE_H_
#define PENSTOCK_PLANNER_COST_COLLECTIVE_CHOICE_H_

#include <cstdint>
#include <vector>

#include "base/collective.h"

namespace penstock::planner {

struct CollectiveChoice {
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kDirect;
  int64_t chunk_bytes = 256 << 10;

  friend bool operator==(const CollectiveChoice&, const CollectiveChoice&) = default;
};

// `num_bytes`: what one rank brings. REQUIRES: 1 <= num_hosts <= group_size, num_bytes >= 0.
CollectiveChoice ChooseCollective(CollectiveKind kind, int group_size, int num_hosts,
                                  int64_t num_bytes);

// Sets algorithm, chunk_bytes and hosts of a spec that is otherwise complete, by the rank that
// brings most. `hosts`: of each rank.
void ChooseCollective(const std::vector<uint32_t>& hosts, CollectiveSpec* spec);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_COST_COLLECTIVE_CHOICE_H_
