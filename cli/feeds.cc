#include "cli/feeds.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "cli/npy.h"
#include "cli/token_cache.h"
#include "fmt/format.h"
#include <xxhash.h>

#include "base/counted.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/op.h"

namespace penstock::cli {
namespace {

bool IsText(std::string_view name) { return name == "tokens" || name == "labels"; }
bool IsOfExamples(std::string_view name) { return name == "images" || name == "labels"; }

// The key of the labelled examples; empty: the job has none.
std::string_view KeyOfExamples(const Job& job) {
  if (!job.data.csv.empty()) return "data.csv";
  return job.data.images.empty() ? "" : "data.images";
}

absl::StatusOr<Examples> ReadExamples(const Job& job) {
  if (!job.data.csv.empty()) {
    return ReadCsvExamples(job.data.csv, job.data.label_is_last, job.data.scale);
  }
  return ReadNpyExamples(job.data.images, job.data.labels, job.data.scale);
}

// Of the data keys, those that exclude each other or go together.
absl::Status CheckDataKeys(const Job& job) {
  const auto refuse = [&job](std::string_view key, const std::string& what) {
    return AtKey(job, {key}, absl::InvalidArgumentError(what));
  };
  if (job.data.images.empty() != job.data.labels.empty()) {
    return job.data.images.empty()
               ? refuse("data.labels", "data.labels goes with data.images, which is not set")
               : refuse("data.images", "data.images goes with data.labels, which is not set");
  }
  if (!job.data.csv.empty() && !job.data.images.empty()) {
    return refuse("data.images", "data.csv and data.images exclude each other");
  }
  if (!job.data.tokens.empty() && job.locations.contains("data.text")) {
    return refuse("data.tokens", "data.tokens and data.text exclude each other");
  }
  if (!job.data.tokens.empty() && !job.data.tokenizer.empty()) {
    return refuse("data.tokenizer",
                  "data.tokenizer and data.tokens exclude each other: the tokens of a file are "
                  "encoded already");
  }
  if (!job.data.cache.empty() && job.data.tokenizer.empty()) {
    return refuse("data.cache", "data.cache goes with data.tokenizer, which is not set");
  }
  const bool has_other = !job.data.tokens.empty() || !KeyOfExamples(job).empty();
  if (has_other && job.locations.contains("data.validation")) {
    return refuse("data.validation",
                  "data.validation goes with data.text; of other data a tenth is held out");
  }
  return absl::OkStatus();
}

// The setting of the program that the plan was compiled from; 0: it has none.
int64_t SettingOf(const planner::Plan& plan, std::string_view name) {
  for (const planner::ProgramSetting& setting : plan.settings) {
    int64_t value = 0;
    if (setting.name == name && absl::SimpleAtoi(setting.value, &value)) return value;
  }
  return 0;
}

// Whether a feed can hold tokens: i32 or i64 [batch, context].
bool FitsText(const TensorType& type) {
  return (type.dtype == DType::kI32 || type.dtype == DType::kI64) && type.shape.size() == 2 &&
         type.num_elements() > 0;
}

// Whether the plan was compiled from a built-in model, which is made for text. The input of a graph
// file that happens to be called tokens may mean something else.
bool IsBuiltinModel(const planner::Plan& plan) {
  return std::any_of(
      plan.settings.begin(), plan.settings.end(),
      [](const planner::ProgramSetting& setting) { return setting.name == "model.name"; });
}

// The source of an input; none where the job gives none.
std::optional<Job::InputSource> SourceOf(const Job& job, const std::string& name) {
  if (const auto found = job.data.inputs.find(name); found != job.data.inputs.end()) {
    return found->second;
  }
  if (!job.data.all_inputs.has_value() || job.data.all_inputs->is_random) {
    return job.data.all_inputs;
  }
  const std::filesystem::path path = std::filesystem::path(job.data.all_inputs->path) / name;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return Job::InputSource{false, path.string()};
  return Job::InputSource{false, path.string() + ".npy"};
}

// The job's text as tokens of its tokenizer, which a model of `vocabulary` tokens knows; 0: it is
// not known how many those are.
absl::StatusOr<Corpus> EncodedCorpusOf(const Job& job, int64_t context, int64_t vocabulary) {
  const absl::StatusOr<TokenCache> cache = TokenCache::Open(job.data.tokenizer, job.data.cache);
  if (!cache.ok()) return AtKey(job, {"data.tokenizer"}, cache.status());
  const int64_t num_tokens = cache->tokenizer()->num_tokens();
  if (vocabulary > 0 && num_tokens > vocabulary) {
    return AtKey(
        job, {"data.tokenizer", "model.vocabulary"},
        absl::InvalidArgumentError(StrCat(job.data.tokenizer, " has ", num_tokens,
                                          " tokens, but the model's vocabulary has ", vocabulary,
                                          "; set model.vocabulary = ", num_tokens, " or more")));
  }
  absl::StatusOr<Corpus> corpus =
      LoadEncodedText(*cache, job.data.text, job.data.validation, context);
  if (!corpus.ok()) return AtKey(job, {"data.text", "data.tokenizer"}, corpus.status());
  return corpus;
}

// Tokens of a file are fed as i32, to a model that knows `vocabulary` of them; 0: it is not known
// how many. Reads the file once.
absl::Status CheckTokens(const std::string& path, const TokenFile& file, int64_t vocabulary) {
  const int64_t limit = vocabulary > 0 ? vocabulary : int64_t{1} << 31;
  const int64_t wrong = file.tokens().FindAtLeast(limit);
  if (wrong < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(path, ": token ", wrong, " is ", static_cast<uint64_t>(file.tokens()[wrong]),
             vocabulary > 0 ? StrCat("; model.vocabulary is ", vocabulary)
                            : std::string(", more than an i32 holds")));
}

// The job's text; errors are placed at the key of the text that they are about.
absl::StatusOr<Corpus> CorpusOf(const Job& job, int64_t context, int64_t vocabulary) {
  if (!job.data.tokenizer.empty()) return EncodedCorpusOf(job, context, vocabulary);
  if (!job.data.tokens.empty()) {
    absl::StatusOr<Corpus> corpus =
        LoadTokens(job.data.tokens, static_cast<int>(job.data.token_bytes), context);
    if (!corpus.ok()) return AtKey(job, {"data.tokens", "model.context"}, corpus.status());
    const absl::Status status = CheckTokens(job.data.tokens, *corpus->file, vocabulary);
    if (!status.ok()) return AtKey(job, {"data.tokens", "model.vocabulary"}, status);
    return corpus;
  }
  if (job.data.validation.empty()) {
    absl::StatusOr<Corpus> corpus = LoadCorpus(job.data.text, context);
    if (!corpus.ok()) return AtKey(job, {"data.text", "model.context"}, corpus.status());
    return corpus;
  }
  absl::StatusOr<std::shared_ptr<const MappedText>> train = LoadText(job.data.text, context);
  if (!train.ok()) return AtKey(job, {"data.text", "model.context"}, train.status());
  absl::StatusOr<std::shared_ptr<const MappedText>> validation =
      LoadText(job.data.validation, context);
  if (!validation.ok()) {
    return AtKey(job, {"data.validation", "model.context"}, validation.status());
  }
  return JoinCorpus(*std::move(train), *std::move(validation));
}

std::string Names(absl::Span<const planner::FeedPlan> feeds) {
  std::vector<std::string_view> names;
  for (const planner::FeedPlan& feed : feeds) names.push_back(feed.name);
  return penstock::StrJoin(names, ", ");
}

// A key of a TOML table: quoted where a dot or another character would end it.
std::string TomlKey(const std::string& name) {
  const bool is_bare = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
  });
  return is_bare ? name : StrCat("\"", name, "\"");
}

