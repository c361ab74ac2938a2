// Text that a trained model makes, to show what it has learnt.
//
// Models that keep keys and values make it as `penstock generate` does (generator.h); the others
// read a whole window of the text for each token.
//
// Thread rule: one thread; sessions have their own.

#ifndef PENSTOCK_CLI_SAMPLE_TEXT_H_
#define PENSTOCK_CLI_SAMPLE_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cli/environment.h"
#include "cli/inference.h"
#include "cli/job_model.h"
#include "cli/token_span.h"
#include "cli/tokenizer.h"

namespace penstock::cli {

// About `num_bytes` bytes that continue `prompt`, of which the model sees the last `context`
// tokens; the last token may add more. Without a tokenizer a token is a byte. Takes temperature,
// top_k and seed of the options. A model that fits one device, as its strategy splits the batch
// alone, runs on the first device of the first process. REQUIRES: the prompt has at least `context`
// tokens, num_bytes > 0.
absl::StatusOr<std::string> SampleText(const Registries& registries, const JobModel& model,
                                       const Parameters& parameters, TokenSpan prompt,
                                       const Tokenizer* tokenizer, int64_t num_bytes,
                                       SampleOptions options, const ForwardLayout& layout);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_SAMPLE_TEXT_H_
