// How long a step takes and what memory it needs, from the work of its stages.
//
// The groups of devices follow the orders of the schedule (policy/pipeline.h). Then, on each
// group:
//
//   gradients   reductions run beside the last backward phases; what is longer than those, and at
//               least the last bucket, is exposed, and what they take of the core that computes
//   transfers   sums of gradients of shared parameters go to the stage that owns them
//   update      the optimiser, when all gradients are there
//
//   step = compute + exposed communication + bubble
//
// of the group that computes longest; the bubble is what is left of the step. If devices share
// cores, the step takes at least as long as the work of all devices of a host takes on its cores.
//
// A caller that looks for steps below a limit need not run orders for those that no order can bring
// below it (policy/least_times.h).
//
// Stages lie on groups of consecutive devices: the first group of a pipeline, which has its first
// stage, on the first devices, unless EstimateOptions::device_groups says otherwise.
//
// Memory: see stage_work.h. A stage holds the activations of as many micro-batches as the orders
// keep in flight, and what W reads of B of as many as are between the two.
//
// Thread rule: values and pure functions.

#ifndef PENSTOCK_PLANNER_SEARCH_ESTIMATE_H_
#define PENSTOCK_PLANNER_SEARCH_ESTIMATE_H_

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"

#include "planner/policy/pipeline.h"
#include "planner/policy/placement.h"
#include "planner/policy/policy.h"
#include "planner/search/machine.h"
#include "planner/search/stage_work.h"

namespace penstock::planner {

// Bytes of one device.
struct MemoryEstimate {
  double parameters = 0;   // trained values
  double optimizer = 0;    // its states, such as moments
  double gradients = 0;    // and all else that is kept once a step
  double activations = 0;  // of all micro-batches in flight
  double transfers = 0;    // values sent to or received from other stages
  double workspace = 0;    // what lives inside a phase only
  double host = 0;         // in the memory of its host, not of the device

  // In the memory of the device: without `host`.
  double total() const {
    return parameters + optimizer + gradients + activations + transfers + workspace;
  }
};

// A part of the model that a group of devices runs, and how it spends a step.
struct GroupEstimate {
  double compute_s = 0;              // of all micro-batches and the update
  double communication_s = 0;        // exposed, without waiting for other stages
  MemoryEstimate memory;             // of the device of the group that needs most
  int64_t memory_limit_bytes = 0;    // of the least of its devices
  int in_flight = 0;                 // micro-batches of its first chunk
  std::vector<int> chunk_in_flight;  // of each chunk
  bool has_host_link = false;        // else its devices work in the memory of their hosts
  int64_t host_limit_bytes = 0;      // likewise of their hosts' memory; 0: not limited

  // Where device and host share their memory, what lies on the host counts too.
  double used_bytes() const { return memory.total() + (has_host_link ? 0 : memory.host); }
  // What the devices have left; negative: they lack so much.
  double spare_bytes() const { return static_cast<double>(memory_limit_bytes) - used_bytes(); }
  // Whether what is kept on the hosts is within their limit.
  bool fits_on_host() const {
    return host_limit_bytes == 0 || memory.host <= static_cast<double>(host_limit_bytes);
  }
  // Whether devices and hosts have enough memory.
  bool fits() const { return spare_bytes() >= 0 && fits_on_host(); }
};

// How groups of devices are linked: each device of the one with one of the other.
struct GroupLink {
  GroupsAtOnce at_once;  // of the pairs of devices, which all send at once
  // Positions in the groups: one of the pairs that meet at each level of the network.
  std::vector<int64_t> senders;
};

// Links that were found before: the estimates of many strategies on one cluster have the same.
class LinkCache {
 public:
  // Between the devices from `source` and `target` on. Valid as long as this object. REQUIRES: the
  // cluster is the same in all calls.
  const GroupLink& Find(const Cluster& cluster, int64_t num_devices, int64_t source,
                        int64_t target);

 private:
  std::map<std::tuple<int64_t, int64_t, int64_t>, GroupLink> links_;
};

// How long a step takes, and why. Seconds are those of the group that computes longest, unless
// cores are shared.
struct StepEstimate {
  double step_s = 0;           // the whole step
  double compute_s = 0;        // by the devices
  double communication_s = 0;  // exposed
  double bubble_s = 0;         // what is left of the step
  // All of it, hidden or exposed, of the group that has most.
  double gradient_reduction_s = 0;
  double inline_communication_s = 0;  // collectives that phases wait for
  double transfer_s = 0;              // exposed, between stages
  // The work of all devices of a host on its cores takes as long as the step.
  bool is_bound_by_cores = false;
  // No order brings the step below EstimateOptions::limit_s: step_s is a lower bound, and all else
  // is not known.
  bool is_above_limit = false;
  std::vector<GroupEstimate> groups;  // of the pipeline, in its order
  Pipeline pipeline;                  // as the policy saw it

  // Whether each group fits into the memory of its devices and hosts.
  bool fits() const;
  // What the group lacks that lacks most; 0 if all fit.
  double excess_bytes() const;
  // Index of a group whose hosts lack memory, or of the one that lacks most on its devices, or that
  // has the least to spare there.
  int fullest_group() const;
};

// How a step is estimated, for one policy and layout of the stages.
struct EstimateOptions {
  const Policy* policy = nullptr;  // orders the phases; outlives the call, not null
  int chunks_per_group = 1;        // stages of the work that each group of devices has
  std::optional<StagePlacement> placement = {};  // none: the policy's
  bool split_weight_gradients = false;           // or if the policy wants that
  double effort = 0;                             // see Pipeline
  // As CompileOptions has it, but 0: gradients between the same groups are reduced at once.
  double bucket_bytes = 4 << 20;
  // Reductions of gradients with the backward pass: those of weights with all of it, other
  // collectives with gradients of weights (StageWork::hidden_by_weights_s).
  bool overlaps_gradients = true;
  // Of each group of the pipeline, the group of devices; empty: in their order.
  std::vector<int> device_groups = {};
  double limit_s = std::numeric_limits<double>::infinity();  // see StepEstimate
  LinkCache* links = nullptr;                                // null: links are forgotten
};

// Whether gradients of weights have phases of their own.
bool SplitsBackward(const EstimateOptions& options);

// How many bytes of gradients are reduced together between `groups`: `largest`, halved until that
// takes 10 ms or is less than 512 KiB. While the first bucket fills, the link waits, and nothing
// hides the last one; so buckets are small where links are slow.
double BestBucketBytes(const Machine& machine, const CommunicatingGroups& groups, double largest);

// Errors: the policy fails, or its orders wait for each other for ever. REQUIRES: the number of
// stages is a multiple of chunks_per_group.
absl::StatusOr<StepEstimate> EstimateStep(ModelWork work, const Machine& machine,
                                          const EstimateOptions& options);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_ESTIMATE_H_
