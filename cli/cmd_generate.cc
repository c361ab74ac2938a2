// penstock generate: text that a trained model makes.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/environment.h"
#include "cli/files.h"
#include "cli/generator.h"
#include "cli/inference.h"
#include "cli/job.h"
#include "cli/job_model.h"
#include "cli/job_monitor.h"
#include "cli/json.h"
#include "cli/model_folder.h"
#include "cli/option_checks.h"
#include "cli/processes.h"
#include "cli/progress.h"
#include "cli/tokenizer.h"
#include "cli/utf8.h"
#include "fmt/format.h"

#include "actors/checkpoint/checkpoint.h"
#include "actors/checkpoint/checkpoint_folder.h"
#include "actors/cluster/cluster.h"
#include "actors/engine/error_origin.h"
#include "actors/session/checkpoint_states.h"
#include "base/counted.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

struct GenerateOptions {
  std::string path;
  std::string tokenizer;  // a file; empty: the one beside the model
  std::vector<std::string> prompts;
  std::vector<std::string> prompt_files;  // "-": standard input
  std::optional<int64_t> num_bytes;
  std::optional<int64_t> num_tokens;
  double temperature = 0.8;
  int64_t top_k = 0;
  int64_t seed = 1;
  std::string strategy = "dp=1";
  int64_t processes = 1;
  std::optional<int64_t> threads;
  int64_t slots = 8;
  bool is_json = false;
};

constexpr int64_t kDefaultTokens = 100;
// With --bytes, a text that has tokens without text, such as special ones, ends at so many.
constexpr int64_t kMaxTokensPerByte = 4;
constexpr size_t kMaxPromptBytes = size_t{1} << 26;

// A trained model, and how its tokens are text.
struct TextModel {
  JobModel model;
  Generator::GetParameters parameters;
  std::optional<Tokenizer> tokenizer;  // nothing: a token is a byte
  std::vector<int32_t> end_tokens;
  std::string trained_strategy;  // empty: not known

  absl::StatusOr<Generator::Tokens> Encode(std::string_view text) const {
    if (tokenizer.has_value()) return tokenizer->Encode(text);
    Generator::Tokens tokens;
    for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
    return tokens;
  }
  // Of a token in the midst of a text.
  std::string BytesOf(int32_t token) const {
    if (tokenizer.has_value()) return std::string(tokenizer->BytesOf(token));
    return std::string(1, static_cast<char>(token));
  }
};

// The model that a checkpoint says that it is of.
absl::StatusOr<JobModel> ModelOf(const Registries& registries,
                                 const actors::Checkpoint& checkpoint) {
  Job job;
  bool is_named = false;
  const auto info = actors::InfoFromMetadata(checkpoint.metadata());
  if (info.ok()) {
    for (const auto& [name, value] : info->settings) {
      if (name == "model.file") {
        return absl::UnimplementedError(
            StrCat(checkpoint.path(), ": is of the model in the graph file ", value,
                   "; text is generated with built-in models only: gpt, llama and moe"));
      }
      const bool is_text =
          name == "model.name" || name == "model.rotary_scaling" || name == "train.dtype";
      if (name.rfind("model.", 0) != 0 && !is_text) continue;
      RETURN_IF_ERROR(
          ApplyOverride(StrCat(name, "=", is_text ? "\"" : "", value, is_text ? "\"" : ""), job));
      is_named |= name == "model.name";
    }
  }
  if (!is_named) {
    return absl::InvalidArgumentError(
        StrCat(checkpoint.path(), ": does not say which built-in model its tensors are of"));
  }
  return ResolveModel(registries, job);
}

// The tokenizer.json beside a checkpoint, or in the folder of checkpoints that it lies in; empty:
// there is none.
std::string TokenizerBeside(const std::string& checkpoint) {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::absolute(checkpoint, error).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  for (const std::filesystem::path& place : {folder, folder.parent_path()}) {
    if (std::filesystem::is_regular_file(place / kTokenizerFile, error)) {
      return (place / kTokenizerFile).string();
    }
  }
  return "";
}

// What the tokens of a checkpoint are; nothing: bytes.
absl::StatusOr<std::optional<Tokenizer>> TokenizerOf(const actors::Checkpoint& checkpoint,
                                                     const std::string& given) {
  const std::string path = given.empty() ? TokenizerBeside(checkpoint.path()) : given;
  if (!path.empty()) return Tokenizer::Load(path);
  const auto info = actors::InfoFromMetadata(checkpoint.metadata());
  if (!info.ok()) return std::optional<Tokenizer>();
  for (const auto& [name, value] : info->settings) {
    if (name != "data.tokenizer" && name != "data.tokens") continue;
    return absl::InvalidArgumentError(
        StrCat(checkpoint.path(), ": the model was trained on tokens of ", value,
               ", and there is no ", kTokenizerFile, " beside it; give --tokenizer"));
  }
  return std::optional<Tokenizer>();
}

