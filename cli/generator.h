// Text that continues prompts, with the keys and values of earlier tokens kept in states.
//
// Two sessions share the work: one takes the tokens of prompts in chunks (prefill), the other one
// makes a token of each sequence in a step (decode). Each has the parameters; keys and values go
// from one to the other where their devices have them. There are slots for several sequences: when
// one has ended, its slot takes the next prompt while the others go on (continuous batching: Yu et
// al., "Orca", 2022).
//
// A sequence that fills the model's context goes on from its last half, which is read anew.
//
// Thread rule: one thread; sessions have their own.
// Invariant: the text of a prompt does not depend on the other prompts or on the number of slots.

#ifndef PENSTOCK_CLI_GENERATOR_H_
#define PENSTOCK_CLI_GENERATOR_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/environment.h"
#include "cli/inference.h"
#include "cli/job_graph.h"

#include "actors/session/session.h"
#include "base/tensor.h"

namespace penstock::cli {

struct GeneratorTimes {
  int64_t prompt_tokens = 0;  // read in chunks
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

  // `slots` is rounded up to a multiple of the layout's dp. Prompts of up to `prompt_bytes` are
  // read in as few steps as is reasonable, longer ones in more. REQUIRES: the model can generate.
  static absl::StatusOr<std::unique_ptr<Generator>> Start(const Registries& registries,
                                                          const JobModel& model, int64_t slots,
                                                          int64_t prompt_bytes,
                                                          const ForwardLayout& layout,
                                                          const GetParameters& get_parameters);

  // Continues each prompt by options.num_bytes bytes. `on_byte`, which may be null, is told each
  // byte as it is made. kInvalidArgument: a prompt is empty.
  absl::StatusOr<std::vector<std::string>> Generate(
      absl::Span<const std::string> prompts, const SampleOptions& options,
      const std::function<void(size_t prompt, char byte)>& on_byte);

  int64_t num_slots() const { return static_cast<int64_t>(slots_.size()); }
  // Of all calls of Generate.
  const GeneratorTimes& times() const { return times_; }

 private:
  // A sequence under way.
  struct Slot {
    size_t prompt = 0;
    std::string text;        // what the model has seen or will see next, at most its context
    int64_t num_made = 0;    // bytes
    int64_t num_cached = 0;  // of the text: what decode has keys and values of
    bool is_free = true;
  };

  Generator(const JobModel& model, int64_t slots);
  absl::Status Prefill();
  absl::StatusOr<Tensor> Decode();
  absl::StatusOr<Tensor> RunStep(actors::Session& session, Tensor tokens, Tensor start);
  // Copies the keys and values of all slots.
  static absl::Status MoveCache(const actors::Session& from, actors::Session& to);

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
