// Where a model is cut into stages, so that the slowest is as fast as possible and none holds more
// than its devices have.
//
// Groups of devices may differ: a stage on slower devices gets fewer of the model's segments, one
// on devices with less memory those that fit. Stages lie on groups as the policy wants; a group
// whose devices differ among themselves is as slow as its slowest.
//
// Example: 12 equal layers on two groups, the first of which is twice as fast: 8 and 4.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_SEARCH_CUT_STAGES_H_
#define PENSTOCK_PLANNER_SEARCH_CUT_STAGES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "planner/search/estimate.h"
#include "planner/search/machine.h"
#include "planner/search/stage_work.h"

namespace penstock::planner {

// What the parts of a cut may hold.
struct CutMemory {
  std::vector<double> kept_bytes;       // of each element: states and gradients
  std::vector<double> in_flight_bytes;  // of each element, for every micro-batch in flight
  std::vector<int> in_flight;           // micro-batches, by part
  std::vector<double> limit_bytes;      // by part
};

// Cuts a sequence of costs into `num_parts` contiguous parts, not empty, so that the largest sum is
// as small as possible, up to one part in 10^9: the first element of each. The earlier parts are as
// large as that allows. With `memory`, no part holds more than its limit; empty if that cannot be.
//
// A limit on the largest sum is tried by finding, from the last part to the first, where each can
// begin; limits are bisected.
//
// Example: costs {1, 1, 1, 1, 1, 1} and 2 parts are cut at {0, 3}. If each element costs the second
// part 2, as its devices are half as fast, at {0, 4}.
//
// `costs`: of each part, the costs of all elements. REQUIRES: 1 <= costs.size() <= costs[0].size().
std::vector<int> CutEvenly(absl::Span<const std::vector<double>> costs,
                           const CutMemory* memory = nullptr);

// An element costs every part the same.
std::vector<int> CutEvenly(absl::Span<const double> cost, int num_parts,
                           const CutMemory* memory = nullptr);

struct StageCut {
  std::vector<int> starts;  // of each stage, its first segment
  StepEstimate estimate;
  bool is_limited = false;  // by memory: there is a cut with a faster slowest stage
  double fastest_s = 0;     // of that: its step
};

// Cuts segments into stages, one for each group and chunk. Where the cut with the fastest slowest
// stage does not fit into memory, earlier stages, which keep more micro-batches in flight, may have
// to do with less; if nothing fits, the answer is the fastest cut nevertheless. Of cuts whose steps
// are above EstimateOptions::limit_s, only that is known, also if only they fit. `works`: of each
// group, the work of the segments on its devices; they differ in seconds alone. Errors are those of
// EstimateStep.
//
// A group with several chunks shares its memory out among them as the fastest cut does: each part
// keeps within its share. So there may be a cut that fits, with uneven shares, that is not found.
// REQUIRES: there are as many segments as stages.
absl::StatusOr<StageCut> CutStages(absl::Span<const ModelWork* const> works, const Machine& machine,
                                   const EstimateOptions& options);

// A cut, and which group of devices has which part.
struct ArrangedCut {
  StageCut cut;
  std::vector<int> device_groups;  // see EstimateOptions; empty: in their order
};

// The best cut on groups of devices that may be in any of the arrangements (arrange_groups.h):
// the fastest that fits, or what comes nearest. `works`: of each group of devices. Of arrangements
// that are as good, the first. The arrangement in `options` does not count.
absl::StatusOr<ArrangedCut> CutOnGroups(absl::Span<const ModelWork* const> works,
                                        absl::Span<const std::vector<int>> arrangements,
                                        const Machine& machine, EstimateOptions options);

// Moves the begins of single stages as long as that makes the step faster; what fits goes on to
// fit. Tries at most kMaxMoves cuts.
inline constexpr int kMaxMoves = 200;
absl::Status RefineStages(absl::Span<const ModelWork* const> works, const Machine& machine,
                          const EstimateOptions& options, StageCut* cut);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_CUT_STAGES_H_