// Names all inputs without values and the ways to give them.
absl::Status WithoutValues(const Job& job, absl::Span<const planner::FeedPlan> feeds) {
  std::vector<std::string> inputs;
  std::vector<std::string> sources;
  std::vector<std::string> texts;
  for (const planner::FeedPlan& feed : feeds) {
    inputs.push_back(StrCat(feed.name, " (", ToString(feed.type), ")"));
    sources.push_back(StrCat(TomlKey(feed.name), " = \"", feed.name, ".npy\""));
    if (IsText(feed.name) && FitsText(feed.type)) texts.push_back(feed.name);
  }
  // A plan that is run by itself has no job file to write it in.
  const bool has_job = job.locations.contains("model.file") || job.locations.contains("model.name");
  const std::string values = StrJoin(sources, ", ");
  std::string message = StrCat(feeds.size() == 1 ? "input " : "inputs ", StrJoin(inputs, ", "),
                               feeds.size() == 1 ? " has" : " have", " no values: ",
                               has_job ? StrCat("set data.inputs = {", values, "}")
                                       : StrCat("give --set 'data.inputs={", values, "}'"),
                               " (.npy files, folders of them, or \"random\")");
  const bool has_images =
      std::any_of(feeds.begin(), feeds.end(),
                  [](const planner::FeedPlan& feed) { return feed.name == "images"; });
  if (has_images) {
    StrAppend(&message, has_job ? "; data.csv = \"FILE\"" : "; --set 'data.csv=\"FILE\"'",
              " feeds images and labels from a CSV file, data.images and data.labels from .npy "
              "files");
  } else if (!texts.empty()) {
    StrAppend(&message, has_job ? "; data.text = [\"FILE\"]" : "; --set 'data.text=[\"FILE\"]'",
              " feeds ", StrJoin(texts, " and "), " from text");
  }
  return AtKey(job, {"data.inputs", "model.file"}, absl::InvalidArgumentError(message));
}

}  // namespace

