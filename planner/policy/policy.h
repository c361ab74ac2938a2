// Scheduling policies: the order in which the groups of a pipeline run their phases (phase.h). The
// same object serves planning, simulation and runs.
//
// Phases of one chunk and kind run in increasing order of micro-batch. Phases that run once a step
// (before the first F, or after the last B) and communication are not the policy's business. A
// wrong policy makes a run slow, never wrong: a phase starts only when its tokens and credits are
// there.
//
// A policy implements one of these:
//   PlannedOrder     the order of one group, from the counts in a StageContext;
//   PlanOrders       the orders of all groups, from the times, links and limits of a Pipeline;
//   CreateScheduler  decides as the plan runs, from what is ready.
// MakeGreedyPolicy (greedy_policy.h) makes one of a comparison of two phases.
//
// Thread rule: Policy objects are immutable and shared; a StageScheduler belongs to its stage.

#ifndef PENSTOCK_PLANNER_POLICY_POLICY_H_
#define PENSTOCK_PLANNER_POLICY_POLICY_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "planner/policy/phase.h"
#include "planner/policy/placement.h"

namespace penstock::planner {

struct Pipeline;  // pipeline.h

struct StageContext {
  int stage = 0;                                            // the group
  int num_stages = 1;                                       // of the pipeline
  int num_microbatches = 1;                                 // of a step
  std::vector<PhaseKinds> chunks = {{true, false, false}};  // at least one

  // Parts of the model that the stage runs.
  int num_chunks() const { return static_cast<int>(chunks.size()); }
  // Whether a chunk has phases of a kind.
  bool has(PhaseKind kind, int chunk = 0) const {
    return static_cast<int>(kind) < kNumPolicyKinds && chunk >= 0 && chunk < num_chunks() &&
           chunks[chunk][static_cast<int>(kind)];
  }
  // Whether the stage has phases to order.
  bool has_choices() const;
};

// What a scheduler sees of one chunk. Counts are of this step.
struct ChunkView {
  std::array<int, kNumPolicyKinds> issued = {};     // chosen so far
  std::array<int, kNumPolicyKinds> completed = {};  // finished on every device of the group
  std::array<int, kNumPolicyKinds> ready = {};  // whose tokens and credits are there, beyond issued
  std::array<int64_t, kNumPolicyKinds> mean_ns = {};  // measured duration; 0: not yet known
};

// What a scheduler sees of its stage when it is asked.
struct StageView {
  std::vector<ChunkView> chunks;  // as of StageContext
};

// Orders the phases of a stage while they run.
class StageScheduler {
 public:
  virtual ~StageScheduler() = default;
  // The next phase, or nothing: ask again when the view has changed. Every phase of the step must
  // be chosen exactly once, those of one chunk and kind in micro-batch order.
  virtual std::optional<PhaseChoice> Next(const StageView& view) = 0;
  // A new step begins.
  virtual void Reset() = 0;
};

// What a policy asks of a pipeline.
struct PolicyNeeds {
  std::optional<Placement> placement = Placement::kLoop;  // of several chunks; nullopt: any
  bool splits_backward = false;                           // into B and W
  int min_chunks = 1;                                     // a group
  int max_chunks = kMaxChunks;                            // likewise
  // What a job leaves open of chunks and placement is what takes the shortest step
  // (stage_layouts.h). Otherwise it has as few chunks as may be, in a loop.
  bool chooses_layout = false;
  // An F and a B of another chunk that follows it are meant to run together. They run one after the
  // other here; orders as CSV write them as a pair (order_csv.h).
  bool pairs_phases = false;
};

// A rule for the order in which the stages of a pipeline run their phases.
class Policy {
 public:
  virtual ~Policy() = default;
  // By which jobs ask for it.
  virtual std::string_view name() const = 0;

  // What pipelines it can order.
  virtual PolicyNeeds needs() const { return {}; }

  // All phases of a step of one group, those of one chunk and kind in micro-batch order; empty if
  // not fixed beforehand. Default: empty.
  virtual std::vector<PhaseChoice> PlannedOrder(const StageContext& context) const;

  // The orders of all groups; empty ones of groups that decide as they go. Default: PlannedOrder of
  // each. Errors say what the policy lacks, such as memory. REQUIRES: CheckNeeds accepts the
  // pipeline.
  virtual absl::StatusOr<PipelineOrders> PlanOrders(const Pipeline& pipeline) const;

  // Of a policy that decides as it goes: micro-batches whose activations a stage may hold at once,
  // the credits of channels from F to B and W. Default: all of them. Those of a planned order are
  // derived from it, and this is not asked.
  virtual int ActivationCredits(const StageContext& context) const;

  // Default: follows the planned order; null where there is none. A policy that decides as it goes
  // overrides this.
  virtual std::unique_ptr<StageScheduler> CreateScheduler(const StageContext& context) const;
};

// Gives the phases of `order` one after another.
std::unique_ptr<StageScheduler> FollowOrder(std::vector<PhaseChoice> order);

// Asks the policy. Errors: it throws, or it gives less than one credit.
absl::StatusOr<int> ActivationCreditsOf(const Policy& policy, const StageContext& context);

// What a policy has for one stage.
struct StageSchedule {
  std::vector<PhaseChoice> order;             // empty where it decides as it goes
  std::unique_ptr<StageScheduler> scheduler;  // null where the stage has no phases to order
};

// Whether every phase that the stage has is in the order once, those of one kind in micro-batch
// order. The error says what is wrong, for example "F of micro-batch 2, expected micro-batch 1".
absl::Status CheckOrder(const StageContext& context, absl::Span<const PhaseChoice> order);

// Whether the policy can order the pipeline: its placement, chunks and kinds of phases.
absl::Status CheckNeeds(const Policy& policy, const Pipeline& pipeline);

// Where the policy wants the stages; in a loop if it takes any placement.
StagePlacement PlacementOf(const Policy& policy, int num_groups, int num_chunks);

// Asks the policy. Errors: CheckNeeds, those of PlanOrders and CheckOrder, it throws, or nothing is
// planned for a group and it does not decide as it goes.
absl::StatusOr<PipelineOrders> PlanPipeline(const Policy& policy, const Pipeline& pipeline);

// Asks the policy. Errors: it has neither an order nor a scheduler for a stage that has phases to
// order, or it throws.
absl::StatusOr<StageSchedule> MakeSchedule(const Policy& policy, const StageContext& context);

// Policies by name; built by main() or the embedding application. Copies share the policies.
class PolicyRegistry {
 public:
  // An error if its name is taken.
  absl::Status Add(std::shared_ptr<const Policy> policy);
  const Policy* Find(std::string_view name) const;  // null when unknown
  std::vector<std::string_view> Names() const;      // sorted

 private:
  absl::flat_hash_map<std::string_view, std::shared_ptr<const Policy>> policies_;
};

// The policies of docs/policies.md.
PolicyRegistry BuiltinPolicies();

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_POLICY_POLICY_H_
