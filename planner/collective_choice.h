// Which algorithm and chunks a collective gets: read off a table of measurements, so that a plan
// carries a choice that depends on nothing but the plan.
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

// `num_bytes`: what one rank brings, the largest where ranks differ. REQUIRES: group_size >= 1.
CollectiveChoice ChooseCollective(CollectiveKind kind, int group_size, int64_t num_bytes);

// Sets algorithm and chunk_bytes of a spec that is otherwise complete. Chunks are never so small
// that a run has too many.
void ChooseCollective(CollectiveSpec* spec);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_COLLECTIVE_CHOICE_H_
