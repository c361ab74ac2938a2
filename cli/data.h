// Text as training data: bytes of files, split into training and validation, cut into sequences.
//
// The batch of a step is a pure function of (seed, step), so every parallel layout, and a run that
// was resumed, trains on the same sequences in the same order.
//
// Thread rule: a Corpus is a value; concurrent reads are safe.

#ifndef PENSTOCK_CLI_DATA_H_
#define PENSTOCK_CLI_DATA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/mapped_text.h"
#include "cli/token_file.h"
#include "cli/token_span.h"

#include "base/tensor.h"

namespace penstock::cli {

class TokenCache;
class Tokenizer;

// Of each file the last tenth is held out, so that the validation text is of the same kinds as the
// training text.
struct Corpus {
  std::shared_ptr<const MappedText> train = nullptr;
  std::shared_ptr<const MappedText> validation = nullptr;
  double unigram_entropy = 0;  // of all tokens, in nats; NaN: not known
  // Holds the tokens in place of the two texts; null: there is text.
  std::shared_ptr<const TokenFile> file = nullptr;
  // Holds those for validation; null: they are the last ones of `file`.
  std::shared_ptr<const TokenFile> validation_file = nullptr;
  int64_t num_held_out = 0;  // of the tokens of `file` at least, where its last tenth is held out
  // Whose tokens they are; null: they are bytes, or `file` does not say.
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;

  // Whether tokens can be shown as text.
  bool is_text() const { return file == nullptr || tokenizer != nullptr; }

  TokenSpan train_tokens() const;
  TokenSpan validation_tokens() const;
};

// The files that are meant by paths of files and folders, those of a folder sorted. Symbolic links
// inside folders are skipped. Errors: a path that is not there or cannot be read.
absl::StatusOr<std::vector<std::string>> ListTextFiles(absl::Span<const std::string> paths);

// Maps files, and the files of folders and theirs; paths are sorted. Symbolic links inside folders
// are skipped. Errors: a path that is not there or cannot be read, no bytes at all, fewer bytes
// than two sequences of `context` tokens and their next bytes.
absl::StatusOr<Corpus> LoadCorpus(absl::Span<const std::string> paths, int64_t context);

// All bytes of files and folders, as LoadCorpus reads them, with nothing held out. An error where
// they are fewer than one sequence of `context` tokens and its next byte.
absl::StatusOr<std::shared_ptr<const MappedText>> LoadText(absl::Span<const std::string> paths,
                                                           int64_t context);

// Of two texts that were loaded apart. REQUIRES: neither is empty.
Corpus JoinCorpus(std::shared_ptr<const MappedText> train,
                  std::shared_ptr<const MappedText> validation);

// The tokens of texts (token_cache.h). With `validation` empty, the last tenth of each file is held
// out, or one sequence of all tokens if that is less. Errors: as of LoadCorpus and LoadText.
absl::StatusOr<Corpus> LoadEncodedText(const TokenCache& cache, absl::Span<const std::string> text,
                                       absl::Span<const std::string> validation, int64_t context);

// The tokens of a file (token_file.h), of which the last tenth is held out, or at least one
// sequence. Errors begin with the path.
absl::StatusOr<Corpus> LoadTokens(const std::string& path, int width, int64_t context);

// -sum p ln p over the frequencies p of values that occur so often. REQUIRES: some value occurs.
double EntropyOfCounts(absl::Span<const int64_t> counts);

// tokens and labels, i32[batch, context]; labels are the tokens one further on.
struct Batch {
  Tensor tokens;
  Tensor labels;
};

// Sequences for training. An epoch visits windows of `context` + 1 bytes, one at every `context`
// bytes from an offset of its own, each once, in a shuffled order.
class Batches {
 public:
  // REQUIRES: train.size() > context >= 1, batch >= 1; `train` outlives this object.
  Batches(TokenSpan train, int64_t batch, int64_t context, uint64_t seed);

  // The batch of step 0, 1, ...
  Batch Get(int64_t step) const { return From(step * batch_); }
  // The batch that begins with the n-th sequence of the run.
  Batch From(int64_t n) const;

  int64_t windows_per_epoch() const { return windows_; }

  // First byte of the n-th sequence of the run.
  int64_t Start(int64_t n) const;

 private:
  TokenSpan train_;
  int64_t batch_;
  int64_t context_;
  uint64_t seed_;
  int64_t max_offset_;
  int64_t windows_;
};

// Position of `index` in the permutation of [0, count) numbered `epoch`: a Feistel network of
// Philox rounds, walked until it lands in the range (Black & Rogaway 2002).
int64_t ShuffledIndex(int64_t index, int64_t count, uint64_t seed, uint32_t epoch);

// Starts of up to `max_sequences` windows of `context` + 1 bytes that do not overlap in their
// tokens, spread evenly over the text. Empty when the text holds none.
std::vector<int64_t> ValidationStarts(int64_t text_size, int64_t context, int64_t max_sequences);

// The windows that start at `starts`.
Batch MakeBatch(TokenSpan text, absl::Span<const int64_t> starts, int64_t context);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_DATA_H_