absl::StatusOr<TextModel> OpenCheckpoint(const Registries& registries, const std::string& path,
                                         const std::string& tokenizer) {
  ASSIGN_OR_RETURN(actors::Checkpoint checkpoint,
                   actors::Checkpoint::Open(actors::CheckpointFolder::NewestOr(path)));
  TextModel opened;
  ASSIGN_OR_RETURN(opened.model, ModelOf(registries, checkpoint));
  if (!opened.model.model->can_generate) {
    return absl::UnimplementedError(StrCat(checkpoint.path(), ": the model ",
                                           opened.model.model->name,
                                           " cannot generate text step by step; gpt, llama and moe "
                                           "can"));
  }
  ASSIGN_OR_RETURN(opened.tokenizer, TokenizerOf(checkpoint, tokenizer));
  if (const auto info = actors::InfoFromMetadata(checkpoint.metadata()); info.ok()) {
    opened.trained_strategy = info->strategy;
  }
  opened.parameters =
      [checkpoint = std::move(checkpoint)](const std::vector<planner::StatePlan>& parameters) {
        return actors::CheckpointStates::Create(checkpoint, parameters);
      };
  return opened;
}

absl::StatusOr<TextModel> OpenFolder(const Registries& registries, const std::string& path,
                                     const std::string& given_tokenizer) {
  ASSIGN_OR_RETURN(ModelFolder folder, ModelFolder::Open(registries, path));
  TextModel opened;
  opened.model.model = registries.models.FindModel(folder.config().model);
  opened.model.config = folder.config().config;
  const std::string tokenizer = given_tokenizer.empty() ? folder.tokenizer_path() : given_tokenizer;
  if (!tokenizer.empty()) {
    ASSIGN_OR_RETURN(opened.tokenizer, Tokenizer::Load(tokenizer));
    opened.end_tokens = folder.config().end_tokens;
  } else if (opened.model.config.vocabulary != 256) {
    return absl::InvalidArgumentError(StrCat(path, ": has no tokenizer.json, which says what its ",
                                             opened.model.config.vocabulary, " tokens are"));
  }
  opened.parameters = [folder =
                           std::move(folder)](const std::vector<planner::StatePlan>& parameters) {
    return folder.Weights(parameters);
  };
  return opened;
}

std::string GenerationJson(const TextModel& model, const std::vector<Generator::Tokens>& made,
                           const std::vector<std::string>& texts, const GeneratorTimes& times) {
  std::vector<std::string> strings;
  for (const std::string& text : texts) strings.push_back(JsonString(text));
  const auto rate = [](int64_t count, double seconds) {
    return JsonNumber(seconds > 0 ? static_cast<double>(count) / seconds : 0);
  };
  std::vector<std::string> lists;
  for (const Generator::Tokens& tokens : made) {
    lists.push_back(fmt::format("[{}]", fmt::join(tokens, ", ")));
  }
  return StrCat(
      "{\"text\": ", strings[0], ", \"texts\": [", StrJoin(strings, ", "), "], \"tokens\": [",
      StrJoin(lists, ", "), "], \"model\": ", JsonString(model.model.model->name),
      ", \"tokens_per_s\": ", rate(times.tokens, times.decode_s),
      ", \"prompt_tokens\": ", times.prompt_tokens, ", \"reread_tokens\": ", times.reread_tokens,
      ", \"prompt_tokens_per_s\": ", rate(times.prefill_tokens, times.prefill_s),
      ", \"steps\": ", times.steps, "}\n");
}

// `num_ended`: texts that the model has ended itself.
std::string Summary(const GeneratorTimes& times, int64_t num_ended) {
  const auto at_rate = [](int64_t count, double seconds) {
    return count > 0 && seconds > 0
               ? fmt::format(", {:.0f} tokens/s", static_cast<double>(count) / seconds)
               : std::string();
  };
  std::string text = fmt::format("{} in {:.2f} s", Counted(times.tokens, "token"), times.decode_s) +
                     at_rate(times.tokens, times.decode_s);
  if (times.prompt_tokens > 0) {
    text += fmt::format("; prompts: {} read in {:.2f} s", Counted(times.prompt_tokens, "token"),
                        times.prefill_s) +
            at_rate(times.prefill_tokens, times.prefill_s);
  }
  if (times.reread_tokens > 0) {
    StrAppend(&text, ", and ", times.reread_tokens,
              " read again, as texts had filled the model's context");
  }
  if (num_ended > 0) {
    StrAppend(&text, "; the model ended ", Counted(num_ended, "text"), " itself");
  }
  return text + "\n";
}

