// A pipeline as scheduling policies see it, and the timeline of a step that follows given orders.
//
// A pipeline consists of virtual stages, each on a group of devices. Stages exchange values along
// edges. A phase starts when the phase before it in the order of its group has ended and all that
// it reads has arrived:
//   F of stage v reads the F of the stages with a forward edge to v;
//   B of v reads F of v, and the B of the stages with a backward edge to v;
//   W of v reads B of v, or F where there is no B.
// Edges between stages of one group take no time.
//
// Example: 2 groups with a stage each, 1 micro-batch, F takes 1 s and B 2 s, each edge 0.5 s.
// Group 0 runs F0 in [0, 1), group 1 F0 in [1.5, 2.5) and B0 in [2.5, 4.5), group 0 B0 in [5, 7).
//
// Thread rule: values and pure functions.

#ifndef PENSTOCK_PLANNER_POLICY_PIPELINE_H_
#define PENSTOCK_PLANNER_POLICY_PIPELINE_H_

#include <array>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "planner/policy/placement.h"
#include "planner/policy/policy.h"

namespace penstock::planner {

// The most stage groups that orders may have, and uniform pipelines.
inline constexpr int kMaxGroups = 1 << 16;
// The most micro-batches of a step of a uniform pipeline.
inline constexpr int kMaxPipelineMicrobatches = 1 << 20;

// A part of the model on one group, as a policy sees it: its phases and what they take.
struct VirtualStage {
  int group = 0;  // that it lies on, from 0
  int chunk = 0;  // which of the group's stages, in the order of their numbers
  PhaseKinds kinds = {true, true, false};  // that it has; of a stage without B, W follows F
  std::array<double, kNumPolicyKinds> seconds = {1, 2, 0};  // of each kind; B with W if not split
  // Of each kind, the part of that time for which it needs a core (SharedCores).
  std::array<double, kNumPolicyKinds> core_shares = {1, 1, 1};
  double ready_s = 0;  // when its first F can start
  // What one micro-batch keeps from the start of its F to the end of its last B or W, in any unit.
  double activation = 1;

  // The kind of phase that one of `kind` follows in a micro-batch; -1: it is the first.
  int kind_before(size_t kind) const {
    for (int earlier = static_cast<int>(kind) - 1; earlier >= 0; --earlier) {
      if (kinds[earlier]) return earlier;
    }
    return -1;
  }
  // The last kind of phase of a micro-batch.
  PhaseKind last_kind() const {
    return kinds[2] ? PhaseKind::kWeight : kinds[1] ? PhaseKind::kBackward : PhaseKind::kForward;
  }
};

// What passes from a phase of one stage to the phase of the same kind of another, for every
// micro-batch.
struct PipelineEdge {
  int from = 0;            // index into Pipeline::stages
  int to = 0;              // likewise
  bool is_forward = true;  // joins F to F; false: B to B
  double latency_s = 0;    // of each transfer, beside others
  double transfer_s = 0;   // for which a transfer has the edge to itself
};

// A host with fewer cores than devices: groups that run phases at once slow each other down, and
// the devices of a group, which all need a core at the same time.
struct SharedCores {
  std::vector<double> devices_of_group;  // by group: devices on this host
  double at_once = 1;                    // devices that the cores can serve
};

// What a policy orders. REQUIRES, of functions that take one: all indices are in range.
struct Pipeline {
  int num_groups = 1;                // each of which runs one phase at a time
  int num_microbatches = 1;          // that pass through each stage
  StagePlacement placement;          // how policies find the stages of a group
  std::vector<VirtualStage> stages;  // by number
  // In any order; none between stages means that neither reads the other.
  std::vector<PipelineEdge> edges;
  std::vector<SharedCores> cores;  // a host each; empty: no group is slowed down by others
  // The most that a group may keep, in the unit of VirtualStage::activation; 0: no limit.
  double memory_limit = 0;
  // Whether the next step begins on each group as that is done, so that a step takes the longest
  // span; else, as where the optimiser waits for the norm of all gradients, it takes the makespan.
  bool overlaps_steps = true;
  // How long policies that search may take, as a share of their usual time; 0: not at all, for
  // estimates that are made by the hundred.
  double effort = 1;