absl::StatusOr<StepFeeds> StepFeeds::Create(const planner::Plan& plan, const Job& job) {
  RETURN_IF_ERROR(CheckDataKeys(job));
  StepFeeds feeds;
  const bool has_examples = !KeyOfExamples(job).empty();
  // A built-in model that reads text has tokens.
  const bool has_tokens =
      std::any_of(plan.feeds.begin(), plan.feeds.end(),
                  [](const planner::FeedPlan& feed) { return feed.name == "tokens"; });
  const bool reads_text = job.locations.contains("data.text") || !job.data.tokens.empty() ||
                          (IsBuiltinModel(plan) && has_tokens && !has_examples);
  for (const planner::FeedPlan& feed : plan.feeds) {
    const bool has_source = SourceOf(job, feed.name).has_value();
    const bool is_example = has_examples && IsOfExamples(feed.name) && !has_source;
    const bool is_text = !is_example && reads_text && IsText(feed.name) && !has_source;
    (is_example ? feeds.example_feeds_
     : is_text  ? feeds.text_feeds_
                : feeds.other_feeds_)
        .push_back(feed);
  }
  RETURN_IF_ERROR(feeds.OpenText(plan, job));
  RETURN_IF_ERROR(feeds.OpenExamples(plan, job));
  RETURN_IF_ERROR(feeds.OpenInputs(job));
  return feeds;
}

absl::Status StepFeeds::OpenText(const planner::Plan& plan, const Job& job) {
  if (text_feeds_.empty()) {
    for (const char* key : {"data.text", "data.tokens", "data.validation", "data.tokenizer"}) {
      if (!job.locations.contains(key)) continue;
      const bool is_covered =
          std::any_of(other_feeds_.begin(), other_feeds_.end(),
                      [](const planner::FeedPlan& feed) { return IsText(feed.name); });
      const std::string reason =
          is_covered ? std::string(
                           "data.inputs already gives the values of every input; leave "
                           "out one of the two")
                     : StrCat("no input is called tokens or labels; the inputs are ",
                              Names(other_feeds_), ": give their values in data.inputs");
      return AtKey(
          job, {key},
          absl::InvalidArgumentError(StrCat(key, ": the text would not be used: ", reason)));
    }
    return absl::OkStatus();
  }
  const planner::FeedPlan& first = text_feeds_[0];
  for (const planner::FeedPlan& feed : text_feeds_) {
    if (!FitsText(feed.type)) {
      return absl::InvalidArgumentError(
          StrCat("input ", feed.name, " is ", ToString(feed.type),
                 ", but text is i32 or i64 [batch, context]; give its values in data.inputs"));
    }
    if (first.type.shape != feed.type.shape) {
      return absl::InvalidArgumentError(StrCat("inputs ", first.name, " and ", feed.name,
                                               " differ in shape: ", ToString(first.type), " and ",
                                               ToString(feed.type)));
    }
  }
  batch_ = first.type.shape[0];
  context_ = first.type.shape[1];
  ASSIGN_OR_RETURN(Corpus corpus, CorpusOf(job, context_, SettingOf(plan, "model.vocabulary")));
  corpus_ = std::make_unique<const Corpus>(std::move(corpus));
  batches_.emplace(corpus_->train_tokens(), batch_, context_,
                   static_cast<uint64_t>(job.train.seed));
  return absl::OkStatus();
}

absl::Status StepFeeds::OpenExamples(const planner::Plan& plan, const Job& job) {
  const std::string_view key = KeyOfExamples(job);
  if (key.empty()) return absl::OkStatus();
  if (example_feeds_.empty()) {
    return AtKey(job, {key},
                 absl::InvalidArgumentError(StrCat(
                     key,
                     ": the examples would not be used: no input is called images or labels, "
                     "or data.inputs already gives their values; the inputs are ",
                     Names(plan.feeds))));
  }
  if (batches_.has_value()) {
    return AtKey(job, {key},
                 absl::InvalidArgumentError(StrCat(key, ": the inputs are fed from text already")));
  }
  absl::StatusOr<Examples> examples = ReadExamples(job);
  if (!examples.ok()) return AtKey(job, {key}, examples.status());
  RETURN_IF_ERROR(AtKey(
      job, {key}, CheckExampleFeeds(*examples, example_feeds_, SettingOf(plan, "model.classes"))));
  batch_ = example_feeds_[0].type.shape[0];
  seed_ = static_cast<uint64_t>(job.train.seed);
  examples_ = std::make_unique<const Examples>(*std::move(examples));
  return absl::OkStatus();
}

