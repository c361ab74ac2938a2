// penstock generate: text that a trained model makes.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/environment.h"
#include "cli/generator.h"
#include "cli/inference.h"
#include "cli/job.h"
#include "cli/job_graph.h"
#include "cli/json.h"
#include "cli/option_checks.h"
#include "cli/processes.h"
#include "cli/run_report.h"
#include "fmt/format.h"

#include "actors/checkpoint/checkpoint.h"
#include "actors/checkpoint/checkpoint_folder.h"
#include "actors/cluster/cluster.h"
#include "actors/session/checkpoint_states.h"
#include "base/counted.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

struct Options {
  std::string path;
  std::vector<std::string> prompts;
  int64_t num_bytes = 100;
  double temperature = 0.8;
  int64_t top_k = 0;
  int64_t seed = 1;
  std::string strategy = "dp=1";
  int64_t processes = 1;
  std::optional<int64_t> threads;
  int64_t slots = 8;
  bool is_json = false;
};

// The model that a checkpoint says that it is of.
absl::StatusOr<JobModel> ModelOf(const Registries& registries,
                                 const actors::Checkpoint& checkpoint) {
  Job job;
  bool is_named = false;
  const auto info = actors::InfoFromMetadata(checkpoint.metadata());
  if (info.ok()) {
    for (const auto& [name, value] : info->settings) {
      const bool is_text = name == "model.name" || name == "train.dtype";
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

std::string Json(const std::vector<std::string>& texts, const GeneratorTimes& times) {
  std::vector<std::string> strings;
  for (const std::string& text : texts) strings.push_back(JsonString(text));
  const auto rate = [](int64_t count, double seconds) {
    return JsonNumber(seconds > 0 ? static_cast<double>(count) / seconds : 0);
  };
  return StrCat("{\"text\": ", strings[0], ", \"texts\": [", StrJoin(strings, ", "),
                "], \"tokens_per_s\": ", rate(times.tokens, times.decode_s),
                ", \"prompt_tokens_per_s\": ", rate(times.prompt_tokens, times.prefill_s),
                ", \"steps\": ", times.steps, "}\n");
}

std::string Summary(const GeneratorTimes& times) {
  std::string text =
      fmt::format("{} in {:.2f} s, {:.0f} tokens/s", Counted(times.tokens, "token"), times.decode_s,
                  static_cast<double>(times.tokens) / times.decode_s);
  if (times.prompt_tokens > 0) {
    text += fmt::format("; prompts: {} in {:.2f} s, {:.0f} tokens/s",
                        Counted(times.prompt_tokens, "token"), times.prefill_s,
                        static_cast<double>(times.prompt_tokens) / times.prefill_s);
  }
  return text + "\n";
}

absl::Status Generate(const Environment& environment, const Options& options) {
  if (options.prompts.empty()) return absl::InvalidArgumentError("--prompt is missing");
  ASSIGN_OR_RETURN(const actors::Checkpoint checkpoint,
                   actors::Checkpoint::Open(actors::CheckpointFolder::NewestOr(options.path)));
  ASSIGN_OR_RETURN(const JobModel model, ModelOf(environment.registries, checkpoint));
  if (!model.model->can_generate) {
    return absl::UnimplementedError(StrCat(checkpoint.path(), ": the model ", model.model->name,
                                           " cannot generate text step by step; gpt and moe can"));
  }
  ForwardLayout layout;
  ASSIGN_OR_RETURN(const std::optional<planner::Strategy> strategy,
                   planner::ParseStrategy(options.strategy));
  if (!strategy.has_value()) {
    return absl::InvalidArgumentError("--strategy auto: name the sizes, such as tp=2");
  }
  layout.strategy = *strategy;
  const int64_t num_devices = strategy->num_devices();
  layout.num_threads = options.threads.value_or(std::max<int64_t>(1, UsableCores() / num_devices));
  std::unique_ptr<actors::Cluster> cluster;
  if (options.processes > num_devices) {
    return absl::InvalidArgumentError(StrCat("--procs ", options.processes, ": the strategy has ",
                                             Counted(num_devices, "device")));
  }
  if (options.processes > 1) {
    ASSIGN_OR_RETURN(cluster, StartProcesses(environment, {.count = options.processes,
                                                           .num_devices = num_devices,
                                                           .devices = {},
                                                           .listen = "",
                                                           .on_listening = nullptr}));
    layout.start_engine = cluster->engine_factory();
  }
  int64_t longest = 0;
  for (const std::string& prompt : options.prompts) {
    longest = std::max(longest, static_cast<int64_t>(prompt.size()));
  }
  const int64_t slots =
      std::min<int64_t>(options.slots, static_cast<int64_t>(options.prompts.size()));
  ASSIGN_OR_RETURN(
      std::unique_ptr<Generator> generator,
      Generator::Start(environment.registries, model, slots, longest, layout,
                       [&checkpoint](const std::vector<planner::StatePlan>& parameters) {
                         return actors::CheckpointStates::Create(checkpoint, parameters);
                       }));
  SampleOptions sample;
  sample.num_bytes = options.num_bytes;
  sample.temperature = options.temperature;
  sample.top_k = options.top_k;
  sample.seed = static_cast<uint64_t>(options.seed);
  // A single text is shown as it is made.
  const bool is_shown = !options.is_json && options.prompts.size() == 1;
  std::function<void(size_t, char)> on_byte;
  if (is_shown) {
    environment.out << options.prompts[0] << std::flush;
    on_byte = [&environment](size_t, char byte) {
      environment.out << Printable(std::string_view(&byte, 1)) << std::flush;
    };
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                   generator->Generate(options.prompts, sample, on_byte));
  if (options.is_json) {
    environment.out << Json(texts, generator->times());
  } else {
    for (size_t i = 0; i < texts.size() && !is_shown; ++i) {
      environment.out << Printable(options.prompts[i]) << Printable(texts[i]) << "\n\n";
    }
    environment.out << (is_shown ? "\n" : "") << std::flush;
    environment.err << Summary(generator->times());
  }
  generator = nullptr;  // its sessions end before the cluster
  return cluster != nullptr ? cluster->Stop(absl::OkStatus()) : absl::OkStatus();
}

}  // namespace

void AddGenerateCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("generate", "Generate text with the model of a checkpoint.");
  command->add_option("CHECKPOINT", options->path, "Checkpoint, or folder of checkpoints")
      ->required();
  command
      ->add_option("--prompt", options->prompts,
                   "Text to continue. May be repeated: the prompts are continued together")
      ->option_text("TEXT")
      ->required()
      ->allow_extra_args(false);
  command->add_option("--bytes", options->num_bytes, "Bytes to generate for each prompt (100)")
      ->option_text("N")
      ->check(AtLeast(0));
  command
      ->add_option("--temperature", options->temperature,
                   "Sampling temperature; 0 always takes the most likely byte (0.8)")
      ->option_text("T")
      ->check(CLI::Range(0.0, 1e6));
  command
      ->add_option("--top-k", options->top_k,
                   "Sample from the K most likely bytes only; 0 from all (0)")
      ->option_text("K")
      ->check(AtLeast(0));
  command->add_option("--seed", options->seed, "Seed of sampling (1)")
      ->option_text("N")
      ->check(AtLeast(0));
  command
      ->add_option(
          "--strategy", options->strategy,
          "How the model lies on devices, such as tp=2 (dp=1). Any strategy gives the same "
          "text, up to rounding")
      ->option_text("STRATEGY");
  command->add_option("--procs", options->processes, "Processes (1)")
      ->option_text("N")
      ->check(AtLeast(1));
  command->add_option("--threads", options->threads, "Threads of each device (an even share)")
      ->option_text("N")
      ->check(AtLeast(1));
  command
      ->add_option("--slots", options->slots,
                   "Sequences that are continued at a time; the other prompts wait (8)")
      ->option_text("N")
      ->check(AtLeast(1));
  command->add_flag("--json", options->is_json, "Print one JSON object");
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return Generate(environment, *options); };
  });
}

}  // namespace penstock::cli
