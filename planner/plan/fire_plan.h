// Fires a plan without kernels, to prove that it cannot deadlock, or to see how long it takes.
//
// Lanes, gates, in-phase order and communication are as plan.h says; a collective, send or receive
// completes when all who meet there have started it. Kernels complete at once, so that a phase
// takes as many steps as it has communication and channels to other phases.
//
// Once the order of the stages is fixed, firing one phase never takes from another what it needs: a
// channel has one producer and one consumer, and a lane one order. All firing sequences then lead
// to the same end, and since channels' rates balance, a step leaves every place with the tokens it
// found. So one step that completes proves all of them; two are fired, submitted together, so
// that the peaks are those of steps that overlap. For a policy without a planned order, any phase
// that is ready on every device of its stage is taken, latest kind first; that proves this order
// alone.
//
// With times (FiringTimes), four steps, submitted together, are fired in virtual time, as the
// engine does it: in a phase, communication starts as soon as its inputs are there, and of the
// other actors that are ready the first in the planned order computes, one at a time. Communication
// completes when the times say so. Then step_ends_s is filled in; replay.h has times from rates of
// links.
//
// A device may copy to and from its host beside its kernels (FiringTimes::HasCopyStreams). In a
// phase of a lane, a copy then begins when the kernels before it in the planned order have ended,
// and runs beside those behind it. The first kernel that reads the copy waits for it, and the
// kernels behind that one wait, too. Communication that reads the copy starts when the copy has
// ended, and holds up nothing (in the engine it holds up later kernels, unless it runs on a stream
// of its own). The phase ends, and gives tokens and credits, when its copies have ended.
//
// Thread rule: pure functions, but for the times given to them.

#ifndef PENSTOCK_PLANNER_PLAN_FIRE_PLAN_H_
#define PENSTOCK_PLANNER_PLAN_FIRE_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "planner/plan/check_memory.h"
#include "planner/plan/plan.h"
#include "planner/plan/rendezvous.h"
#include "planner/policy/policy.h"

namespace penstock::planner {

struct FiringResult {
  std::vector<uint64_t> peak_live_bytes;  // of each device
  uint64_t firings = 0;                   // of actors, in one step
  std::vector<double> step_ends_s;        // with times: when each of the steps was complete
  // Of each stage: the types (policy/phase.h) of the phases of its compute lane, in order; of one
  // step where the order is planned, of all steps where it was chosen while firing.
  std::vector<std::vector<uint32_t>> stage_orders;
  std::vector<bool> is_stage_planned;
};

// An actor that computes, and how often it has before.
struct FiredActor {
  uint32_t device = 0;
  uint32_t actor = 0;
  uint32_t number = 0;
};

// How long what is fired takes, from 0 s on.
class FiringTimes {
 public:
  virtual ~FiringTimes() = default;
  // Of the computation or copy of an actor that does not communicate.
  virtual double ComputeSeconds(uint32_t device, uint32_t actor) const = 0;
  // When a computation that could begin at `now` ends. Calls come in order of time, but for
  // computations that wait for copies.
  virtual double Compute(const FiredActor& fired, double now, double seconds) = 0;
  // Whether the device copies to and from its host beside its kernels.
  virtual bool HasCopyStreams(uint32_t device) const = 0;
  // When such a copy ends, which could begin at `begin_s`. Those of a direction come in their
  // order.
  virtual double Copy(const FiredActor& fired, bool is_to_host, double begin_s, double seconds) = 0;
  // When the communication of a rendezvous ends, for the `number`th time, that all members had
  // started at `now`. Likewise.
  virtual double Communicate(uint32_t rendezvous, uint32_t number, double now) = 0;
};

// Phases go in the order of ScheduleOf (stage_schedule.h), whose errors it returns.
// kFailedPrecondition names the cycle of phases and actors that wait for each other. REQUIRES:
// CheckReferences, CheckStructure and CheckMemory accept the plan, whose rendezvous_table and
// workspaces are given.
absl::StatusOr<FiringResult> FirePlan(const Plan& plan, const PolicyRegistry& policies,
                                      const RendezvousTable& rendezvous_table,
                                      const PhaseWorkspaceBytes& workspace_bytes,
                                      FiringTimes* times = nullptr);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_FIRE_PLAN_H_
