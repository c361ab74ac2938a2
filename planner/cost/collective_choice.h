// Which algorithm and chunks a collective gets: read off measurements, so that a choice, and with
// it the association of a reduction, depends on nothing but the plan and what it was compiled for.
// Where its processes will be, a plan does not know; it is told for how many hosts to choose.
//
// Measurements are those of the cluster's description (`penstock profile` makes them). What it
// lacks is taken from default_collectives.toml, which is built in.
//
// Example: of 20 MiB the times of 16 MiB count; of them, the first variant that is as good as the
// best.
//
// A ring rounds reductions of 16-bit floats after each term (base/collective.h), so those of more
// than two ranks never take one: the best of the other variants is chosen.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_COST_COLLECTIVE_CHOICE_H_
#define PENSTOCK_PLANNER_COST_COLLECTIVE_CHOICE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "base/collective.h"
#include "base/dtype.h"
#include "planner/cluster/measured_collective.h"

namespace penstock::planner {

// Those of default_collectives.toml.
absl::Span<const MeasuredCollective> DefaultCollectives();

// `num_bytes`: what one rank brings. REQUIRES: 1 <= num_hosts <= group_size, num_bytes >= 0.
CollectiveVariant ChooseCollective(CollectiveKind kind, int group_size, int num_hosts,
                                   int64_t num_bytes,
                                   absl::Span<const MeasuredCollective> measured = {},
                                   DType dtype = DType::kF32);

// Sets algorithm, chunk_bytes and hosts of a spec that is otherwise complete, by the rank that
// brings most. `hosts`: of each rank.
void ChooseCollective(const std::vector<uint32_t>& hosts,
                      absl::Span<const MeasuredCollective> measured, CollectiveSpec* spec);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_COST_COLLECTIVE_CHOICE_H_
