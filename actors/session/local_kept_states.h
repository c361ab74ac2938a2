// Kept states of a session whose devices are all in this process.
//
// Thread rule: immutable.

#ifndef PENSTOCK_ACTORS_SESSION_LOCAL_KEPT_STATES_H_
#define PENSTOCK_ACTORS_SESSION_LOCAL_KEPT_STATES_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "actors/session/kept_states.h"
#include "actors/session/kept_tiles.h"

namespace penstock::actors {

class LocalKeptStates final : public KeptStates {
 public:
  LocalKeptStates(std::vector<planner::StatePlan> states, KeptTiles tiles)
      : KeptStates(std::move(states)), tiles_(std::move(tiles)) {}

  const KeptTiles& tiles() const { return tiles_; }

 private:
  absl::Status ReadInto(uint32_t state, Tensor* value) const override;

  const KeptTiles tiles_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_SESSION_LOCAL_KEPT_STATES_H_