// The prompts as tokens. Errors name the prompt.
absl::StatusOr<std::vector<Generator::Tokens>> EncodeAll(const TextModel& model,
                                                         const std::vector<std::string>& prompts) {
  std::vector<Generator::Tokens> encoded;
  for (size_t i = 0; i < prompts.size(); ++i) {
    absl::StatusOr<Generator::Tokens> tokens = model.Encode(prompts[i]);
    if (!tokens.ok()) return actors::WithPrefix(StrCat("prompt ", i + 1, ": "), tokens.status());
    encoded.push_back(*std::move(tokens));
  }
  return encoded;
}

// Texts that grow by tokens, up to a number of bytes; the first one is shown as it grows.
class Texts {
 public:
  // `shown` may be null.
  Texts(const TextModel& model, size_t count, std::optional<int64_t> num_bytes, std::ostream* shown)
      : model_(model), texts_(count), num_bytes_(num_bytes), shown_(shown) {}

  // Generator::OnToken.
  bool Add(size_t prompt, int32_t token) {
    std::string& text = texts_[prompt];
    const std::string bytes = model_.BytesOf(token);
    text += bytes;
    if (shown_ != nullptr) *shown_ << stream_.Push(bytes) << std::flush;
    return !num_bytes_.has_value() || !IsFull(text);
  }

  void Finish() {
    if (shown_ != nullptr) *shown_ << stream_.Finish() << "\n" << std::flush;
  }

  const std::vector<std::string>& texts() const { return texts_; }

  // Those that the model has ended: they have fewer tokens and bytes than they might have.
  int64_t NumEnded(const std::vector<Generator::Tokens>& made, int64_t num_tokens) const {
    int64_t num_ended = 0;
    for (size_t i = 0; i < texts_.size(); ++i) {
      const bool is_full = num_bytes_.has_value() && IsFull(texts_[i]);
      if (!is_full && static_cast<int64_t>(made[i].size()) < num_tokens) ++num_ended;
    }
    return num_ended;
  }

 private:
  bool IsFull(const std::string& text) const {
    return static_cast<int64_t>(text.size()) >= *num_bytes_;
  }

  const TextModel& model_;
  std::vector<std::string> texts_;
  const std::optional<int64_t> num_bytes_;
  std::ostream* const shown_;
  ReadableStream stream_;
};

