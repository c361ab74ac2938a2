#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <type_traits>
#include <utility>

#include "cli/device_list.h"
#include "cli/job_keys_internal.h"
#include "cli/job_policy.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/models/config_check.h"
#include "graph/op.h"
#include "planner/cluster/presets.h"
#include "planner/cluster/toml_internal.h"
#include "planner/policy/phase.h"
#include "planner/strategy/stated_shardings.h"

namespace penstock::cli {

absl::Status Expected(std::string_view what, const toml::value& value) {
  return absl::InvalidArgumentError(StrCat("expected ", what, ", not ", planner::TomlKind(value)));
}

namespace {

constexpr int64_t kMaxCount = int64_t{1} << 40;

// Keys by the kind of their value. `field` finds the member in the job.
template <typename Field>
auto Integer(Field field, int64_t least, int64_t most) {
  return [=](const toml::value& value, const std::string&, Job& job) -> absl::Status {
    if (value.is_floating() && value.as_floating() == std::rint(value.as_floating()) &&
        std::abs(value.as_floating()) < 1e15) {
      return absl::InvalidArgumentError(StrCat("expected an integer, not a float; write ",
                                               static_cast<int64_t>(value.as_floating())));
    }
    if (!value.is_integer()) return Expected("an integer", value);
    const int64_t number = value.as_integer();
    if (number < least || number > most) {
      return absl::InvalidArgumentError(
          StrCat(number, " is out of range: expected ", least, " to ", most));
    }
    *field(job) = number;
    return absl::OkStatus();
  };
}

template <typename Field>
auto Number(Field field, double least, double most, std::string_view range) {
  return [=](const toml::value& value, const std::string&, Job& job) -> absl::Status {
    double number = 0;
    if (value.is_floating()) {
      number = value.as_floating();
    } else if (value.is_integer()) {
      number = static_cast<double>(value.as_integer());
    } else {
      return Expected("a number", value);
    }
    if (!(number >= least && number <= most)) {
      return absl::InvalidArgumentError(StrCat(number, " is out of range: expected ", range));
    }
    *field(job) = number;
    return absl::OkStatus();
  };
}

template <typename Field>
auto Boolean(Field field) {
  return [=](const toml::value& value, const std::string&, Job& job) -> absl::Status {
    if (!value.is_boolean()) return Expected("true or false", value);
    *field(job) = value.as_boolean();
    return absl::OkStatus();
  };
}

template <typename Field>
auto String(Field field) {
  return [=](const toml::value& value, const std::string&, Job& job) -> absl::Status {
    if (!value.is_string()) return Expected("a string", value);
    *field(job) = value.as_string().str;
    return absl::OkStatus();
  };
}

// One of a few words, each with what it stands for.
template <typename Field, typename T>
auto Choice(Field field, std::vector<std::pair<std::string_view, T>> choices) {
  return [=](const toml::value& value, const std::string&, Job& job) -> absl::Status {
    if (!value.is_string()) return Expected("a string", value);
    const std::string& word = value.as_string().str;
    std::vector<std::string> known;
    for (const auto& [name, meaning] : choices) {
      if (word == name) {
        *field(job) = meaning;
        return absl::OkStatus();
      }
      known.push_back(StrCat("\"", name, "\""));
    }
    return absl::InvalidArgumentError(
        StrCat("unknown value \"", word, "\"; expected ", StrJoin(known, " or ")));
  };
}

std::string Resolve(const std::string& folder, const std::string& path) {
  return (std::filesystem::path(folder) / path).string();
}

template <typename Field>
auto Path(Field field) {
  return [=](const toml::value& value, const std::string& folder, Job& job) -> absl::Status {
    if (!value.is_string()) return Expected("a path", value);
    const std::string& path = value.as_string().str;
    *field(job) = path.empty() ? path : Resolve(folder, path);
    return absl::OkStatus();
  };
}

// A path, or a list of at least one.
template <typename Field>
auto Paths(Field field) {
  return [=](const toml::value& value, const std::string& folder, Job& job) -> absl::Status {
    std::vector<std::string> paths;
    if (value.is_string()) {
      paths.push_back(Resolve(folder, value.as_string().str));
    } else if (value.is_array()) {
      for (const toml::value& element : value.as_array()) {
        if (!element.is_string()) return Expected("a list of paths only", element);
        paths.push_back(Resolve(folder, element.as_string().str));
      }
    } else {
      return Expected("a list of files and folders", value);
    }
    if (paths.empty()) return absl::InvalidArgumentError("the list is empty: expected a path");
    *field(job) = std::move(paths);
    return absl::OkStatus();
  };
}

absl::Status SetInputs(const toml::value& value, const std::string& folder, Job& job) {
  const auto source_of = [&folder](const std::string& text) {
    // A file of that name is "./random".
    if (text == "random") return Job::InputSource{true, ""};
    return Job::InputSource{false, Resolve(folder, text)};
  };
  job.data.inputs.clear();
  job.data.all_inputs.reset();
  if (value.is_string()) {
    job.data.all_inputs = source_of(value.as_string().str);
    return absl::OkStatus();
  }
  if (!value.is_table()) {
    return Expected("a table of inputs such as {x = \"x.npy\", y = \"random\"}, or one path",
                    value);
  }
  for (const auto& [name, source] : value.as_table()) {
    if (!source.is_string()) {
      return Expected(StrCat("a path or \"random\" for the input ", name), source);
    }
    job.data.inputs[name] = source_of(source.as_string().str);
  }
  return absl::OkStatus();
}

absl::Status SetMicrobatches(const toml::value& value, const std::string& folder, Job& job) {
  if (value.is_string()) {
    if (value.as_string().str == "auto") {
      job.parallel.microbatches = 0;
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        StrCat("unknown value \"", value.as_string().str, "\"; expected an integer or \"auto\""));
  }
  if (!value.is_integer()) return Expected("an integer or \"auto\"", value);
  return Integer([](Job& j) { return &j.parallel.microbatches; }, 1, 1 << 14)(value, folder, job);
}

// A list of strings "h*.mlp.w1 @[_, tp]".
absl::Status SetHints(const toml::value& value, const std::string&, Job& job) {
  if (!value.is_array()) {
    return Expected("a list of hints such as [\"h*.mlp.w1 @[_, tp]\"]", value);
  }
  std::vector<graph::SplitHint> hints;
  for (const toml::value& element : value.as_array()) {
    if (!element.is_string()) {
      return Expected("a pattern of values and a sharding, such as \"h*.mlp.w1 @[_, tp]\"",
                      element);
    }
    ASSIGN_OR_RETURN(graph::SplitHint hint, planner::ParseStatedSharding(element.as_string().str));
    hints.push_back(std::move(hint));
  }
  job.parallel.hints = std::move(hints);
  return absl::OkStatus();
}

// A kind of device, or a list of at least one.
template <typename Field>
auto DeviceKinds(Field field) {
  return [=](const toml::value& value, const std::string&, Job& job) -> absl::Status {
    std::vector<std::string> kinds;
    const auto add = [&kinds](const toml::value& kind) -> absl::Status {
      if (!kind.is_string()) return Expected("a kind of device, or a list of kinds", kind);
      kinds.push_back(kind.as_string().str);
      return CheckDeviceKind(kinds.back());
    };
    if (!value.is_array()) {
      RETURN_IF_ERROR(add(value));
    } else {
      for (const toml::value& element : value.as_array()) RETURN_IF_ERROR(add(element));
    }
    if (kinds.empty()) return absl::InvalidArgumentError("the list is empty: expected a kind");
    *field(job) = std::move(kinds);
    return absl::OkStatus();
  };
}

// A list of tables {name = "a", devices = 3, processes = 1, device_kind = "cuda"}.
absl::Status SetHosts(const toml::value& value, const std::string& folder, Job& job) {
  if (!value.is_array()) {
    return Expected("a list of hosts such as [{name = \"a\", devices = 2}]", value);
  }
  std::vector<Job::Host> hosts;
  for (const toml::value& element : value.as_array()) {
    const std::string which = StrCat("host ", hosts.size() + 1);
    if (!element.is_table()) {
      return Expected("a table {name, devices, processes, device_kind} a host", element);
    }
    Job::Host& host = hosts.emplace_back();
    host.name = which;
    for (const auto& [key, field] : element.as_table()) {
      absl::Status status;
      if (key == "name") {
        status = String([&host](Job&) { return &host.name; })(field, folder, job);
      } else if (key == "devices") {
        status = Integer([&host](Job&) { return &host.devices; }, 1, 1 << 16)(field, folder, job);
      } else if (key == "processes") {
        status = Integer([&host](Job&) { return &host.processes; }, 1, 1 << 16)(field, folder, job);
      } else if (key == "device_kind") {
        status = DeviceKinds([&host](Job&) { return &host.device_kinds; })(field, folder, job);
      } else {
        return absl::InvalidArgumentError(
            StrCat("unknown key '", key, "' of ", which,
                   "; expected name, devices, processes or device_kind"));
      }
      if (!status.ok()) {
        return absl::Status(status.code(),
                            StrCat(key, " of ", which, ": ", ToStd(status.message())));
      }
    }
    if (host.devices == 0) {
      return absl::InvalidArgumentError(
          StrCat(host.name == which ? "" : "host ", host.name, " has no devices: set `devices`"));
    }
    const auto named = std::find_if(hosts.begin(), hosts.end(), [&](const Job::Host& other) {
      return other.name == host.name;
    });
    if (&*named != &host) {
      return absl::InvalidArgumentError(StrCat("two hosts are named ", host.name));
    }
  }
  if (hosts.empty()) return absl::InvalidArgumentError("the list is empty: expected a host");
  job.cluster.host = std::move(hosts);
  return absl::OkStatus();
}

// Whether the text is the name of a preset, whatever its size is.
bool NamesClusterPreset(std::string_view text) {
  const std::string_view name = text.substr(0, text.find(':'));
  const std::vector<planner::ClusterPreset>& presets = planner::ClusterPresets();
  return std::any_of(presets.begin(), presets.end(),
                     [&](const planner::ClusterPreset& preset) { return preset.name == name; });
}

absl::Status SetClusterFile(const toml::value& value, const std::string& folder, Job& job) {
  if (!value.is_string()) return Expected("a preset or a path", value);
  const std::string& text = value.as_string().str;
  job.cluster.file = NamesClusterPreset(text) ? text : Resolve(folder, text);
  return absl::OkStatus();
}

absl::Status SetSchedule(const toml::value& value, const std::string& folder, Job& job) {
  if (!value.is_string()) return Expected("a policy or a path", value);
  const std::string& text = value.as_string().str;
  job.parallel.schedule = IsPolicyFile(text) ? Resolve(folder, text) : text;
  return absl::OkStatus();
}

}  // namespace

const std::vector<Key>& Keys() {
  using graph::LearningRateSchedule;
  using graph::Optimizer;
  constexpr int64_t kMaxSize = graph::kMaxModelSize;
  constexpr double kHuge = 1e30;
  // A function-local constant: immutable, built on first use, shared by all readers.
  static const auto* const keys = new std::vector<Key>{
      {"model.name", "Built-in model or preset: see `penstock list models|presets` (\"gpt\")",
       String([](Job& j) { return &j.model.name; })},
      {"model.file",
       "Graph in the text format that returns a scalar loss; excludes the other model keys (none)",
       Path([](Job& j) { return &j.model.file; })},
      {"model.weights",
       "Folder with config.json and model.safetensors of a GPT-2 or Llama: the model has its "
       "sizes, "
       "and training starts from its weights (none: random ones)",
       Path([](Job& j) { return &j.model.weights; })},
      {"model.layers", "Number of blocks (from model.name)",
       Integer([](Job& j) { return &j.model.layers; }, 1, graph::kMaxLayers)},
      {"model.width", "Width of the residual stream (from model.name)",
       Integer([](Job& j) { return &j.model.width; }, 1, kMaxSize)},
      {"model.heads", "Attention heads per block (from model.name)",
       Integer([](Job& j) { return &j.model.heads; }, 1, kMaxSize)},
      {"model.context", "Tokens per sequence (from model.name)",
       Integer([](Job& j) { return &j.model.context; }, 1, kMaxSize)},
      {"model.vocabulary", "Number of token ids, at least 256 (from model.name)",
       Integer([](Job& j) { return &j.model.vocabulary; }, 256, kMaxSize)},
      {"model.dropout", "Dropout rate in [0, 1) (from model.name)",
       Number([](Job& j) { return &j.model.dropout; }, 0, std::nextafter(1.0, 0.0), "[0, 1)")},
      {"model.experts", "Number of experts in a mixture-of-experts layer, for the model moe (8)",
       Integer([](Job& j) { return &j.model.experts; }, 1, graph::kMaxExperts)},
      {"model.top_k", "Number of experts that process each token, for moe (2)",
       Integer([](Job& j) { return &j.model.top_k; }, 1, graph::kMaxExperts)},
      {"model.capacity_factor",
       "Most tokens of a sequence that an expert processes, as a multiple of an even share, for "
       "moe; 0 drops no token (1.25)",
       Number([](Job& j) { return &j.model.capacity_factor; }, 0, kHuge, "at least 0")},
      {"model.balance", "Weight of the loss that balances the load of the experts, for moe (0.01)",
       Number([](Job& j) { return &j.model.balance; }, 0, kHuge, "at least 0")},
      {"model.expert_every",
       "Interval between blocks with experts, for moe: 1 for every block, 2 for every other block "
       "(1)",
       Integer([](Job& j) { return &j.model.expert_every; }, 1, graph::kMaxLayers)},
      {"model.kv_heads",
       "Attention heads of keys and values, for llama: a divisor of model.heads; 0 for as many (0)",
       Integer([](Job& j) { return &j.model.kv_heads; }, 0, kMaxSize)},
      {"model.hidden",
       "Units of the feed-forward layer, for llama; 0 for 8/3 of the width, rounded up to a "
       "multiple of 64 (0)",
       Integer([](Job& j) { return &j.model.hidden; }, 0, kMaxSize)},
      {"model.rotary_base", "Base of the rotary position embedding, for llama (10000)",
       Number([](Job& j) { return &j.model.rotary_base; }, 1e-30, kHuge, "1e-30 to 1e30")},
      {"model.rotary_scaling",
       "How the rotary position embedding is scaled to longer sequences, for llama: \"none\", "
       "\"linear\", \"dynamic\" or \"llama3\", as in config.json of transformers (\"none\")",
       String([](Job& j) { return &j.model.rotary_scaling; })},
      {"model.rotary_factor", "Factor of model.rotary_scaling (1)",
       Number([](Job& j) { return &j.model.rotary_factor; }, 1, kHuge, "at least 1")},
      {"model.rotary_low_factor",
       "For \"llama3\": frequencies with fewer than so many periods in model.rotary_context tokens "
       "are divided by the factor (1)",
       Number([](Job& j) { return &j.model.rotary_low_factor; }, 1e-30, kHuge, "1e-30 to 1e30")},
      {"model.rotary_high_factor",
       "For \"llama3\": frequencies with more than so many periods stay; those between are "
       "interpolated (4)",
       Number([](Job& j) { return &j.model.rotary_high_factor; }, 1e-30, kHuge, "1e-30 to 1e30")},
      {"model.rotary_context",
       "Tokens of a sequence that the model was first trained on, for \"llama3\" and \"dynamic\", "
       "which takes no longer ones (8192)",
       Integer([](Job& j) { return &j.model.rotary_context; }, 1, kMaxSize)},
      {"model.norm_epsilon", "Term added to the variance in norms, for llama, gpt and moe (1e-5)",
       Number([](Job& j) { return &j.model.norm_epsilon; }, 1e-30, kHuge, "1e-30 to 1e30")},
      {"model.tied",
       "Whether logits are products with the token embedding, for llama; gpt and moe always do "
       "that (false)",
       Boolean([](Job& j) { return &j.model.tied; })},
      {"model.image", "Width and height of an image, for convnet and resnet (from model.name)",
       Integer([](Job& j) { return &j.model.image; }, 1, 1 << 14)},
      {"model.channels", "Channels of an image, for convnet and resnet (from model.name)",
       Integer([](Job& j) { return &j.model.channels; }, 1, 1 << 16)},
      {"model.classes", "Number of classes, for convnet and resnet (from model.name)",
       Integer([](Job& j) { return &j.model.classes; }, 1, kMaxSize)},
      {"data.text",
       "Files and folders of training text, read as bytes unless data.tokenizer is set (for "
       "built-in models, [\"/usr/share/common-licenses\"])",
       Paths([](Job& j) { return &j.data.text; })},
      {"data.validation",
       "Files and folders of held-out text, for built-in models (the last tenth of each file in "
       "data.text)",
       Paths([](Job& j) { return &j.data.validation; })},
      {"data.tokenizer",
       "The tokenizer.json that encodes data.text and data.validation, which are UTF-8 then: "
       "byte-pair encoding, as the package tokenizers writes it. model.vocabulary is at least its "
       "number of tokens (none: a token is a byte)",
       Path([](Job& j) { return &j.data.tokenizer; })},
      {"data.cache",
       "Folder that keeps what data.tokenizer has encoded, for later runs "
       "($XDG_CACHE_HOME/penstock or ~/.cache/penstock)",
       Path([](Job& j) { return &j.data.cache; })},
      {"data.tokens",
       "File of training tokens in place of data.text, mapped into memory: little-endian integers, "
       "or a .npy file of integers in one dimension; its last tenth is held out (none)",
       Path([](Job& j) { return &j.data.tokens; })},
      {"data.token_type", "\"u16\" or \"u32\": the integers in data.tokens, but for .npy (\"u16\")",
       Choice([](Job& j) { return &j.data.token_bytes; },
              std::vector<std::pair<std::string_view, int64_t>>{{"u16", 2}, {"u32", 4}})},
      {"data.csv",
       "CSV file of labelled examples for the inputs images and labels, which may be compressed by "
       "gzip: a row has a label and the numbers of an example. Every tenth row is held out (none)",
       Path([](Job& j) { return &j.data.csv; })},
      {"data.csv_label",
       "Where the label is in a row of data.csv, \"first\" or \"last\" (\"first\")",
       Choice([](Job& j) { return &j.data.label_is_last; },
              std::vector<std::pair<std::string_view, bool>>{{"first", false}, {"last", true}})},
      {"data.images",
       "The .npy file of labelled examples for the input images, [rows, ...], in place of "
       "data.csv; "
       "goes with data.labels (none)",
       Path([](Job& j) { return &j.data.images; })},
      {"data.labels", "The .npy file of the labels of data.images, integers [rows] (none)",
       Path([](Job& j) { return &j.data.labels; })},
      {"data.scale", "Factor for the numbers in data.csv and data.images (1)",
       Number([](Job& j) { return &j.data.scale; }, -kHuge, kHuge, "-1e30 to 1e30")},
      {"data.inputs",
       "Values of inputs, such as {x = \"x.npy\", y = \"ys/\", z = \"random\"}: a .npy file of the "
       "input's shape is fed in every step; one with a multiple of its rows, or with one more "
       "dimension in front, holds successive steps in order, and so does a folder of files, in the "
       "order of their names. After the last step they start again from the first. Inputs with "
       "successive steps need the same number of them. A single string serves all inputs: a folder "
       "with NAME.npy or a folder NAME for each, or \"random\" (none: a built-in model reads "
       "data.text)",
       SetInputs},
      {"train.steps", "Number of training steps (50)",
       Integer([](Job& j) { return &j.train.steps; }, 1, kMaxCount)},
      {"train.batch", "Sequences or images per step, over all devices (16)",
       Integer([](Job& j) { return &j.train.batch; }, 1, kMaxSize)},
      {"train.optimizer", "\"adamw\" or \"sgd\" (\"adamw\")",
       Choice([](Job& j) { return &j.train.options.optimizer; },
              std::vector<std::pair<std::string_view, Optimizer>>{{"adamw", Optimizer::kAdamW},
                                                                  {"sgd", Optimizer::kSgd}})},
      {"train.learning_rate", "Peak learning rate (3e-4)",
       Number([](Job& j) { return &j.train.options.learning_rate; }, 0, kHuge, "0 to 1e30")},
      {"train.min_learning_rate",
       "Final learning rate of the cosine schedule (train.learning_rate / 10)",
       Number([](Job& j) { return &j.train.min_learning_rate; }, 0, kHuge, "0 to 1e30")},
      {"train.warmup_steps", "Steps of linear warm-up (0)",
       Integer([](Job& j) { return &j.train.options.warmup_steps; }, 0, kMaxCount)},
      {"train.schedule", "Learning-rate schedule, \"constant\" or \"cosine\" (\"constant\")",
       Choice([](Job& j) { return &j.train.options.schedule; },
              std::vector<std::pair<std::string_view, LearningRateSchedule>>{
                  {"constant", LearningRateSchedule::kConstant},
                  {"cosine", LearningRateSchedule::kCosine}})},
      {"train.beta1", "AdamW: decay rate of the first moment (0.9)",
       Number([](Job& j) { return &j.train.options.beta1; }, 0, std::nextafter(1.0, 0.0),
              "[0, 1)")},
      {"train.beta2", "AdamW: decay rate of the second moment (0.95)",
       Number([](Job& j) { return &j.train.options.beta2; }, 0, std::nextafter(1.0, 0.0),
              "[0, 1)")},
      {"train.epsilon", "AdamW: term added to the denominator (1e-8)",
       Number([](Job& j) { return &j.train.options.epsilon; }, 1e-300, kHuge, "1e-300 to 1e30")},
      {"train.momentum", "SGD: momentum (0.9)",
       Number([](Job& j) { return &j.train.options.momentum; }, 0, std::nextafter(1.0, 0.0),
              "[0, 1)")},
      {"train.weight_decay", "Weight decay of matrices; biases and norms have none (0.1)",
       Number([](Job& j) { return &j.train.options.weight_decay; }, 0, kHuge, "0 to 1e30")},
      {"train.clip_norm", "Maximum global norm of the gradients; 0 disables clipping (1.0)",
       Number([](Job& j) { return &j.train.options.clip_norm; }, 0, kHuge, "0 to 1e30")},
      {"train.seed", "Seed of initialisation, dropout, data order and sampling (1)",
       Integer([](Job& j) { return &j.train.seed; }, 0, INT64_MAX)},
      {"train.dtype",
       "Element type of parameters and activations, \"f32\" or \"f64\", or \"bf16\" or \"f16\": "
       "mixed precision with f32 parameters (\"f32\")",
       Choice([](Job& j) { return &j.train.dtype; },
              std::vector<std::pair<std::string_view, DType>>{
                  {"f32", DType::kF32},
                  {"f64", DType::kF64},
                  {"bf16", DType::kBF16},
                  {"f16", DType::kF16}})},
      {"train.gradient_dtype",
       "Type in which devices add up the gradients of f32 parameters, \"f32\", \"bf16\" or "
       "\"f16\"; micro-batches are added up in f32 before (\"f32\")",
       Choice([](Job& j) { return &j.train.options.gradient_dtype; },
              std::vector<std::pair<std::string_view, DType>>{
                  {"f32", DType::kF32}, {"bf16", DType::kBF16}, {"f16", DType::kF16}})},
      {"train.sum_dtype",
       "Type in which devices add up parts of activations and of their gradients, if train.dtype "
       "is \"bf16\" or \"f16\": the same, or \"f32\", which moves twice the bytes and rounds once "
       "(train.dtype)",
       Choice([](Job& j) { return &j.train.sum_dtype; },
              std::vector<std::pair<std::string_view, std::optional<DType>>>{
                  {"f32", DType::kF32}, {"bf16", DType::kBF16}, {"f16", DType::kF16}})},
      {"train.residual_dtype",
       "Type of the sums that layers add to, from the embedding on, if train.dtype is \"bf16\" or "
       "\"f16\": the same, or \"f32\", which is nearer to training in f32 and takes more time and "
       "memory (train.dtype)",
       Choice([](Job& j) { return &j.train.residual_dtype; },
              std::vector<std::pair<std::string_view, std::optional<DType>>>{
                  {"f32", DType::kF32}, {"bf16", DType::kBF16}, {"f16", DType::kF16}})},
      {"train.loss_scale",
       "First factor of the loss and so of all gradients; halved when gradients overflow, and "
       "doubled after 2,000 steps without; 0: none; if unset, 65536 with train.dtype = \"f16\" (0)",
       Number([](Job& j) { return &j.train.loss_scale; }, 0, 1 << 24, "0 to 2^24")},
      {"train.validation_sequences",
       "Held-out sequences to evaluate, or images, of which all are if unset; 0 disables "
       "validation "
       "(64)",
       Integer([](Job& j) { return &j.train.validation_sequences; }, 0, 1 << 20)},
      {"train.validation_every",
       "Steps between validations; 0 validates after the last step only (0)",
       Integer([](Job& j) { return &j.train.validation_every; }, 0, kMaxCount)},
      {"train.log_every",
       "Steps between reports; if unset, text output has about 50, or a progress bar on a terminal "
       "(1)",
       Integer([](Job& j) { return &j.train.log_every; }, 1, kMaxCount)},
      {"train.on_nonfinite",
       "What to do when the loss is NaN or infinite: \"stop\" and name the operator that produced "
       "it, or \"continue\" (\"stop\")",
       Choice([](Job& j) { return &j.train.stops_on_nonfinite; },
              std::vector<std::pair<std::string_view, bool>>{{"stop", true}, {"continue", false}})},
      {"checkpoint.path",
       "Folder of the run's checkpoints: safetensors files in a folder step-N each. `run --resume` "
       "continues from the newest one (none: no checkpoints)",
       Path([](Job& j) { return &j.checkpoint.path; })},
      {"checkpoint.every",
       "Steps between checkpoints; 0 writes one after the last step only. There is always one "
       "after the last step and after Ctrl-C (100)",
       Integer([](Job& j) { return &j.checkpoint.every; }, 0, kMaxCount)},
      {"checkpoint.keep", "Number of checkpoints to keep, the newest ones (2)",
       Integer([](Job& j) { return &j.checkpoint.keep; }, 1, kMaxCount)},
      {"sample.bytes", "Bytes of text to generate after training; 0 disables sampling (240)",
       Integer([](Job& j) { return &j.sample.bytes; }, 0, 1 << 20)},
      {"sample.temperature", "Sampling temperature; 0 always takes the most likely byte (0.8)",
       Number([](Job& j) { return &j.sample.temperature; }, 0, 1e6, "0 to 1e6")},
      {"parallel.strategy",
       "\"auto\", or a comma-separated list such as \"dp=2,tp=2,zero=1\" of sizes (dp, tp, pp, "
       "vpp, ep, cp) and options (zero, sp, ulysses, splits, recompute, offload, subbatches, "
       "optimizer). See docs/strategies.md (\"auto\")",
       String([](Job& j) { return &j.parallel.strategy; })},
      {"parallel.microbatches",
       "Number of micro-batches per step, or \"auto\" for the number with the shortest predicted "
       "step (\"auto\")",
       SetMicrobatches},
      {"parallel.hints",
       "Shardings of values whose names match a pattern, which the strategy keeps: a list such as "
       "[\"h*.mlp.w1 @[_, tp]\", \"*.m @[dp, _]\"]. * matches any characters, {0-11} a number in "
       "that range (none)",
       SetHints},
      {"parallel.schedule",
       "Scheduling policy (`penstock list policies`), a file with orders in the CSV format of "
       "`penstock schedule`, or a plug-in library (.so) (what the strategy \"auto\" chooses, "
       "1f1b with others)",
       SetSchedule},
      {"parallel.chunks",
       "Chunks of the model on each pipeline stage, like vpp in parallel.strategy (what the "
       "schedule needs, or auto chooses)",
       Integer([](Job& j) { return &j.parallel.chunks; }, 1, planner::kMaxChunks)},
      {"parallel.recompute",
       "What the backward pass computes again instead of keeping it: \"none\", \"selective\", "
       "\"full\", or \"auto\": what the strategy says, or what the strategy \"auto\" chooses "
       "(\"auto\")",
       Choice([](Job& j) { return &j.parallel.recompute; },
              std::vector<std::pair<std::string_view, std::optional<planner::Recompute>>>{
                  {"none", planner::Recompute::kNone},
                  {"selective", planner::Recompute::kSelective},
                  {"full", planner::Recompute::kFull},
                  {"auto", std::nullopt}})},
      {"parallel.split_backward",
       "Whether backward phases are split into input gradients (B) and weight gradients (W) (true "
       "if the schedule needs it)",
       Boolean([](Job& j) { return &j.parallel.split_backward; })},
      {"parallel.fuse_epilogues",
       "Whether matrix products are one kernel with the bias, sum and gelu after them, and with "
       "the gradients of these (true on stages with a GPU, false on others)",
       Boolean([](Job& j) { return &j.parallel.fuse_epilogues; })},
      {"cluster.file",
       "Cluster to plan for: a preset such as \"dgx-a100:16\" (`penstock list clusters`) or a file "
       "that describes one (this machine)",
       SetClusterFile},
      {"cluster.device_kind",
       "Kind of the devices that run the job: \"cpu\", \"cuda\", or \"emulated\" for tests; or a "
       "list of kinds for as many equal blocks of devices, such as [\"cpu\", \"cuda\"] for the "
       "first "
       "half and the second; see docs/GPU.md (\"cpu\")",
       DeviceKinds([](Job& j) { return &j.cluster.device_kinds; })},
      {"cluster.devices",
       "Number of devices (as many as parallel.strategy needs; with \"auto\", as many as "
       "cluster.file has, or 1)",
       Integer([](Job& j) { return &j.cluster.devices; }, 1, 1 << 16)},
      {"cluster.processes", "Number of processes; each runs a contiguous range of devices (1)",
       Integer([](Job& j) { return &j.cluster.processes; }, 1, 1 << 16)},
      {"cluster.hosts", "Hosts to plan collectives for; devices are assigned contiguously (1)",
       Integer([](Job& j) { return &j.cluster.hosts; }, 1, 1 << 16)},
      {"cluster.host",
       "Hosts with different numbers of devices, in the order of the devices: a list of tables "
       "{name, devices, processes, device_kind}, or [[cluster.host]] sections; replaces "
       "cluster.hosts (none)",
       SetHosts},
      {"cluster.threads",
       "Threads per CPU device (the cores of the host, without one for each of its other devices, "
       "divided by its CPU devices)",
       Integer([](Job& j) { return &j.cluster.threads; }, 1, 1 << 10)},
      {"cluster.graphs",
       "Whether GPUs launch phases that repeat as CUDA graphs; the results are the same (true)",
       Boolean([](Job& j) { return &j.cluster.captures_graphs; })},
      {"cluster.node_timeout",
       "Seconds without an answer after which a process of the job counts as lost (3.3)",
       Number([](Job& j) { return &j.cluster.node_timeout; }, 0.5, 3600, "0.5 to 3600")},
      {"cluster.link_gbit_per_s",
       "Bandwidth of the links between processes in Gbit/s per direction, for the replayed bound "
       "in the summary of a traced run (what cluster.file says or launch --probe has measured; "
       "else 64, which suits processes on one host)",
       Number([](Job& j) { return &j.cluster.link_gbit_per_s; }, 1e-6, 1e6, "1e-6 to 1e6")},
      {"cluster.link_latency_us",
       "Latency of the links between processes in microseconds, for the replayed bound in the "
       "summary of a traced run (what cluster.file says or launch --probe has measured; else the "
       "lowest that the run shows)",
       Number([](Job& j) { return &j.cluster.link_latency_us; }, 0, 1e7, "0 to 1e7")},
      {"metrics.listen",
       "Serve metrics to Prometheus at this PORT of the loopback address, or at HOST:PORT (none)",
       String([](Job& j) { return &j.metrics.listen; })},
  };
  return *keys;
}

const Key* FindKey(std::string_view name) {
  for (const Key& key : Keys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

std::string UnknownKey(std::string_view name) {
  std::string message = StrCat("unknown key '", name, "'");
  // A key of that name in another section, or else the nearest one.
  std::string nearest;
  const std::string_view last = name.substr(name.rfind('.') + 1);
  for (const Key& key : Keys()) {
    if (key.name.substr(key.name.find('.') + 1) == last) nearest = std::string(key.name);
  }
  if (nearest.empty()) nearest = graph::NearestName(name, JobKeys());
  if (nearest.empty()) return StrCat(message, "; `penstock run --help` lists all keys");
  return StrCat(message, "; did you mean '", nearest, "'?");
}

}  // namespace penstock::cli
