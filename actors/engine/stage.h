// Which phase a stage group runs next: one decision a group, followed by all its devices in the
// same order. The controller owns the policy's scheduler and hands its choices ahead of need
// through one ring a device; executors count what they have completed.
//
// Example: two devices, 1f1b, M = 2. The controller asks its scheduler until the window of 64
// choices is full: F0 B0 F1 B1 of step 0, F0 B0 ... of step 1. Each device starts the choice at the
// head of its ring once its step is submitted and its gates are open, and counts its completions.
// A policy without a planned order is asked only about submitted steps, again and again as the
// counts change.
//
// Thread rule: a StageController belongs to one thread (the stage's actor); a StageLink joins it to
// one executor, each touching the side named.
// Invariants: every device of the group sees the same choices in the same order; a choice is of a
// chunk and kind that the stage has and of the next micro-batch of those, or the stage fails.

#ifndef PENSTOCK_ACTORS_ENGINE_STAGE_H_
#define PENSTOCK_ACTORS_ENGINE_STAGE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "actors/engine/spsc_ring.h"
#include "planner/plan/plan.h"
#include "planner/policy/policy.h"

namespace penstock::actors {

// One choice: the next phase that each device of the group runs.
struct PhaseDecision {
  int64_t step = 0;         // counted from 0 in the session
  uint32_t microbatch = 0;  // of the step, from 0
  uint32_t type = 0;        // planner::PhaseType
};

// "F3"; of a later chunk "F3 of chunk 1".
std::string ToString(const PhaseDecision& decision);

// Counts of one device and type of phase since the start of the session; they only grow.
struct PhaseCounts {
  std::atomic<int64_t> completed{0};  // instances that have run
  // Instances whose tokens and credits are or were there. Kept only where counts_ready is set.
  std::atomic<int64_t> available{0};
  std::atomic<int64_t> duration_ns{0};  // that those have taken, in all
};

// What a controller and the executor of one device of its stage share.
struct StageLink {
  static constexpr size_t kWindow = 64;  // choices ahead

  SpscRing<PhaseDecision> decisions{kWindow};  // controller to executor
  // Of each type of phase. The controller makes them before either side starts, the executor
  // counts.
  std::vector<PhaseCounts> counts;
  bool counts_ready = false;  // set before either side starts

  // The controller asks for a wake-up when no more than `wake_size` choices are left.
  std::atomic<bool> is_waiting{false};
  std::atomic<size_t> wake_size{0};       // set by the controller before `is_waiting`
  std::function<void()> wake_controller;  // may be called from the executor; set before the start
  std::function<void()> wake_executor;    // the other way round
};

// Decides for one stage group, by the plan's order for it or by asking the policy.
class StageController {
 public:
  // `links` are those of the stage's devices; they and the policies outlive the controller. The
  // plan's policy is asked only where the plan has no order for the stage. `first_step`: what step
  // 0 counts as in messages.
  static absl::StatusOr<std::unique_ptr<StageController>> Create(
      const planner::Plan& plan, uint32_t stage, const planner::PolicyRegistry& policies,
      std::vector<StageLink*> links, int64_t first_step = 0);

  // A link of another device of the stage, before the first Poll. REQUIRES: !is_planned().
  void AddLink(StageLink* link);

  // Steps below `count` have been submitted.
  void SetSubmittedSteps(int64_t count) { submitted_ = count; }

  // Asks the policy as far as the window goes. Returns whether anything was decided. After an
  // illegal choice it decides nothing more.
  bool Poll();

  // The policy was asked, chooses nothing, and all its choices have been completed, though a phase
  // could run. If nothing else is under way either, that is for ever.
  bool HasDeclined();

  // The policy chooses as it goes, was asked, and has nothing for the step under way.
  bool HasNoChoice() const { return !is_planned_ && step_ < submitted_ && !IsStepIssued(); }

  // Before the owner goes to sleep: executors wake it from now on. Poll once more afterwards.
  void ArmWait();

  // Why it decides nothing more: the policy has made an illegal choice or has thrown. OK until
  // then.
  const absl::Status& status() const { return status_; }

  // The policy's order is fixed: controllers with other devices of the stage choose alike.
  bool is_planned() const { return is_planned_; }

  // "stage 0, policy '1f1b': step 3, F issued 2 completed 1, ..."; for reports.
  std::string Describe();

 private:
  StageController(uint32_t stage, std::string policy_name, planner::StageContext context,
                  std::vector<StageLink*> links, int64_t first_step);

  void Prepare(StageLink* link) const;
  const planner::StageView& View();
  std::string DescribeCounts();
  bool IsStepIssued() const;
  // Whether it is a phase of this stage, of the micro-batch after the last one issued.
  bool IsNext(const planner::PhaseChoice& choice) const;
  absl::Status ThrewError(std::string_view what) const;

  const uint32_t stage_;
  const std::string policy_name_;
  const planner::StageContext context_;
  std::vector<StageLink*> links_;
  const int64_t first_step_;
  std::unique_ptr<planner::StageScheduler> scheduler_;
  bool is_planned_ = false;  // choices do not depend on the view: decided before submission
  int64_t submitted_ = 0;
  int64_t step_ = 0;
  planner::StageView view_;  // of step_
  absl::Status status_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_STAGE_H_
