#include "cli/data.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>
#include <utility>

#include "cli/token_cache.h"

#include "base/random.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;

// Streams of the run's seed that no model uses (models count from 0).
constexpr uint32_t kShuffleStream = 0xda7a0001;
constexpr uint32_t kOffsetStream = 0xda7a0002;

constexpr int kFeistelRounds = 6;

// The files that `path` stands for, sorted.
absl::StatusOr<std::vector<fs::path>> ListFiles(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return absl::NotFoundError(StrCat(path, ": no such file or folder"));
  if (fs::is_regular_file(status)) return std::vector<fs::path>{path};
  if (!fs::is_directory(status)) {
    return absl::InvalidArgumentError(StrCat(path, ": neither a file nor a folder"));
  }
  std::vector<fs::path> files;
  fs::recursive_directory_iterator it(path, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    const fs::file_status entry = it->symlink_status(error);
    if (error) break;
    if (fs::is_regular_file(entry)) files.push_back(it->path());
  }
  if (error) return absl::InvalidArgumentError(StrCat(path, ": ", error.message()));
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

double EntropyOfCounts(absl::Span<const int64_t> counts) {
  const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  double entropy = 0;
  for (const int64_t count : counts) {
    if (count == 0) continue;
    const double p = static_cast<double>(count) / total;
    entropy -= p * std::log(p);
  }
  return entropy;
}

namespace {

using Files = std::vector<std::shared_ptr<const MappedFile>>;

absl::StatusOr<Files> OpenFiles(absl::Span<const std::string> paths) {
  Files files;
  ASSIGN_OR_RETURN(const std::vector<std::string> listed, ListTextFiles(paths));
  for (const std::string& path : listed) {
    ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file, MappedFile::Open(path));
    files.push_back(std::move(file));
  }
  return files;
}

int64_t SizeOf(const MappedFile& file) { return static_cast<int64_t>(file.bytes().size()); }

// All bytes of the files but the first `skipped` and the last `left`.
std::shared_ptr<const MappedText> TextWithout(const Files& files, int64_t skipped, int64_t left) {
  int64_t total = 0;
  for (const auto& file : files) total += SizeOf(*file);
  std::vector<MappedText::Part> parts;
  int64_t begin = 0;  // of the file in all bytes
  for (const auto& file : files) {
    const int64_t first = std::clamp<int64_t>(skipped - begin, 0, SizeOf(*file));
    const int64_t end = std::clamp<int64_t>(total - left - begin, first, SizeOf(*file));
    parts.push_back({file, first, end - first});
    begin += SizeOf(*file);
  }
  return std::make_shared<const MappedText>(std::move(parts));
}

absl::StatusOr<Corpus> DivideText(const Files& files, int64_t context) {
  std::vector<MappedText::Part> train;
  std::vector<MappedText::Part> validation;
  int64_t total = 0;
  for (const auto& file : files) {
    const int64_t size = SizeOf(*file);
    const int64_t held_out = size / 10;
    train.push_back({file, 0, size - held_out});
    validation.push_back({file, size - held_out, held_out});
    total += size;
  }
  if (total == 0) return absl::InvalidArgumentError("the text is empty");
  const int64_t window = context + 1;
  if (total < 2 * window) {
    return absl::InvalidArgumentError(StrCat("the text has ", total,
                                             " bytes; sequences of context = ", context,
                                             " tokens need at least ", 2 * window));
  }
  auto train_text = std::make_shared<const MappedText>(std::move(train));
  auto validation_text = std::make_shared<const MappedText>(std::move(validation));
  // A text too short for the rule gives up one window from its end.
  if (validation_text->size() < window || train_text->size() < window) {
    train_text = TextWithout(files, 0, window);
    validation_text = TextWithout(files, total - window, 0);
  }
  return JoinCorpus(std::move(train_text), std::move(validation_text));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ListTextFiles(absl::Span<const std::string> paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(const std::vector<fs::path> listed, ListFiles(path));
    for (const fs::path& file : listed) files.push_back(file.string());
  }
  return files;
}

absl::StatusOr<std::shared_ptr<const MappedText>> LoadText(absl::Span<const std::string> paths,
                                                           int64_t context) {
  ASSIGN_OR_RETURN(const Files files, OpenFiles(paths));
  std::shared_ptr<const MappedText> text = TextWithout(files, 0, 0);
  if (text->size() > context) return text;
  return absl::InvalidArgumentError(StrCat(
      penstock::StrJoin(paths, ", "), ": the text has ", text->size(),
      " bytes; one sequence of context = ", context, " tokens needs at least ", context + 1));
}

Corpus JoinCorpus(std::shared_ptr<const MappedText> train,
                  std::shared_ptr<const MappedText> validation) {
  std::array<int64_t, 256> counts = {};
  train->CountBytes(&counts);
  validation->CountBytes(&counts);
  Corpus corpus;
  corpus.unigram_entropy = EntropyOfCounts(counts);
  corpus.train = std::move(train);
  corpus.validation = std::move(validation);
  return corpus;
}

absl::StatusOr<Corpus> LoadCorpus(absl::Span<const std::string> paths, int64_t context) {
  ASSIGN_OR_RETURN(const Files files, OpenFiles(paths));
  absl::StatusOr<Corpus> corpus = DivideText(files, context);
  if (!corpus.ok()) {
    return absl::InvalidArgumentError(StrCat(ToStd(corpus.status().message()), " (read from ",
                                             penstock::StrJoin(paths, ", "), ")"));
  }
  return corpus;
}

int64_t ShuffledIndex(int64_t index, int64_t count, uint64_t seed, uint32_t epoch) {
  if (count <= 1) return 0;
  // Two halves of `bits` bits each cover the range; at most four times too many.
  const int bits = (std::bit_width(static_cast<uint64_t>(count - 1)) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  const RandomKey key = {seed, kShuffleStream, epoch};
  auto value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> bits;
    uint64_t right = value & mask;
    for (int round = 0; round < kFeistelRounds; ++round) {
      const uint64_t block = (uint64_t{static_cast<uint32_t>(round)} << 56) | right;
      const uint64_t mixed = left ^ (PhiloxBlock(key, block)[0] & mask);
      left = right;
      right = mixed;
    }
    value = (left << bits) | right;
  } while (value >= static_cast<uint64_t>(count));
  return static_cast<int64_t>(value);
}

TokenSpan Corpus::train_tokens() const {
  if (file == nullptr) return train->tokens();
  if (validation_file != nullptr) return file->tokens();
  return file->tokens().subspan(0, file->tokens().size() - validation_tokens().size());
}

TokenSpan Corpus::validation_tokens() const {
  if (file == nullptr) return validation->tokens();
  if (validation_file != nullptr) return validation_file->tokens();
  const TokenSpan all = file->tokens();
  const int64_t count = std::max(num_held_out, all.size() / 10);
  return all.subspan(all.size() - count, count);
}

absl::StatusOr<Corpus> LoadTokens(const std::string& path, int width, int64_t context) {
  Corpus corpus;
  ASSIGN_OR_RETURN(corpus.file, TokenFile::Open(path, width));
  corpus.unigram_entropy = std::numeric_limits<double>::quiet_NaN();
  corpus.num_held_out = context + 1;
  if (corpus.file->tokens().size() < 2 * corpus.num_held_out) {
    return absl::InvalidArgumentError(StrCat(path, ": holds ", corpus.file->tokens().size(),
                                             " tokens; sequences of context = ", context,
                                             " tokens need at least ", 2 * corpus.num_held_out));
  }
  return corpus;
}

namespace {

// Over the frequencies of both.
double EntropyOf(TokenSpan train, TokenSpan validation, int32_t num_tokens) {
  std::vector<int64_t> counts(static_cast<size_t>(num_tokens), 0);
  for (const TokenSpan& tokens : {train, validation}) {
    for (int64_t i = 0; i < tokens.size(); ++i) ++counts[static_cast<size_t>(tokens[i])];
  }
  return EntropyOfCounts(counts);
}

absl::Status TooFewTokens(absl::Span<const std::string> paths, int64_t count, int64_t context,
                          int64_t needed) {
  return absl::InvalidArgumentError(
      StrCat(penstock::StrJoin(paths, ", "), ": the text has ", count, " tokens; ",
             needed == context + 1 ? "one sequence" : "sequences", " of context = ", context,
             " tokens ", needed == context + 1 ? "needs" : "need", " at least ", needed));
}

}  // namespace

absl::StatusOr<Corpus> LoadEncodedText(const TokenCache& cache, absl::Span<const std::string> text,
                                       absl::Span<const std::string> validation, int64_t context) {
  const int64_t window = context + 1;
  Corpus corpus;
  corpus.tokenizer = cache.tokenizer();
  ASSIGN_OR_RETURN(const std::vector<std::string> files, ListTextFiles(text));
  if (!validation.empty()) {
    ASSIGN_OR_RETURN(const std::vector<std::string> held_out, ListTextFiles(validation));
    ASSIGN_OR_RETURN(corpus.file, cache.Encode(files, TextPart::kAll));
    ASSIGN_OR_RETURN(corpus.validation_file, cache.Encode(held_out, TextPart::kAll));
    for (const auto& [paths, file] :
         {std::pair(text, corpus.file), std::pair(validation, corpus.validation_file)}) {
      const int64_t count = file->tokens().size();
      if (count < window) return TooFewTokens(paths, count, context, window);
    }
  } else {
    ASSIGN_OR_RETURN(corpus.file, cache.Encode(files, TextPart::kTraining));
    ASSIGN_OR_RETURN(corpus.validation_file, cache.Encode(files, TextPart::kHeldOut));
    if (std::min(corpus.file->tokens().size(), corpus.validation_file->tokens().size()) < window) {
      ASSIGN_OR_RETURN(corpus.file, cache.Encode(files, TextPart::kAll));
      corpus.validation_file = nullptr;
      corpus.num_held_out = window;
      const int64_t count = corpus.file->tokens().size();
      if (count < 2 * window) return TooFewTokens(text, count, context, 2 * window);
    }
  }
  corpus.unigram_entropy =
      EntropyOf(corpus.train_tokens(), corpus.validation_tokens(), corpus.tokenizer->num_tokens());
  return corpus;
}

Batches::Batches(TokenSpan train, int64_t batch, int64_t context, uint64_t seed)
    : train_(train), batch_(batch), context_(context), seed_(seed) {
  const int64_t size = train.size();
  max_offset_ = std::min(context - 1, size - context - 1);
  windows_ = (size - 1 - max_offset_) / context;
}

int64_t Batches::Start(int64_t n) const {
  const int64_t epoch = n / windows_;
  const auto key_epoch = static_cast<uint32_t>(epoch);
  const uint32_t word = RandomWord({seed_, kOffsetStream, key_epoch}, 0);
  const int64_t offset = static_cast<int64_t>(word) % (max_offset_ + 1);
  return offset + context_ * ShuffledIndex(n % windows_, windows_, seed_, key_epoch);
}

Batch Batches::From(int64_t n) const {
  std::vector<int64_t> starts(static_cast<size_t>(batch_));
  for (int64_t i = 0; i < batch_; ++i) starts[static_cast<size_t>(i)] = Start(n + i);
  return MakeBatch(train_, starts, context_);
}

std::vector<int64_t> ValidationStarts(int64_t text_size, int64_t context, int64_t max_sequences) {
  const int64_t available = std::max<int64_t>(0, (text_size - 1) / context);
  const int64_t count = std::min(available, max_sequences);
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < count; ++i) starts.push_back(i * available / count * context);
  return starts;
}

Batch MakeBatch(TokenSpan text, absl::Span<const int64_t> starts, int64_t context) {
  const TensorType type = {DType::kI32, {static_cast<int64_t>(starts.size()), context}};
  Batch batch = {Tensor(type), Tensor(type)};
  int32_t* tokens = batch.tokens.As<int32_t>();
  int32_t* labels = batch.labels.As<int32_t>();
  for (const int64_t start : starts) {
    for (int64_t i = 0; i < context; ++i) {
      *tokens++ = static_cast<int32_t>(text[start + i]);
      *labels++ = static_cast<int32_t>(text[start + i + 1]);
    }
  }
  return batch;
}

}  // namespace penstock::cli
