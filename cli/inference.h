// Trained parameters in use: loss on held-out text, and text made by the model. Each compiles a
// forward-only plan of the model and runs it in a session of its own.
//
// Thread rule: one thread; sessions have their own.

#ifndef PENSTOCK_CLI_INFERENCE_H_
#define PENSTOCK_CLI_INFERENCE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/data.h"
#include "cli/environment.h"
#include "cli/job_graph.h"

#include "actors/session.h"

namespace penstock::cli {

using Parameters = absl::flat_hash_map<std::string, Tensor>;

// Of a session that has no step under way: every parameter of its plan.
absl::StatusOr<Parameters> FetchParameters(const actors::Session& session);

// The mean loss in nats over up to `max_sequences` windows of the text, run on up to `num_devices`
// devices. NaN where the text has no window.
absl::StatusOr<double> ValidationLoss(const Registries& registries, const JobModel& model,
                                      const Parameters& parameters, absl::Span<const uint8_t> text,
                                      int64_t max_sequences, int64_t num_devices,
                                      int64_t num_threads);

struct SampleOptions {
  int64_t num_bytes = 0;
  double temperature = 1;  // 0: the likeliest byte
  uint64_t seed = 0;
  int64_t num_threads = 1;
};

// Bytes that continue `prompt`, whose last `context` bytes the model sees first.
// REQUIRES: the prompt has at least `context` bytes.
absl::StatusOr<std::string> GenerateText(const Registries& registries, const JobModel& model,
                                         const Parameters& parameters, std::string_view prompt,
                                         const SampleOptions& options);

// The byte that the uniform draw u in [0, 1) picks from softmax(logits / temperature), of the first
// 256 logits (text is bytes, whatever the vocabulary). At temperature 0 the likeliest, the first of
// equals. REQUIRES: at least one logit.
uint8_t PickByte(absl::Span<const double> logits, double temperature, double u);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_INFERENCE_H_
