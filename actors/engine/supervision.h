// What happens when an actor ends that should not have: one table for all children of supervisors
// (supervisor_internal.h).
//
//   kRestart    the child has no state to lose: another one takes its place
//   kEscalate   the state of the child is lost: the failure is reported, and the owner of the
//               supervisor ends the work that depended on the child: the job, the session, a run of
//               steps or the writing of checkpoints
//
// A child that ends more often than `max_restarts` times in kRestartWindow escalates, and so does
// one that cannot be started again.
//
// Thread rule: constants.

#ifndef PENSTOCK_ACTORS_ENGINE_SUPERVISION_H_
#define PENSTOCK_ACTORS_ENGINE_SUPERVISION_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <string_view>

namespace penstock::actors {

enum class Child {
  kDeviceExecutor,
  kStageController,
  kCommunicationExecutor,
  kMembership,
  kFailureDetector,
  kLauncher,
  kOutputPump,
  kJoinProxy,
  kCheckpointWriter,
  kSource,
  kSink,
};

enum class OnEnd { kRestart, kEscalate };

struct ChildStrategy {
  Child child;
  OnEnd on_end;
  int max_restarts;
  std::string_view reason;
};

inline constexpr std::chrono::seconds kRestartWindow{10};

inline constexpr std::array kChildStrategies = {
    ChildStrategy{Child::kDeviceExecutor, OnEnd::kEscalate, 0, "has the device's states"},
    ChildStrategy{Child::kStageController, OnEnd::kEscalate, 0, "has the choices of the stage"},
    ChildStrategy{Child::kCommunicationExecutor, OnEnd::kEscalate, 0, "has transfers under way"},
    ChildStrategy{Child::kMembership, OnEnd::kEscalate, 0, "knows who is in the job"},
    ChildStrategy{Child::kFailureDetector, OnEnd::kEscalate, 0, "knows who is silent"},
    ChildStrategy{Child::kLauncher, OnEnd::kEscalate, 0, "has the processes, which end with it"},
    ChildStrategy{Child::kOutputPump, OnEnd::kRestart, 5, "holds only queued lines"},
    // Joins that it holds are answered with an error (membership_internal.h).
    ChildStrategy{Child::kJoinProxy, OnEnd::kRestart, 5, "holds only joins without an answer"},
    ChildStrategy{Child::kCheckpointWriter, OnEnd::kEscalate, 0, "has copies to write"},
    ChildStrategy{Child::kSource, OnEnd::kEscalate, 0, "knows which step comes next"},
    ChildStrategy{Child::kSink, OnEnd::kEscalate, 0, "knows which steps are under way"},
};

constexpr const ChildStrategy& StrategyOf(Child child) {
  return kChildStrategies[static_cast<size_t>(child)];
}

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_SUPERVISION_H_
