// Which algorithm and chunks a collective gets: read off a table of measurements, so that a choice,
// and with it the association of a reduction, depends on nothing but the plan. A plan knows logical
// devices only, so there is one table wherever its processes will be; it was measured between
// processes of one host.
//
// Example: of 20 MiB the row of 16 MiB counts; in it, the first way that is as good as the best.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_COLLECTIVE_CHOICE_H_
#define PENSTOCK_PLANNER_COLLECTIVE_CHOICE_H_

#include <cstdint>

#include "base/collective.h"

namespace penstock::planner {

struct CollectiveChoice {
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kDirect;
  int64_t chunk_bytes = 256 << 10;

  friend bool operator==(const CollectiveChoice&, const CollectiveChoice&) = default;
};

// `num_bytes`: what one rank brings. REQUIRES: group_size >= 1, num_bytes >= 0.
CollectiveChoice ChooseCollective(CollectiveKind kind, int group_size, int64_t num_bytes);

// Sets algorithm and chunk_bytes of a spec that is otherwise complete, by the rank that brings
// most.
void ChooseCollective(CollectiveSpec* spec);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_COLLECTIVE_CHOICE_H_
