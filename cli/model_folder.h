// A model in a folder as the library transformers writes it: config.json says which architecture it
// is and how large, model.safetensors (or several files with model.safetensors.index.json) holds
// its weights (weight_names.h), tokenizer.json may say what its tokens are.
//
// "model_type" gpt2 and llama are known. A setting that the built-in models cannot follow is
// refused by its name. Nothing in the folder is trusted. Errors begin with the path.
//
// Thread rule: values; pure functions but for the files.

#ifndef PENSTOCK_CLI_MODEL_FOLDER_H_
#define PENSTOCK_CLI_MODEL_FOLDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/environment.h"

#include "actors/checkpoint/checkpoint.h"
#include "actors/session/kept_states.h"
#include "graph/models/model.h"
#include "planner/plan/plan.h"

namespace penstock::cli {

struct FolderConfig {
  std::string model;  // "gpt" or "llama"
  graph::ModelConfig config;
  std::vector<int32_t> end_tokens;  // that end a text
};

// Of the text of a config.json. Errors do not name the file.
absl::StatusOr<FolderConfig> ParseFolderConfig(std::string_view text);

// Of a folder. Errors begin with the path.
absl::StatusOr<FolderConfig> ReadFolderConfig(const std::string& path);

class ModelFolder {
 public:
  // Whether the folder is one of these.
  static bool IsModelFolder(const std::string& path);

  // Reads config.json and what tensors there are, and checks that they are those of the model.
  static absl::StatusOr<ModelFolder> Open(const Registries& registries, const std::string& path);

  const FolderConfig& config() const { return config_; }
  // Empty: there is none.
  const std::string& tokenizer_path() const { return tokenizer_path_; }

  // The weights, as the states of a plan of the model; states that are no parameters are zero.
  absl::StatusOr<std::shared_ptr<const actors::KeptStates>> Weights(
      std::vector<planner::StatePlan> states) const;

 private:
  ModelFolder(FolderConfig config, std::string tokenizer_path, actors::Checkpoint weights)
      : config_(std::move(config)),
        tokenizer_path_(std::move(tokenizer_path)),
        weights_(std::move(weights)) {}

  FolderConfig config_;
  std::string tokenizer_path_;
  actors::Checkpoint weights_;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_MODEL_FOLDER_H_
