#include "cli/folder_weights.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "cli/npy.h"

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

using actors::Checkpoint;
using actors::CheckpointTensor;

absl::Status CheckTensor(const Checkpoint& weights, const WeightSource& source,
                         const planner::StatePlan& parameter) {
  const CheckpointTensor* const tensor = weights.Find(source.name);
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(StrCat(weights.path(), ": has no tensor ", source.name, " ",
                                             ToString(source.shape), ", which is the parameter ",
                                             parameter.name));
  }
  if (tensor->type.shape != source.shape) {
    return absl::InvalidArgumentError(StrCat(weights.path(), ": tensor ", source.name, " is ",
                                             ToString(tensor->type), "; expected the shape ",
                                             ToString(source.shape)));
  }
  if (!IsFloat(tensor->type.dtype)) {
    return absl::InvalidArgumentError(StrCat(weights.path(), ": tensor ", source.name, " is ",
                                             ToString(tensor->type),
                                             "; expected f32, f64, f16 or bf16"));
  }
  return absl::OkStatus();
}

// The matrix of the logits that is tied to the embedding has to be that.
absl::Status CheckTied(const Checkpoint& weights, const CheckpointTensor& logits,
                       std::string_view embedding) {
  ASSIGN_OR_RETURN(const Tensor ours, weights.Read(embedding));
  ASSIGN_OR_RETURN(const Tensor theirs, weights.Read(logits.name));
  if (ours.type() == theirs.type() &&
      std::memcmp(ours.data(), theirs.data(), ours.type().num_bytes()) == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(StrCat(weights.path(), ": tensor ", logits.name,
                                           " is not equal to ", embedding,
                                           ", to which config.json ties it"));
}

// to[rows, columns] = the transpose of from[columns, rows], in blocks that fit the cache.
template <typename T>
void Transpose(const T* from, int64_t rows, int64_t columns, T* to) {
  constexpr int64_t kBlock = 32;
  for (int64_t i0 = 0; i0 < rows; i0 += kBlock) {
    for (int64_t j0 = 0; j0 < columns; j0 += kBlock) {
      for (int64_t i = i0; i < std::min(rows, i0 + kBlock); ++i) {
        for (int64_t j = j0; j < std::min(columns, j0 + kBlock); ++j) {
          to[i * columns + j] = from[j * rows + i];
        }
      }
    }
  }
}

// The value with which a state begins that is no parameter.
absl::Status FillFirst(const planner::StatePlan& state, Tensor* value) {
  if (state.init != "zeros") {
    return absl::UnimplementedError(StrCat("the state ", state.name, " begins with ", state.init));
  }
  std::memset(value->data(), 0, value->type().num_bytes());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const actors::KeptStates>> FolderWeights::Create(
    Checkpoint weights, std::string_view model, std::vector<planner::StatePlan> states) {
  const std::string_view known_prefix = WeightPrefix(model);
  if (known_prefix.empty()) {
    return absl::UnimplementedError(StrCat(weights.path(),
                                           ": the names of weights are known for "
                                           "the models gpt and llama, not for ",
                                           model));
  }
  std::string_view prefix;
  for (const CheckpointTensor& tensor : weights.tensors()) {
    if (tensor.name.starts_with(known_prefix)) prefix = known_prefix;
  }
  std::vector<std::optional<WeightSource>> sources;
  std::set<std::string, std::less<>> used;
  std::string embedding;
  for (const planner::StatePlan& parameter : states) {
    if (!parameter.is_parameter) {
      sources.emplace_back();
      continue;
    }
    std::optional<WeightSource> source = FindWeight(model, parameter.name, parameter.type.shape);
    if (!source.has_value()) {
      return absl::UnimplementedError(
          StrCat(weights.path(), ": no tensor is known to be the ", "parameter ", parameter.name));
    }
    if (source->name != kLogitsWeight) source->name = StrCat(prefix, source->name);
    RETURN_IF_ERROR(CheckTensor(weights, *source, parameter));
    if (parameter.name == kTokenEmbedding) embedding = source->name;
    used.insert(source->name);
    sources.push_back(std::move(source));
  }
  for (const CheckpointTensor& tensor : weights.tensors()) {
    if (used.contains(tensor.name)) continue;
    if (tensor.name == kLogitsWeight && !embedding.empty()) {
      RETURN_IF_ERROR(CheckTied(weights, tensor, embedding));
      continue;
    }
    const std::string_view name = std::string_view(tensor.name);
    if (name.starts_with(prefix) && IsConstantTensor(model, name.substr(prefix.size()))) continue;
    return absl::InvalidArgumentError(
        StrCat(weights.path(), ": tensor ", tensor.name, " (", ToString(tensor.type),
               ") is no parameter of the model ", model, " with the sizes in config.json"));
  }
  return std::shared_ptr<const actors::KeptStates>(
      new FolderWeights(std::move(weights), std::move(states), std::move(sources)));
}

absl::Status FolderWeights::ReadInto(uint32_t state, Tensor* value) const {
  if (!sources_[state].has_value()) return FillFirst(states()[state], value);
  const WeightSource& source = *sources_[state];
  ASSIGN_OR_RETURN(const Tensor stored, weights_.Read(source.name));
  ASSIGN_OR_RETURN(const Tensor converted, ConvertTensor(stored, value->type().dtype));
  if (!source.is_transposed) {
    std::memcpy(value->data(), converted.data(), value->type().num_bytes());
    return absl::OkStatus();
  }
  const int64_t rows = source.shape[1];
  const int64_t columns = source.shape[0];
  switch (value->type().dtype) {
    case DType::kF32:
      Transpose(converted.As<float>(), rows, columns, value->As<float>());
      return absl::OkStatus();
    case DType::kF64:
      Transpose(converted.As<double>(), rows, columns, value->As<double>());
      return absl::OkStatus();
    default:
      return absl::UnimplementedError(
          StrCat("the parameter ", states()[state].name, " is ", ToString(value->type())));
  }
}

}  // namespace penstock::cli
