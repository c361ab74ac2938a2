// Tokens that continue prompts, with the keys and values of earlier tokens kept in states.
//
// Two sessions share the work: one takes the tokens of prompts in chunks (prefill), the other one
// makes a token of each sequence in a step (decode). Where the devices are in this process, both
// use the same memory, with one copy of parameters, keys and values. In other processes each has
// the parameters, and the keys and values of all slots go from one to the other where the devices
// have them. There are slots for several sequences: when one has ended, its slot takes the next
// prompt while the others go on (continuous batching: Yu et al., "Orca", 2022).
//
// A sequence that fills the model's context goes on from its last half, which is read anew.
//
// Thread rule: one thread; sessions have their own.
// Invariant: the tokens of a prompt does not depend on the other prompts or on the number of slots.

#ifndef PENSTOCK_CLI_GENERATOR_H_
#define PENSTOCK_CLI_GENERATOR_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/environment.h"
#include "cli/inference.h"
#include "cli/job_model.h"

#include "actors/session/session.h"
#include "base/tensor.h"

namespace penstock::cli {

struct GeneratorTimes {
  int64_t prompt_tokens = 0;  // of prompts, as many as the context holds
  int64_t reread_tokens = 0;  // of texts that had filled the context
  // What was read in chunks: all of them but the last token of each text, which goes into the step
  // that makes the first new one.
  int64_t prefill_tokens = 0;
  double prefill_s = 0;
  int64_t tokens = 0;  // made
  double decode_s = 0;
  int64_t steps = 0;  // of decode
};

class Generator {
 public:
  // Where the parameters come from, given those of a plan.
  using GetParameters =
      std::function<absl::StatusOr<Parameters>(const std::vector<planner::StatePlan>&)>;

  // What the layout's strategy splits sequences over (cp, sp) takes whole sequences instead, as dp
  // does; what is for gradients only (subbatches, recompute, offload, optimizer) is ignored.
  // `slots` is rounded up to a multiple of dp times cp. Prompts of up to `prompt_tokens` are read
  // in as few steps as is reasonable, longer ones in more. REQUIRES: the model can generate.
  static absl::StatusOr<std::unique_ptr<Generator>> Start(const Registries& registries,
                                                          const JobModel& model, int64_t slots,
                                                          int64_t prompt_tokens,
                                                          const ForwardLayout& layout,
                                                          const GetParameters& get_parameters);

  // A text as the model sees it.
  using Tokens = std::vector<int32_t>;

  // Told of each token as it is made; returns whether its text is to go on.
  using OnToken = std::function<bool(size_t prompt, int32_t token)>;

  // Continues each prompt by options.num_tokens tokens, or up to one of options.end_tokens.
  // `on_token` may be null. kInvalidArgument: a prompt is empty, or has a token that the model does
  // not know.
  absl::StatusOr<std::vector<Tokens>> Generate(absl::Span<const Tokens> prompts,
                                               const SampleOptions& options,
                                               const OnToken& on_token);

  // Those that it runs, so that they can be stopped.
  std::vector<actors::Session*> sessions() const { return {prefill_.get(), decode_.get()}; }
  int64_t num_slots() const { return static_cast<int64_t>(slots_.size()); }
  // Of all calls of Generate.
  const GeneratorTimes& times() const { return times_; }

 private:
  // A sequence under way.
  struct Slot {
    size_t prompt = 0;
    Tokens text;             // what the model has seen or will see next, at most its context
    int64_t num_made = 0;    // tokens
    int64_t num_cached = 0;  // of the text: what decode has keys and values of
    bool is_free = true;
  };

  Generator(const JobModel& model, int64_t slots);
  absl::Status CheckPrompts(absl::Span<const Tokens> prompts) const;
  void FillSlots(absl::Span<const Tokens> prompts, size_t* next);
  absl::Status Prefill();
  absl::StatusOr<Tensor> Decode();
  absl::StatusOr<Tensor> RunStep(actors::Session& session, Tensor tokens, Tensor start);
  // Copies the keys and values of all slots, where the sessions do not have the same.
  absl::Status MoveCache(const actors::Session& from, actors::Session& to) const;

  const int64_t context_;
  const int64_t vocabulary_;
  int64_t chunk_ = 1;
  std::unique_ptr<actors::Session> prefill_;
  std::unique_ptr<actors::Session> decode_;
  std::vector<Slot> slots_;
  GeneratorTimes times_;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_GENERATOR_H_
