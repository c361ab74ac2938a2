// Runs one stage controller: decides on the next phases with every submitted step and whenever an
// executor asks.
//
// A dynamic policy may decline every phase that is ready. The actor then checks periodically for a
// stall. If all devices of the plan are in this process, it asks the stall detector and fails the
// session. Otherwise it reports that the stage declines while the executors of this process make no
// progress.
//
// Thread rule: an event-based actor.
// Invariant: at most one failure is reported.

#ifndef PENSTOCK_ACTORS_ENGINE_STAGE_ACTOR_INTERNAL_H_
#define PENSTOCK_ACTORS_ENGINE_STAGE_ACTOR_INTERNAL_H_

#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "caf/all.hpp"

#include "actors/engine/host_activity_internal.h"
#include "actors/engine/host_messages_internal.h"
#include "actors/engine/stage.h"
#include "actors/engine/stall_detector.h"

namespace penstock::actors {

// The callbacks of HostParts that concern the whole session.
struct StageCallbacks {
  std::function<void(const absl::Status&)> on_failure;
  std::function<void()> on_declined;
};

// Tells a stage to see whether it is stalled.
using StallAtom = caf::atom_constant<caf::atom("stall")>;

using StageHandle = caf::typed_actor<caf::reacts_to<WakeAtom>, caf::reacts_to<StallAtom>,
                                     caf::reacts_to<SubmitMessage>, caf::reacts_to<DescribeMessage>,
                                     caf::reacts_to<DeclinedMessage>>;

class StageActor : public StageHandle::base {
 public:
  // `index` counts the stages of the host. `stall_detector` is null if devices of the plan are in
  // other processes. `stall_detector` and `activity` must outlive the actor.
  StageActor(caf::actor_config& config, std::unique_ptr<StageController> controller, size_t index,
             const StallDetector* stall_detector, HostActivity* activity, StageCallbacks callbacks);

  const char* name() const override { return "stage"; }
  behavior_type make_behavior() override;

 private:
  void Decide();
  bool Poll();
  void Fail(const absl::Status& status);
  void Watch();
  void CheckStall();

  const std::unique_ptr<StageController> controller_;
  const size_t index_;
  const StallDetector* const stall_detector_;
  HostActivity& activity_;
  const StageCallbacks callbacks_;
  ActivityReport last_report_;  // of the last check for a stall
  bool is_watching_ = false;
  bool has_failed_ = false;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_STAGE_ACTOR_INTERNAL_H_
