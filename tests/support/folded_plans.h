// Folded plans of small programs, for tests.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_TESTS_SUPPORT_FOLDED_PLANS_H_
#define PENSTOCK_TESTS_SUPPORT_FOLDED_PLANS_H_

#include <cstdint>

#include "planner/plan/folded_plan.h"

namespace penstock::testing {

struct FoldedExample {
  int64_t dp = 2;
  int64_t tp = 2;
  int num_stages = 2;
  int64_t microbatches = 2;
  int64_t hidden = 12;  // columns that tp splits, evenly or not
  int zero = 0;         // level of ZeRO; parts below kMinPartBytes (zero.h) stay whole
  bool fold = true;
};

// A training step of two products with weights split over tp, and their states.
planner::FoldedPlan FoldedTrainingPlan(const FoldedExample& example = {});

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_FOLDED_PLANS_H_
