#include "actors/session/checkpoint_states.h"

#include "base/strings.h"

namespace penstock::actors {

absl::StatusOr<std::shared_ptr<const KeptStates>> CheckpointStates::Create(
    Checkpoint checkpoint, std::vector<planner::StatePlan> states) {
  for (const planner::StatePlan& state : states) {
    const CheckpointTensor* const tensor = checkpoint.Find(state.name);
    if (tensor == nullptr) {
      return absl::InvalidArgumentError(StrCat(checkpoint.path(), ": has no state ", state.name,
                                               " (", ToString(state.type), ")"));
    }
    if (tensor->type != state.type) {
      return absl::InvalidArgumentError(StrCat(checkpoint.path(), ": the state ", state.name,
                                               " is ", ToString(tensor->type), ", not ",
                                               ToString(state.type)));
    }
  }
  return std::shared_ptr<const KeptStates>(
      new CheckpointStates(std::move(checkpoint), std::move(states)));
}

absl::Status CheckpointStates::ReadInto(uint32_t state, Tensor* value) const {
  return checkpoint_.ReadInto(*checkpoint_.Find(states()[state].name), value);
}

}  // namespace penstock::actors
