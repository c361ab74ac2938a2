// What a plan's inputs are fed: "tokens" and "labels" from text, everything else drawn.
//
// Thread rule: a StepFeeds is immutable; Get may be called from any thread.

#ifndef PENSTOCK_CLI_FEEDS_H_
#define PENSTOCK_CLI_FEEDS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/data.h"

#include "actors/session.h"
#include "base/random.h"
#include "base/tensor.h"
#include "planner/plan.h"

namespace penstock::cli {

// Standard normal floats; integers 0 to 3; bools. A function of the key and the element's index.
absl::StatusOr<Tensor> DrawTensor(const TensorType& type, const RandomKey& key);

class StepFeeds {
 public:
  // Sequences and tokens of one step; 0 and 0 where the plan reads no text.
  struct Sizes {
    int64_t batch = 0;
    int64_t context = 0;
  };
  // Of a plan's feeds: those called "tokens" and "labels" must be integers of one shape [batch,
  // context].
  static absl::StatusOr<Sizes> TextSizes(const planner::Plan& plan);

  // `corpus` may be null where TextSizes gives 0. Both outlive this object.
  StepFeeds(const planner::Plan& plan, const Corpus* corpus, Sizes sizes, uint64_t seed);

  // The feeds of step 0, 1, ...
  absl::StatusOr<actors::Feeds> Get(int64_t step) const;

 private:
  const planner::Plan& plan_;
  std::optional<Batches> batches_;
  uint64_t seed_;
};

// Tokens and labels as the plan declares them (i32 or i64); a plan that reads only one gets it.
absl::StatusOr<actors::Feeds> TextFeeds(const planner::Plan& plan, const Batch& batch);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_FEEDS_H_
