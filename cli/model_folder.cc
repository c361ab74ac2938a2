#include "cli/model_folder.h"

#include <filesystem>
#include <optional>
#include <utility>

#include "cli/files.h"
#include "cli/folder_weights.h"
#include "cli/json.h"
#include "cli/tokenizer.h"
#include "nlohmann/json.hpp"

#include "actors/checkpoint/json_internal.h"
#include "actors/engine/error_origin.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/models/config_check.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr char kConfigFile[] = "config.json";
constexpr size_t kMaxConfigBytes = size_t{1} << 20;
constexpr int kMaxConfigDepth = 8;

// A null counts as missing, as it does to transformers.
bool Has(const Json& json, const char* key) { return json.contains(key) && !json[key].is_null(); }

absl::Status Wrong(const char* key, std::string_view expected, const Json& value) {
  return absl::InvalidArgumentError(
      StrCat("\"", key, "\": expected ", expected, ", not ", DumpJson(value).substr(0, 100)));
}

absl::Status ReadSize(const Json& json, const char* key, std::optional<int64_t> fallback,
                      int64_t* size) {
  if (!Has(json, key)) {
    if (!fallback.has_value()) return absl::InvalidArgumentError(StrCat("has no \"", key, "\""));
    *size = *fallback;
    return absl::OkStatus();
  }
  const Json& value = json[key];
  if (!value.is_number_unsigned() || value.get<uint64_t>() < 1 ||
      value.get<uint64_t>() > static_cast<uint64_t>(graph::kMaxModelSize)) {
    return Wrong(key, StrCat("an integer from 1 to ", graph::kMaxModelSize), value);
  }
  *size = value.get<int64_t>();
  return absl::OkStatus();
}

absl::Status ReadNumber(const Json& json, const char* key, double* number) {
  if (!Has(json, key)) return absl::OkStatus();
  const Json& value = json[key];
  if (!value.is_number() || !(value.get<double>() > 0) || !(value.get<double>() < 1e30)) {
    return Wrong(key, "a positive number", value);
  }
  *number = value.get<double>();
  return absl::OkStatus();
}

absl::Status RequireNumber(const Json& json, const char* key, double* number) {
  if (Has(json, key)) return ReadNumber(json, key, number);
  return absl::InvalidArgumentError(StrCat("has no \"", key, "\""));
}

absl::Status ReadBool(const Json& json, const char* key, bool* flag) {
  if (!Has(json, key)) return absl::OkStatus();
  if (!json[key].is_boolean()) return Wrong(key, "true or false", json[key]);
  *flag = json[key].get<bool>();
  return absl::OkStatus();
}

// The key is missing or has the only value that the built-in model follows.
absl::Status RequireValue(const Json& json, const char* key, const Json& only) {
  if (!Has(json, key) || json[key] == only) return absl::OkStatus();
  return Wrong(key, StrCat(DumpJson(only), ", which is all that is supported"), json[key]);
}

absl::Status RequireOneOf(const Json& json, const char* key,
                          const std::vector<std::string>& known) {
  if (!Has(json, key)) return absl::OkStatus();
  std::vector<std::string> quoted;
  for (const std::string& word : known) {
    if (json[key] == word) return absl::OkStatus();
    quoted.push_back(StrCat("\"", word, "\""));
  }
  return Wrong(key, StrCat(StrJoin(quoted, " or "), ", which is all that is supported"), json[key]);
}

absl::Status ReadEndTokens(const Json& json, std::vector<int32_t>* tokens) {
  constexpr char kKey[] = "eos_token_id";
  if (!Has(json, kKey)) return absl::OkStatus();
  const Json& value = json[kKey];
  const Json list = value.is_array() ? value : Json::array({value});
  for (const Json& token : list) {
    if (!token.is_number_unsigned() || token.get<uint64_t>() > INT32_MAX) {
      return Wrong(kKey, "a token or a list of tokens", value);
    }
    tokens->push_back(token.get<int32_t>());
  }
  return absl::OkStatus();
}

