// What a plan's inputs are fed: "tokens" and "labels" from text or a token file, "images" and
// "labels" from labelled examples, every other one from where the job says (input_values.h). The
// default text feeds built-in models only: for the inputs of a graph file, whatever their names,
// the job names the text or gives values.
//
// Thread rule: const functions from any thread.

#ifndef PENSTOCK_CLI_FEEDS_H_
#define PENSTOCK_CLI_FEEDS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/data.h"
#include "cli/examples.h"
#include "cli/input_values.h"
#include "cli/job.h"

#include "actors/session/session.h"
#include "planner/plan/plan.h"

namespace penstock::cli {

class StepFeeds {
 public:
  // Errors name the job's key: an input without values, a name that is no input, text or examples
  // that nothing reads, text inputs that are no integers of one shape [batch, context], examples
  // that do not fit, inputs whose files hold values for different numbers of steps.
  static absl::StatusOr<StepFeeds> Create(const planner::Plan& plan, const Job& job);

  // The feeds of step 0, 1, ...
  absl::StatusOr<actors::Feeds> Get(int64_t step) const;

  // Step `step` begins with sequence number `sequence` of the text, or with that example: for a run
  // that goes on where another one has ended, whose steps may have had more or fewer sequences.
  void SetPosition(int64_t step, int64_t sequence) { position_ = {step, sequence}; }
  // The number of the first sequence or example of a step. Where there are neither, each step takes
  // the next values of the inputs.
  int64_t SequenceOf(int64_t step) const {
    return batch_ == 0 ? step : position_.sequence + (step - position_.step) * batch_;
  }

  // Null where the plan reads no text and no token file.
  const Corpus* corpus() const { return corpus_.get(); }
  // Null where the plan reads no examples.
  const Examples* examples() const { return examples_.get(); }
  // Tells one text, set of examples or source of an input from another by their sizes and first
  // MiB; empty where the plan has no inputs.
  std::string Fingerprint() const;
  // Sequences or examples of one step, and tokens of a sequence; 0 where the plan reads none.
  int64_t batch() const { return batch_; }
  int64_t context() const { return context_; }

 private:
  StepFeeds() = default;
  absl::Status OpenText(const planner::Plan& plan, const Job& job);
  absl::Status OpenExamples(const planner::Plan& plan, const Job& job);
  absl::Status OpenInputs(const Job& job);

  std::vector<planner::FeedPlan> text_feeds_;
  std::vector<planner::FeedPlan> example_feeds_;
  std::vector<planner::FeedPlan> other_feeds_;
  int64_t batch_ = 0;
  int64_t context_ = 0;
  struct Position {
    int64_t step = 0;
    int64_t sequence = 0;
  } position_;
  std::unique_ptr<const Corpus> corpus_;  // stays where batches_ refers to it
  std::optional<Batches> batches_;
  std::unique_ptr<const Examples> examples_;
  uint64_t seed_ = 0;  // of the order of examples
  std::vector<InputValues> inputs_;
};

// Tokens and labels as the feeds declare them (i32 or i64); those of other names are left out.
absl::StatusOr<actors::Feeds> TextFeeds(absl::Span<const planner::FeedPlan> feeds,
                                        const Batch& batch);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_FEEDS_H_
