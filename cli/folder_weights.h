// Weights that another program has written (weight_names.h), as the parameters of a model: to start
// a session from.
//
// Tensors of f32, f64, f16 and bf16 are converted to the type of the parameter. Nothing in the
// files is trusted. Errors begin with the path and name the tensor.
//
// Thread rule: immutable.

#ifndef PENSTOCK_CLI_FOLDER_WEIGHTS_H_
#define PENSTOCK_CLI_FOLDER_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/weight_names.h"

#include "actors/checkpoint/checkpoint.h"
#include "actors/session/kept_states.h"
#include "planner/plan/plan.h"

namespace penstock::cli {

class FolderWeights final : public actors::KeptStates {
 public:
  // `states` hold all parameters of the built-in model `model`; those that are no parameters, such
  // as an optimiser's, are zero. kInvalidArgument: a tensor is missing, has
  // another shape or is none of the model's; kUnimplemented: no weights are known for the model.
  static absl::StatusOr<std::shared_ptr<const actors::KeptStates>> Create(
      actors::Checkpoint weights, std::string_view model, std::vector<planner::StatePlan> states);

 private:
  FolderWeights(actors::Checkpoint weights, std::vector<planner::StatePlan> states,
                std::vector<std::optional<WeightSource>> sources)
      : KeptStates(std::move(states)), weights_(std::move(weights)), sources_(std::move(sources)) {}

  absl::Status ReadInto(uint32_t state, Tensor* value) const override;

  const actors::Checkpoint weights_;
  const std::vector<std::optional<WeightSource>> sources_;  // of each state; none: no parameter
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_FOLDER_WEIGHTS_H_