absl::Status ReadGpt2(const Json& json, FolderConfig* folder) {
  graph::ModelConfig& config = folder->config;
  folder->model = "gpt";
  RETURN_IF_ERROR(ReadSize(json, "vocab_size", std::nullopt, &config.vocabulary));
  RETURN_IF_ERROR(ReadSize(json, "n_positions", std::nullopt, &config.context));
  RETURN_IF_ERROR(ReadSize(json, "n_embd", std::nullopt, &config.width));
  RETURN_IF_ERROR(ReadSize(json, "n_layer", std::nullopt, &config.layers));
  RETURN_IF_ERROR(ReadSize(json, "n_head", std::nullopt, &config.heads));
  RETURN_IF_ERROR(RequireValue(json, "n_inner", 4 * config.width));
  RETURN_IF_ERROR(RequireOneOf(json, "activation_function", {"gelu_new", "gelu_pytorch_tanh"}));
  RETURN_IF_ERROR(ReadNumber(json, "layer_norm_epsilon", &config.norm_epsilon));
  RETURN_IF_ERROR(RequireValue(json, "scale_attn_weights", true));
  RETURN_IF_ERROR(RequireValue(json, "scale_attn_by_inverse_layer_idx", false));
  RETURN_IF_ERROR(RequireValue(json, "add_cross_attention", false));
  return RequireValue(json, "tie_word_embeddings", true);
}

// The base of the positions and how they are scaled, which newer versions have in one table.
absl::Status ReadRope(const Json& json, graph::ModelConfig* config) {
  RETURN_IF_ERROR(ReadNumber(json, "rope_theta", &config->rotary_base));
  RETURN_IF_ERROR(RequireValue(json, "partial_rotary_factor", 1.0));
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!Has(json, key)) continue;
    const Json& table = json[key];
    if (!table.is_object()) return Wrong(key, "a table", table);
    RETURN_IF_ERROR(ReadNumber(table, "rope_theta", &config->rotary_base));
    RETURN_IF_ERROR(RequireValue(table, "partial_rotary_factor", 1.0));
    const char* const type_key = Has(table, "rope_type") ? "rope_type" : "type";
    RETURN_IF_ERROR(RequireOneOf(table, type_key, {"default", "linear", "dynamic", "llama3"}));
    graph::RotaryScaling& scaling = config->rotary_scaling;
    if (!Has(table, type_key) || table[type_key] == "default") continue;
    scaling.type = table[type_key].get<std::string>();
    RETURN_IF_ERROR(RequireNumber(table, "factor", &scaling.factor));
    // The sequences of "dynamic" that are as without it.
    scaling.context = config->context;
    if (scaling.type != "llama3") continue;
    RETURN_IF_ERROR(RequireNumber(table, "low_freq_factor", &scaling.low_factor));
    RETURN_IF_ERROR(RequireNumber(table, "high_freq_factor", &scaling.high_factor));
    RETURN_IF_ERROR(
        ReadSize(table, "original_max_position_embeddings", std::nullopt, &scaling.context));
  }
  return absl::OkStatus();
}

absl::Status ReadLlama(const Json& json, FolderConfig* folder) {
  graph::ModelConfig& config = folder->config;
  folder->model = "llama";
  RETURN_IF_ERROR(ReadSize(json, "vocab_size", std::nullopt, &config.vocabulary));
  RETURN_IF_ERROR(ReadSize(json, "max_position_embeddings", std::nullopt, &config.context));
  RETURN_IF_ERROR(ReadSize(json, "hidden_size", std::nullopt, &config.width));
  RETURN_IF_ERROR(ReadSize(json, "intermediate_size", std::nullopt, &config.hidden));
  RETURN_IF_ERROR(ReadSize(json, "num_hidden_layers", std::nullopt, &config.layers));
  RETURN_IF_ERROR(ReadSize(json, "num_attention_heads", std::nullopt, &config.heads));
  RETURN_IF_ERROR(ReadSize(json, "num_key_value_heads", config.heads, &config.kv_heads));
  RETURN_IF_ERROR(RequireValue(json, "head_dim", config.width / config.heads));
  config.norm_epsilon = 1e-6;
  RETURN_IF_ERROR(ReadNumber(json, "rms_norm_eps", &config.norm_epsilon));
  RETURN_IF_ERROR(ReadRope(json, &config));
  RETURN_IF_ERROR(RequireOneOf(json, "hidden_act", {"silu"}));
  RETURN_IF_ERROR(RequireValue(json, "attention_bias", false));
  RETURN_IF_ERROR(RequireValue(json, "mlp_bias", false));
  return ReadBool(json, "tie_word_embeddings", &config.is_tied);
}

}  // namespace