  // REQUIRES: the group has such a chunk.
  int StageOf(int group, int chunk) const { return placement.StageOf(group, chunk); }
  // The virtual stage that the phase belongs to. REQUIRES: the group has its chunk.
  const VirtualStage& stage_of(int group, const PhaseChoice& phase) const {
    return stages[StageOf(group, phase.chunk)];
  }
  // Chunks of each group.
  int num_chunks() const { return placement.num_chunks; }
  // The group as PlannedOrder and CreateScheduler see it.
  StageContext ContextOf(int group) const;
  // From the end of a phase of one stage to the arrival at the other; 0 within a group.
  double LatencyS(int from, int to) const;
  // What a phase takes if it has its cores to itself. REQUIRES: the group has its chunk.
  double SecondsOf(int group, const PhaseChoice& phase) const {
    return stage_of(group, phase).seconds[static_cast<size_t>(phase.kind)];
  }
};

// What `penstock schedule` describes: equal stages in a chain. Each of the `num_chunks` chunks of a
// group takes its part of the seconds and activations given for a whole group.
struct UniformPipeline {
  int num_groups = 1;        // of devices, in the order of the chain
  int num_microbatches = 1;  // of the step; with a bidirectional placement, half in each direction
  int num_chunks = 1;        // of the model that each group has
  Placement placement = Placement::kLoop;  // of the chunks
  double forward_s = 1;                    // F of all chunks of a group, for one micro-batch
  double backward_s = 1;                   // of the gradients of inputs
  double weight_s = 1;                     // likewise, of the gradients of weights
  double latency_s = 0;                    // of each edge between groups
  bool splits_backward = true;             // into B and W
};
// Errors: counts below 1, times that are negative or not finite, or what the placement cannot hold.
absl::StatusOr<Pipeline> MakePipeline(const UniformPipeline& uniform);

// Edges between consecutive stages of `placement`, in both directions.
std::vector<PipelineEdge> ChainEdges(const StagePlacement& placement, double latency_s);

// One phase of a timeline. Times count from the start of the step.
struct PhaseRun {
  PhaseChoice phase;   // of its group
  int stage = 0;       // virtual
  double begin_s = 0;  // when it starts
  double end_s = 0;    // when it has ended; what reads it on other groups starts later
};

// A step in which each group has followed its order.
struct Timeline {
  std::vector<std::vector<PhaseRun>> groups;  // if asked for
  std::vector<double> end_s;                  // by group
  std::vector<int> most_in_flight;  // by virtual stage: micro-batches whose activations it keeps
  double makespan_s = 0;            // from 0 to the end of the last phase
  double span_s = 0;                // largest over groups, from their first begin to their end
  std::vector<double> peak_activations;  // by group, in the unit of VirtualStage::activation
};

// The share of a group's time in which it computes nothing: (span - busy) / span, with the time
// that the busiest group computes. 0 if nothing takes time. REQUIRES: the timeline has its phases.
double BubbleOf(const Timeline& timeline);

// Whether each phase that a stage has is in its group's order once, those of one kind and chunk in
// the order of micro-batches.
absl::Status CheckOrders(const Pipeline& pipeline, const PipelineOrders& orders);

// Errors: those of CheckOrders; kFailedPrecondition with the cycle of phases if orders wait for
// each other for ever.
//
// `keeps_phases`: Timeline::groups is filled in. Estimates, which are made by the hundred, do
// without.
absl::StatusOr<Timeline> RunPipeline(const Pipeline& pipeline, const PipelineOrders& orders,
                                     bool keeps_phases = true);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_POLICY_PIPELINE_H_
