// What each stage of a lowered graph computes, communicates and holds in a step: what an estimate
// is made of, found without lowering to a plan.
//
// Of the devices of a stage, the first one counts: its tiles are the largest of each value. Kernels
// take what kernel_seconds.h says; collectives take what PredictCollective says with all groups of
// all stages at once.
//
// A collective counts as
//   gradient reduction  if it sums what the backward pass made, and only nodes that run once a step
//                       read the result: it runs beside the backward pass
//   inline              otherwise: its phase waits for it; but an exchange of a ring (TileRoll)
//                       goes on beside the kernels that need not wait for it, and what they hide
//                       does not count; nor does what earlier kernels of the phase hide of gathers
//                       of parameters per use, and later ones of gradients that are scattered once
//                       a micro-batch. What gradients of weights hide of collectives that backward
//                       phases wait for is told apart (lower/phase_order.h). Collectives of
//                       sub-batches (lower/sub_batches.h) are hidden by the kernels of their phase
//
// The host launches kernels and collectives ahead of the device: a phase takes as long as the
// launches of all of them where the device is faster than that.
//
// Copies between a device and its host (strategy/offload.h) run in their phases, at the rate of the
// link between the two, and what lies on the host counts apart. Where devices have memory of their
// own, copies go on beside kernels, and what a phase waits for them counts: before what reads the
// copy, and at its end.
//
// What passes between stages is charged as split-sends would send it, though what the graph has is
// whole: which stages are on devices of their own is known only when stages have been joined. Of a
// graph that has been through that pass, nothing is left to split. Before it, gradients of a weight
// that stages share are charged as whole terms, though the pass scatters them.
//
// Memory follows the rules of lower-to-plan: state and what crosses phases have registers of their
// own, in as many copies as micro-batches are in flight; what lives inside a phase shares a
// workspace by lifetime.
//
// Thread rule: values and pure functions.

#ifndef PENSTOCK_PLANNER_SEARCH_STAGE_WORK_H_
#define PENSTOCK_PLANNER_SEARCH_STAGE_WORK_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "graph/graph.h"
#include "planner/policy/placement.h"
#include "planner/search/communicating_groups.h"
#include "planner/search/machine.h"
#include "planner/sharding/send_sharding.h"

namespace penstock::planner {

// Seconds of one kind of phase for one micro-batch.
struct PhaseWork {
  double compute_s = 0;        // of its kernels, one after another
  double communication_s = 0;  // inline, and for copies to and from the host
  double core_s = 0;           // of that, what takes the core on which the device computes
  double launch_s = 0;         // the host's work, which runs beside both
  // What the phase takes.
  double seconds() const { return std::max(compute_s + communication_s, launch_s); }

  // Adds what another phase takes, field by field.
  PhaseWork& operator+=(const PhaseWork& other) {
    compute_s += other.compute_s;
    communication_s += other.communication_s;
    core_s += other.core_s;
    launch_s += other.launch_s;
    return *this;
  }
  friend bool operator==(const PhaseWork&, const PhaseWork&) = default;
};

// Gradients that one kind of collective sums between the same groups of devices.
struct GradientReduction {
  int group = 0;         // index in ModelWork::reduction_groups
  double num_bytes = 0;  // of each member's input, in all

  friend bool operator==(const GradientReduction&, const GradientReduction&) = default;
};

// Bytes of a device.
struct StageMemory {
  double parameters = 0;   // as the device holds them
  double optimizer = 0;    // other states
  double gradients = 0;    // and all else that is kept once a step
  double activations = 0;  // of one micro-batch, kept from its forward to its backward phase
  // Likewise, from B to W, if they are split: what gradients of weights are made of.
  double until_weight = 0;
  double forward_workspace = 0;   // of the phase's largest moment
  double backward_workspace = 0;  // likewise
  double update_workspace = 0;    // likewise
  double host = 0;                // in the memory of the host
  double host_activations = 0;    // likewise, of one micro-batch
};

// What one stage does in a step.
struct StageWork {
  PhaseWork forward;   // of one micro-batch
  PhaseWork backward;  // with weight gradients
  PhaseWork weight;    // the part of it that makes them
  // The part of backward.communication_s that goes on beside weight gradients, unless these have
  // phases of their own.
  double hidden_by_weights_s = 0;
  PhaseWork update;  // and all else that runs once a step
  // That are reduced beside the backward phases, once a step.
  std::vector<GradientReduction> gradients;
  StageMemory memory;  // of each of its devices

  // The backward phase without the communication that weight gradients hide.
  PhaseWork overlapped_backward() const {
    PhaseWork overlapped = backward;
    overlapped.communication_s = std::max(backward.communication_s - hidden_by_weights_s, 0.0);
    return overlapped;
  }
};

// A value that one stage makes and another reads.
struct StageTransfer {
  // When the value passes.
  enum class Moment : uint8_t {
    kBeforeStep,  // a parameter that another stage holds
    kForward,     // once a micro-batch
    kBackward,
    kAfterStep,  // a sum of gradients, a norm
  };
  int value = 0;                     // names the value, with `copy`
  int copy = 0;                      // of a repeated layer
  int from = 0;                      // stage that makes it
  int to = 0;                        // stage that reads it
  Moment moment = Moment::kForward;  // when it passes
  double num_bytes = 0;              // of a device, as both stages hold it
  bool is_kept_by_source = false;    // for its own backward phase
  bool is_kept_by_reader = false;    // likewise
  // Between groups of devices it may be split (send_sharding.h): what a device sends, what the
  // reader takes to gather it, once, and what the source saves of the reduction before it.
  double sent_bytes = 0;
  double gather_s = 0;                 // of each micro-batch or step, as `moment` says
  double saved_s = 0;                  // likewise
  bool is_read_backward_only = false;  // by no forward phase of the reader
};

// What all stages of a graph do in a step, and what passes between them.
struct ModelWork {
  std::vector<StageWork> stages;                      // virtual ones
  std::vector<StageTransfer> transfers;               // each to one stage
  std::vector<CommunicatingGroups> reduction_groups;  // that GradientReduction::group refers to
  int64_t num_microbatches = 1;                       // of a step
  int64_t devices_per_stage = 1;                      // all stages have as many
};

// Where the stages lie, and by what their kernels and sends are timed.
struct WorkOptions {
  // Groups of devices that run the stages. The same collectives of all of them count as
  // simultaneous.
  int num_groups = 1;
  Placement placement = Placement::kLoop;  // of the stages on them
  // Of each group, in the order of the pipeline, the group of devices. Empty: the same.
  std::vector<int> device_groups = {};
  // The group whose devices time the kernels of all stages, if they are not those of a plan; none:
  // the one on which a stage lies.
  std::optional<int> group = std::nullopt;
  // Those that the plan is made with.
  SendCosts send_costs = {};
  GroupsCache* groups = nullptr;  // null: groups are forgotten
};

// The work of every stage of a graph. Errors are those of AssignPhases, and that the cluster has
// too few devices. REQUIRES: reshards lowered, one mesh, stages assigned.
absl::StatusOr<ModelWork> MeasureWork(const graph::Graph& graph, const Machine& machine,
                                      const WorkOptions& options);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_STAGE_WORK_H_