// What others see of a generation: `penstock top` and `stack`, and who waits for the text.
class Watch {
 public:
  // Draws no progress where the text itself is shown on the terminal.
  Watch(const Environment& environment, JobMonitor& monitor, const Generator& generator,
        int64_t num_tokens, bool is_text_shown)
      : monitor_(monitor), generator_(generator), num_tokens_(num_tokens) {
    if (!is_text_shown || !environment.out_is_terminal) {
      progress_.emplace(environment.err, environment.err_is_terminal);
    }
    monitor.Follow(generator.sessions(), "generating");
  }
  // REQUIRES: the sessions are still there.
  ~Watch() { monitor_.Follow({}, "finishing"); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void OnToken() {
    const GeneratorTimes& times = generator_.times();
    if (times.steps == 0 || times.decode_s <= 0) return;
    const double rate = static_cast<double>(times.tokens) / times.decode_s;
    monitor_.SetRate(times.steps, times.decode_s / static_cast<double>(times.steps), rate);
    if (progress_.has_value()) {
      progress_->Update(times.tokens, num_tokens_, rate, times.prefill_s + times.decode_s);
    }
  }

 private:
  JobMonitor& monitor_;
  const Generator& generator_;
  const int64_t num_tokens_;  // at most, of all texts
  std::optional<TextProgress> progress_;
};

// The strategy that the options name. For "auto" it is what split the weights in the training, as
// they may not fit on fewer devices; batches are too small to be worth splitting. It is noted.
absl::StatusOr<planner::Strategy> StrategyFor(const Environment& environment,
                                              const GenerateOptions& options,
                                              const TextModel& model) {
  absl::StatusOr<std::optional<planner::Strategy>> given = planner::ParseStrategy(options.strategy);
  if (!given.ok()) return actors::WithPrefix("--strategy ", given.status());
  if (given->has_value()) {
    (*given)->optimizer_on_host = false;  // nothing is updated
    return **given;
  }
  planner::Strategy chosen;
  std::string reason = "nothing says how the model was trained";
  const auto trained = planner::ParseStrategy(model.trained_strategy);
  if (trained.ok() && trained->has_value() && !model.trained_strategy.empty()) {
    chosen.tp = (*trained)->tp;
    chosen.pp = (*trained)->pp;
    chosen.ep = (*trained)->ep;
    chosen.dp = chosen.ep;  // the experts are split over a part of dp
    reason = StrCat("the weights are split as in the training under ", model.trained_strategy);
  }
  environment.err << "note: --strategy auto: " << ToString(chosen) << ": " << reason << std::endl;
  return chosen;
}

// Those of the options and those of files.
absl::StatusOr<std::vector<std::string>> ReadPrompts(const GenerateOptions& options) {
  std::vector<std::string> prompts = options.prompts;
  for (const std::string& file : options.prompt_files) {
    absl::StatusOr<std::string> text =
        ReadTextFile(file == "-" ? "/dev/stdin" : file, kMaxPromptBytes);
    if (!text.ok()) return actors::WithPrefix("--prompt-file ", text.status());
    prompts.push_back(*std::move(text));
  }
  if (!prompts.empty()) return prompts;
  return absl::InvalidArgumentError(
      "there is no text to continue: give --prompt TEXT or --prompt-file FILE");
}

absl::Status Generate(const Environment& environment, const GenerateOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<std::string> texts_to_continue, ReadPrompts(options));
  ASSIGN_OR_RETURN(TextModel model,
                   ModelFolder::IsModelFolder(options.path)
                       ? OpenFolder(environment.registries, options.path, options.tokenizer)
                       : OpenCheckpoint(environment.registries, options.path, options.tokenizer));
  ForwardLayout layout;
  ASSIGN_OR_RETURN(layout.strategy, StrategyFor(environment, options, model));
  const int64_t num_devices = layout.strategy.num_devices();
  layout.num_threads = options.threads.value_or(std::max<int64_t>(1, UsableCores() / num_devices));
  std::unique_ptr<actors::Cluster> cluster;
  if (options.processes > num_devices) {
    return absl::InvalidArgumentError(StrCat("--procs ", options.processes, ": the strategy has ",
                                             Counted(num_devices, "device")));
  }
  ASSIGN_OR_RETURN(const std::vector<Generator::Tokens> prompts,
                   EncodeAll(model, texts_to_continue));
  int64_t longest = 0;
  for (const Generator::Tokens& prompt : prompts) {
    longest = std::max(longest, static_cast<int64_t>(prompt.size()));
  }
  SampleOptions sample;
  // Of a text, as far as is known now: a token mostly has a byte or more.
  const int64_t num_tokens =
      options.num_tokens.value_or(options.num_bytes.value_or(kDefaultTokens));
  sample.num_tokens = num_tokens;
  if (model.tokenizer.has_value()) {
    sample.num_choices = model.tokenizer->num_tokens();
    if (options.num_bytes.has_value()) {
      sample.num_tokens = std::min(num_tokens, INT64_MAX / kMaxTokensPerByte) * kMaxTokensPerByte;
    }
  }
  sample.end_tokens = model.end_tokens;
  sample.temperature = options.temperature;
  sample.top_k = options.top_k;
  sample.seed = static_cast<uint64_t>(options.seed);
  if (model.model.model->takes_any_context) {
    // No room for more keys and values than there will be.
    int64_t& context = model.model.config.context;
    context = std::clamp<int64_t>(longest + std::min(num_tokens, context), 1, context);
  }
  const int64_t slots = std::min<int64_t>(options.slots, static_cast<int64_t>(prompts.size()));
  const auto num_prompts = static_cast<int64_t>(prompts.size());
  JobMonitor monitor(model.model.model->name, ToString(layout.strategy),
                     (num_prompts + slots - 1) / slots * num_tokens, /*steps_done=*/0);
  monitor.Open(environment, /*is_announced=*/false);
  if (options.processes > 1) {
    ASSIGN_OR_RETURN(cluster, StartProcesses(environment, {.count = options.processes,
                                                           .num_devices = num_devices,
                                                           .devices = {},
                                                           .listen = "",
                                                           .key_file = nullptr,
                                                           .status_answers = monitor.answers(),
                                                           .on_listening = nullptr}));
    layout.start_engine = cluster->engine_factory();
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Generator> generator,
                   Generator::Start(environment.registries, model.model, slots, longest, layout,
                                    model.parameters));
  // A single text is shown as it is made.
  const bool is_shown = !options.is_json && prompts.size() == 1;
  Texts texts(model, prompts.size(), options.num_bytes, is_shown ? &environment.out : nullptr);
  if (is_shown) environment.out << texts_to_continue[0] << std::flush;
  std::optional<Watch> watch(std::in_place, environment, monitor, *generator,
                             num_prompts * num_tokens, is_shown);
  ASSIGN_OR_RETURN(const std::vector<Generator::Tokens> made,
                   generator->Generate(prompts, sample, [&](size_t prompt, int32_t token) {
                     watch->OnToken();
                     return texts.Add(prompt, token);
                   }));
  watch.reset();
  texts.Finish();
  if (options.is_json) {
    environment.out << GenerationJson(model, made, texts.texts(), generator->times());
  } else {
    for (size_t i = 0; i < prompts.size() && !is_shown; ++i) {
      environment.out << ReadableUtf8(texts_to_continue[i]) << ReadableUtf8(texts.texts()[i])
                      << "\n\n";
    }
    environment.out << std::flush;
    environment.err << Summary(generator->times(), texts.NumEnded(made, sample.num_tokens));
  }
  generator = nullptr;  // its sessions end before the cluster
  return cluster != nullptr ? cluster->Stop(absl::OkStatus()) : absl::OkStatus();
}

}  // namespace

void AddGenerateCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand("generate", "Generate text with a trained model.");
  command
      ->add_option("CHECKPOINT", options->path,
                   "Checkpoint, folder of checkpoints, or folder with config.json, "
                   "model.safetensors and tokenizer.json of a GPT-2 or Llama")
      ->required();
  command
      ->add_option("--prompt", options->prompts,
                   "Text to continue. May be repeated: the prompts are continued together")
      ->option_text("TEXT")
      ->allow_extra_args(false);
  command
      ->add_option(
          "--prompt-file", options->prompt_files,
          "File whose whole text, with its last newline, is continued as a further prompt; "
          "- reads standard input. May be repeated")
      ->option_text("FILE")
      ->allow_extra_args(false);
  command
      ->add_option("--tokenizer", options->tokenizer,
                   "The tokenizer.json that says what tokens are (one beside the model; without "
                   "one, a token is a byte)")
      ->option_text("FILE");
  CLI::Option* const bytes =
      command
          ->add_option("--bytes", options->num_bytes,
                       "Bytes to generate for each prompt: the last token may add more, and a text "
                       "that the model ends has fewer")
          ->option_text("N")
          ->check(AtLeast(0));
  command
      ->add_option("--tokens", options->num_tokens,
                   "Tokens to generate for each prompt, unless the model ends the text before "
                   "(100). Without a tokenizer.json a token is a byte")
      ->option_text("N")
      ->check(AtLeast(0))
      ->excludes(bytes);
  command
      ->add_option("--temperature", options->temperature,
                   "Sampling temperature; 0 always takes the most likely token (0.8)")
      ->option_text("T")
      ->check(NotNegative());
  command
      ->add_option("--top-k", options->top_k,
                   "Sample from the K most likely tokens only; 0 from all (0)")
      ->option_text("K")
      ->check(AtLeast(0));
  command->add_option("--seed", options->seed, "Seed of sampling (1)")
      ->option_text("N")
      ->check(AtLeast(0));
  command
      ->add_option("--strategy", options->strategy,
                   "How the model is split over devices, such as tp=2 (dp=1); auto splits the "
                   "weights as the training did. Any strategy gives the same text, up to rounding")
      ->option_text("STRATEGY");
  command->add_option("--procs", options->processes, "Processes (1)")
      ->option_text("N")
      ->check(AtLeast(1));
  command
      ->add_option("--threads", options->threads,
                   "Threads of each device (an even share of the cores that it may use)")
      ->option_text("N")
      ->check(AtLeast(1));
  command
      ->add_option("--slots", options->slots,
                   "Sequences that are continued at a time; the other prompts wait (8)")
      ->option_text("N")
      ->check(AtLeast(1));
  command->add_flag("--json", options->is_json,
                    "Print one JSON object; its texts have U+FFFD for bytes that are not UTF-8, "
                    "its tokens are exact");
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return Generate(environment, *options); };
  });
}

}  // namespace penstock::cli
