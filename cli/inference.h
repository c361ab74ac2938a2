// Trained parameters in use: loss on held-out text, and picking tokens for text (sample_text.h,
// generator.h). Each compiles a forward-only plan of the model, laid out as it was trained, and
// runs it in a session of its own, in the processes that keep the parameters; so these need not
// travel.
//
// Thread rule: one thread; sessions have their own.

#ifndef PENSTOCK_CLI_INFERENCE_H_
#define PENSTOCK_CLI_INFERENCE_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/data.h"
#include "cli/device_list.h"
#include "cli/environment.h"
#include "cli/examples.h"
#include "cli/job_model.h"

#include "actors/session/session.h"
#include "base/machine.h"
#include "planner/strategy/strategy.h"

namespace penstock::cli {

// The parameters of a model, which the processes that trained it keep.
using Parameters = std::shared_ptr<const actors::KeptStates>;

// Where and how a model lies while it is used.
struct ForwardLayout {
  planner::Strategy strategy;                                // of the training
  planner::Placement placement = planner::Placement::kLoop;  // likewise, of its virtual stages
  int64_t sequences_per_step = 1;                            // of a micro-batch of the training
  DeviceList devices;                                        // their kinds
  int64_t num_threads = 1;                                   // of each device
  std::vector<uint32_t> host_devices;                        // of each host; empty: all on one
  actors::EngineFactory start_engine;                        // null: the devices of this process
  uint32_t num_processes = 0;  // that it starts, the first ones; 0: all
  // Told of the sessions that run, so that they can be stopped; of none when they have run.
  std::function<void(absl::Span<actors::Session* const>)> on_sessions =
      [](absl::Span<actors::Session* const>) {};
};

// A session that runs the model for a use. The states that were not kept begin as in training.
// `memory_of`, which may be null: see SessionOptions.
absl::StatusOr<std::unique_ptr<actors::Session>> StartModel(
    const Registries& registries, const JobModel& model, graph::ModelUse use, int64_t batch,
    const ForwardLayout& layout, const Parameters& parameters,
    const actors::Session* memory_of = nullptr);

// What a model is validated on: items, each a sequence or an image, by their numbers from 0.
struct HeldOut {
  int64_t count = 0;
  std::function<absl::StatusOr<actors::Feeds>(absl::Span<const planner::FeedPlan> feeds,
                                              absl::Span<const int64_t> items)>
      feeds = nullptr;
};
// Up to `max_sequences` windows of `context` tokens. `text` outlives the result.
HeldOut HeldOutText(TokenSpan text, int64_t context, int64_t max_sequences);
// Up to `most` rows that are held out. `examples` outlives the result.
HeldOut HeldOutExamples(const Examples& examples, int64_t most);

// The loss on held-out data of a model that is trained, measured any number of times.
//
// The session that computes it stays open from one time to the next, where memory allows. The
// processes of a cluster count the memory of their sessions and of what they keep: where it does
// not suffice, Release closes the session. In this process it is closed each time if it and the
// training do not fit together.
class Validator {
 public:
  // The same items under any layout. The environment and the model outlive the validator.
  // `memory_bytes` is what there is in this process.
  Validator(const Environment& environment, const JobModel& model, HeldOut held_out,
            ForwardLayout layout, uint64_t memory_bytes = MachineMemoryBytes());
  ~Validator();

  // The mean loss in nats of the parameters that a session has now. No step is under way in it.
  // NaN where nothing is held out.
  absl::StatusOr<double> LossOf(const actors::Session& trained);
  // The same of parameters that were kept.
  absl::StatusOr<double> Loss(const Parameters& parameters);

  // Of a classifier, the fraction of the items that it got right when the loss was measured last;
  // NaN: not measured, or another model.
  double accuracy() const { return accuracy_; }

  // Keeps the parameters that a session has, and what else decides what the model computes;
  // releases memory if they need it.
  absl::StatusOr<Parameters> KeepParameters(const actors::Session& trained);

  // Closes the session if it is open, and returns whether it was. From then on it is opened each
  // time; a note says so the first time.
  bool Release();

  bool is_open() const { return forward_ != nullptr; }

 private:
  absl::StatusOr<double> MeanLoss(const Parameters& parameters);
  // Whether this process has the memory for both sessions.
  bool Fits(const actors::Session& trained) const;

  const Environment& environment_;
  const JobModel& model_;
  const HeldOut held_out_;
  const ForwardLayout layout_;
  const uint64_t memory_bytes_;
  bool stays_open_ = true;
  double accuracy_ = std::numeric_limits<double>::quiet_NaN();
  std::unique_ptr<actors::Session> forward_;  // runs the model; null: closed
};

struct SampleOptions {
  int64_t num_tokens = 0;
  double temperature = 1;  // 0: the likeliest token
  int64_t top_k = 0;       // only of so many likeliest tokens; 0: of all
  int64_t num_choices =
      256;  // of the first tokens of the vocabulary: bytes, or those of a tokenizer
  std::vector<int32_t> end_tokens = {};  // that end a text and are not part of it
  uint64_t seed = 0;
};

// The token that the uniform draw u in [0, 1) picks from softmax(logits / temperature), of the
// first options.num_choices logits and of those the options.top_k largest. At temperature 0 the
// likeliest; of equals the first. REQUIRES: at least one logit and one choice.
int32_t PickToken(absl::Span<const double> logits, const SampleOptions& options, double u);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_INFERENCE_H_
