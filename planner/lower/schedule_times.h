// When the phases of a step run if each stage follows its order, as far as the order of stages and
// what passes between phases decide: a forward takes 1, a backward 2, weight gradients 1, and
// communication nothing.
//
// This is one way to run the step. If every value has room for as many micro-batches as it has
// here, this way is possible, and then no other can end in a deadlock (fire_plan.h says why).
//
// Thread rule: a value; const methods from any thread.

#ifndef PENSTOCK_PLANNER_LOWER_SCHEDULE_TIMES_H_
#define PENSTOCK_PLANNER_LOWER_SCHEDULE_TIMES_H_

#include <compare>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "planner/policy/policy.h"

namespace penstock::planner {

// A phase of the compute lane of one stage.
struct StagePhase {
  int stage = 0;
  ChunkPhase phase;
  friend auto operator<=>(const StagePhase&, const StagePhase&) = default;
};

// A phase and one that reads what it makes, in the same micro-batch.
using PhaseReads = std::set<std::pair<StagePhase, StagePhase>>;

class ScheduleTimes {
 public:
  // `orders` are those of the stages. Nothing if they wait for each other for ever.
  static std::optional<ScheduleTimes> Of(const std::vector<std::vector<PhaseChoice>>& orders,
                                         int num_microbatches, const PhaseReads& reads);

  // The most micro-batches of a value that are at once in `stage`, whose `readers` touch it: each
  // until the last of them has ended, from when the first of them has begun, or if another stage
  // makes the value, from when `source` has ended. At least 1; all if one of these is not known.
  int MostHeld(int stage, const std::set<ChunkPhase>& readers,
               const std::optional<StagePhase>& source) const;

 private:
  struct Interval {
    double begin = 0;
    double end = 0;
  };

  std::map<StagePhase, std::vector<Interval>> times_;  // of each micro-batch
  int num_microbatches_ = 1;
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_LOWER_SCHEDULE_TIMES_H_
