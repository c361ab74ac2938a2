#include "graph/models/model.h"

#include <cctype>
#include <charconv>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/models/convnet.h"
#include "graph/models/gpt.h"
#include "graph/models/llama.h"
#include "graph/models/mlp.h"
#include "graph/models/moe.h"
#include "graph/models/resnet.h"

namespace penstock::graph {

absl::Status ModelRegistry::AddModel(Model model) {
  const std::string name = model.name;
  if (!models_.emplace(name, std::move(model)).second) {
    return absl::AlreadyExistsError(StrCat("there is already a model '", name, "'"));
  }
  return absl::OkStatus();
}

absl::Status ModelRegistry::AddPreset(Preset preset) {
  const std::string name = preset.name;
  if (FindModel(preset.model) == nullptr) {
    return absl::NotFoundError(StrCat("preset '", name, "': unknown model '", preset.model, "'"));
  }
  if (!presets_.emplace(name, std::move(preset)).second) {
    return absl::AlreadyExistsError(StrCat("there is already a preset '", name, "'"));
  }
  return absl::OkStatus();
}

const Model* ModelRegistry::FindModel(std::string_view name) const {
  const auto it = models_.find(name);
  return it == models_.end() ? nullptr : &it->second;
}

const Preset* ModelRegistry::FindPreset(std::string_view name) const {
  const auto it = presets_.find(name);
  return it == presets_.end() ? nullptr : &it->second;
}

std::vector<std::string_view> ModelRegistry::ModelNames() const {
  std::vector<std::string_view> names;
  for (const auto& [name, model] : models_) names.push_back(name);
  return names;
}

std::vector<std::string_view> ModelRegistry::PresetNames() const {
  std::vector<std::string_view> names;
  for (const auto& [name, preset] : presets_) names.push_back(name);
  return names;
}

ModelRegistry BuiltinModels() {
  ModelRegistry registry;
  // The names below are distinct and the models known, so nothing here can fail.
  registry.AddModel(GptModel()).IgnoreError();
  registry.AddModel(LlamaModel()).IgnoreError();
  registry.AddModel(MlpModel()).IgnoreError();
  registry.AddModel(MoeModel()).IgnoreError();
  registry.AddModel(ConvnetModel()).IgnoreError();
  registry.AddModel(ResnetModel()).IgnoreError();
  for (Preset& preset : GptPresets()) registry.AddPreset(std::move(preset)).IgnoreError();
  for (Preset& preset : LlamaPresets()) registry.AddPreset(std::move(preset)).IgnoreError();
  for (Preset& preset : ResnetPresets()) registry.AddPreset(std::move(preset)).IgnoreError();
  return registry;
}

absl::StatusOr<Graph> BuildModelGraph(const OpRegistry& ops, const Model& model,
                                      const ModelConfig& config, ModelUse use, int64_t batch) {
  RETURN_IF_ERROR(model.check(config));
  if (batch < 1) return absl::InvalidArgumentError("the batch must hold at least one sequence");
  if (use == ModelUse::kGenerate && !model.can_generate) {
    return absl::UnimplementedError(StrCat("the model ", model.name, " keeps no keys and values"));
  }
  Graph graph(model.name);
  GraphBuilder builder(ops, graph);
  const ModelOutputs outputs = model.build(builder, config, use, batch);
  RETURN_IF_ERROR(builder.status());
  const ValueId result = outputs.loss == kNoValue ? outputs.logits : outputs.loss;
  graph.mutable_returns().push_back({result, std::nullopt});
  if (outputs.correct != kNoValue) {
    graph.mutable_returns().push_back({outputs.correct, std::nullopt});
  }
  return graph;
}

bool SplitHint::IsFor(std::string_view name) const {
  if (sharding.empty()) return axis == name;
  // As a word: axes are words in it.
  const auto is_of_word = [&](size_t at) {
    return at < sharding.size() &&
           (std::isalnum(static_cast<unsigned char>(sharding[at])) != 0 || sharding[at] == '_');
  };
  for (size_t at = sharding.find(name); at != std::string::npos; at = sharding.find(name, at + 1)) {
    if ((at == 0 || !is_of_word(at - 1)) && !is_of_word(at + name.size())) return true;
  }
  return false;
}

namespace {

// "{3-11}" in a pattern.
struct Range {
  int64_t first = 0;
  int64_t last = 0;
  size_t length = 0;  // of the text
};

std::optional<Range> RangeAt(std::string_view pattern, size_t at) {
  if (at >= pattern.size() || pattern[at] != '{') return std::nullopt;
  Range range;
  const char* const begin = pattern.data() + at;
  const char* const end = pattern.data() + pattern.size();
  const auto [dash, first_error] = std::from_chars(begin + 1, end, range.first);
  if (first_error != std::errc() || dash == end || *dash != '-') return std::nullopt;
  const auto [close, last_error] = std::from_chars(dash + 1, end, range.last);
  if (last_error != std::errc() || close == end || *close != '}') return std::nullopt;
  range.length = static_cast<size_t>(close + 1 - begin);
  return range;
}

// Whether all digits from there on are a number of the range; moves behind them if so.
bool NumberIn(const Range& range, std::string_view name, size_t* at) {
  const char* const begin = name.data() + *at;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), number);
  if (error != std::errc() || *begin == '-' || number < range.first || number > range.last) {
    return false;
  }
  *at += static_cast<size_t>(end - begin);
  return true;
}

}  // namespace

bool MatchesPattern(std::string_view pattern, std::string_view name) {
  // Greedy matching with one point of return: the last "*" seen.
  size_t p = 0;
  size_t n = 0;
  size_t star = std::string_view::npos;
  size_t star_name = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_name = n;
    } else if (const std::optional<Range> range = RangeAt(pattern, p);
               range.has_value() && NumberIn(*range, name, &n)) {
      p += range->length;
    } else if (p < pattern.size() && !range.has_value() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++star_name;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

int64_t NumParameters(const Graph& graph) {
  int64_t total = 0;
  for (const Node& node : graph.nodes()) {
    if (node.op->role() == OpRole::kParameter) {
      total += graph.value(node.results[0]).type.num_elements();
    }
  }
  return total;
}

}  // namespace penstock::graph