absl::StatusOr<FolderConfig> ParseFolderConfig(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, actors::ParseJsonObject(text, "the text", kMaxConfigDepth));
  FolderConfig folder;
  folder.config.dropout = 0;
  if (!Has(json, "model_type")) return absl::InvalidArgumentError("has no \"model_type\"");
  RETURN_IF_ERROR(RequireOneOf(json, "model_type", {"gpt2", "llama"}));
  // Weights of a few bits a number.
  if (Has(json, "quantization_config")) {
    return absl::UnimplementedError("\"quantization_config\": quantized weights are not supported");
  }
  RETURN_IF_ERROR(json["model_type"] == "gpt2" ? ReadGpt2(json, &folder)
                                               : ReadLlama(json, &folder));
  RETURN_IF_ERROR(ReadEndTokens(json, &folder.end_tokens));
  return folder;
}

bool ModelFolder::IsModelFolder(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(fs::path(path) / kConfigFile, error);
}

absl::StatusOr<FolderConfig> ReadFolderConfig(const std::string& path) {
  const std::string config_path = StrCat(path, "/", kConfigFile);
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(config_path, kMaxConfigBytes));
  absl::StatusOr<FolderConfig> config = ParseFolderConfig(text);
  if (!config.ok()) return actors::WithPrefix(StrCat(config_path, ": "), config.status());
  return config;
}

absl::StatusOr<ModelFolder> ModelFolder::Open(const Registries& registries,
                                              const std::string& path) {
  absl::StatusOr<FolderConfig> config = ReadFolderConfig(path);
  if (!config.ok()) return config.status();
  const graph::Model* const model = registries.models.FindModel(config->model);
  if (model == nullptr) {
    return absl::UnimplementedError(StrCat(path, ": there is no model ", config->model));
  }
  if (const absl::Status status = model->check(config->config); !status.ok()) {
    return actors::WithPrefix(StrCat(path, "/", kConfigFile, ": "), status);
  }
  ASSIGN_OR_RETURN(actors::Checkpoint weights, actors::Checkpoint::Open(path));
  std::error_code error;
  std::string tokenizer = StrCat(path, "/", kTokenizerFile);
  if (!fs::exists(tokenizer, error)) tokenizer.clear();
  // Before memory is taken for a model of any size.
  ASSIGN_OR_RETURN(const graph::Graph graph,
                   graph::BuildModelGraph(registries.ops, *model, config->config,
                                          graph::ModelUse::kPredict, /*batch=*/1));
  std::vector<planner::StatePlan> parameters;
  for (const graph::Node& node : graph.nodes()) {
    if (node.op->role() != graph::OpRole::kParameter) continue;
    const graph::Value& value = graph.value(node.results[0]);
    planner::StatePlan& parameter = parameters.emplace_back();
    parameter.name = value.name;
    parameter.type = value.type;
    parameter.is_parameter = true;
  }
  RETURN_IF_ERROR(FolderWeights::Create(weights, config->model, std::move(parameters)).status());
  return ModelFolder(*std::move(config), std::move(tokenizer), std::move(weights));
}

absl::StatusOr<std::shared_ptr<const actors::KeptStates>> ModelFolder::Weights(
    std::vector<planner::StatePlan> states) const {
  return FolderWeights::Create(weights_, config_.model, std::move(states));
}

}  // namespace penstock::cli