std::string StepFeeds::Fingerprint() const {
  constexpr int64_t kHead = int64_t{1} << 20;
  const auto digest = [](absl::Span<const uint8_t> bytes) {
    return fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size()));
  };
  std::vector<std::string> parts;
  if (corpus_ != nullptr) {
    const TokenSpan train = corpus_->train_tokens();
    parts.push_back(StrCat(train.size(), " tokens ", digest(train.Head(kHead))));
  }
  if (examples_ != nullptr) {
    const std::vector<float> head = examples_->FirstValues(kHead / sizeof(float));
    const auto* values = reinterpret_cast<const uint8_t*>(head.data());
    const auto* labels = reinterpret_cast<const uint8_t*>(examples_->labels.data());
    parts.push_back(
        StrCat(examples_->num_rows(), " examples ",
               digest(absl::MakeConstSpan(values, head.size() * sizeof(float))), " ",
               digest(absl::MakeConstSpan(labels, examples_->labels.size() * sizeof(int32_t)))));
  }
  for (const InputValues& input : inputs_) parts.push_back(input.Fingerprint());
  return StrJoin(parts, "; ");
}

absl::Status StepFeeds::OpenInputs(const Job& job) {
  std::vector<std::string_view> without_source;
  for (const planner::FeedPlan& feed : other_feeds_) {
    if (!job.data.inputs.contains(feed.name)) without_source.push_back(feed.name);
  }
  for (const auto& [name, source] : job.data.inputs) {
    if (std::any_of(other_feeds_.begin(), other_feeds_.end(),
                    [&name](const planner::FeedPlan& feed) { return feed.name == name; })) {
      continue;
    }
    const std::string nearest = graph::NearestName(name, without_source);
    return AtKey(job, {"data.inputs"},
                 absl::InvalidArgumentError(
                     StrCat("data.inputs: the graph has no input '", name, "'; ",
                            nearest.empty() ? StrCat("its inputs are ", Names(other_feeds_))
                                            : StrCat("did you mean '", nearest, "'?"))));
  }
  std::vector<planner::FeedPlan> without_values;
  for (const planner::FeedPlan& feed : other_feeds_) {
    if (!SourceOf(job, feed.name).has_value()) without_values.push_back(feed);
  }
  if (!without_values.empty()) return WithoutValues(job, without_values);
  const InputValues* first = nullptr;
  inputs_.reserve(other_feeds_.size());
  for (const planner::FeedPlan& feed : other_feeds_) {
    absl::StatusOr<InputValues> values = InputValues::Open(
        feed.name, feed.type, *SourceOf(job, feed.name), static_cast<uint64_t>(job.train.seed));
    if (!values.ok()) return AtKey(job, {"data.inputs"}, values.status());
    inputs_.push_back(*std::move(values));
    if (inputs_.back().period() == 0 || inputs_.back().is_constant()) continue;
    if (first == nullptr) first = &inputs_.back();
    if (first->period() != inputs_.back().period()) {
      return AtKey(
          job, {"data.inputs"},
          absl::InvalidArgumentError(StrCat(
              "data.inputs: ", first->name(), " has values for ", Counted(first->period(), "step"),
              " and ", feed.name, " for ", inputs_.back().period(),
              ": they would get out of step; give both values for as many steps, or ", feed.name,
              " a file of exactly its shape to feed it in every step")));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<actors::Feeds> StepFeeds::Get(int64_t step) const {
  actors::Feeds feeds;
  if (batches_.has_value()) {
    ASSIGN_OR_RETURN(feeds, TextFeeds(text_feeds_, batches_->From(SequenceOf(step))));
  }
  if (examples_ != nullptr) {
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < batch_; ++i) {
      rows.push_back(TrainingRow(*examples_, SequenceOf(step) + i, seed_));
    }
    ASSIGN_OR_RETURN(feeds, ExampleFeeds(*examples_, example_feeds_, rows));
  }
  for (const InputValues& input : inputs_) {
    ASSIGN_OR_RETURN(feeds[input.name()], input.Get(step));
  }
  return feeds;
}

absl::StatusOr<actors::Feeds> TextFeeds(absl::Span<const planner::FeedPlan> plan_feeds,
                                        const Batch& batch) {
  actors::Feeds feeds;
  for (const planner::FeedPlan& feed : plan_feeds) {
    if (!IsText(feed.name)) continue;
    const Tensor& tensor = feed.name == "tokens" ? batch.tokens : batch.labels;
    ASSIGN_OR_RETURN(feeds[feed.name], ConvertTensor(tensor, feed.type.dtype));
  }
  return feeds;
}

}  // namespace penstock::cli
