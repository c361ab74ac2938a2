// The states of a checkpoint, to start a session from.
//
//   ASSIGN_OR_RETURN(options.states, CheckpointStates::Create(checkpoint, plan.states));
//   options.first_step = info.step;
//
// A session reads each state when it starts, one after the other, and writes it into the places
// that its plan has: whatever the layout was in which it was written.
//
// Thread rule: immutable.

#ifndef PENSTOCK_ACTORS_SESSION_CHECKPOINT_STATES_H_
#define PENSTOCK_ACTORS_SESSION_CHECKPOINT_STATES_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "actors/checkpoint/checkpoint.h"
#include "actors/session/kept_states.h"
#include "planner/plan/plan.h"

namespace penstock::actors {

// See the top of this file.
class CheckpointStates final : public KeptStates {
 public:
  // Those states of a plan. kInvalidArgument names one that the checkpoint does not have, or not of
  // its type.
  static absl::StatusOr<std::shared_ptr<const KeptStates>> Create(
      Checkpoint checkpoint, std::vector<planner::StatePlan> states);

 private:
  CheckpointStates(Checkpoint checkpoint, std::vector<planner::StatePlan> states)
      : KeptStates(std::move(states)), checkpoint_(std::move(checkpoint)) {}

  absl::Status ReadInto(uint32_t state, Tensor* value) const override;

  const Checkpoint checkpoint_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_SESSION_CHECKPOINT_STATES_H_
