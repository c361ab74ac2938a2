// The last pass: from a graph with explicit redistributions to the actors, channels and registers
// of every device.
//
// Devices are numbered stage by stage: device s * D + d is device d of the mesh in stage s.
//
// REQUIRES: reshards lowered.

#ifndef PENSTOCK_PLANNER_LOWER_LOWER_TO_PLAN_H_
#define PENSTOCK_PLANNER_LOWER_LOWER_TO_PLAN_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "graph/graph.h"
#include "graph/kernel_spec.h"
#include "graph/op.h"
#include "planner/cluster/measured_collective.h"
#include "planner/cost/communication_cost.h"
#include "planner/lower/phase_buckets.h"
#include "planner/plan/folded_plan.h"
#include "planner/policy/pipeline.h"
#include "planner/policy/placement.h"
#include "planner/policy/policy.h"

namespace penstock::planner {

// What the kernels of the devices [first, first + count) have in common.
using KernelTraitsOf = std::function<graph::KernelTraits(uint32_t first, uint32_t count)>;

// What lowering chooses by. Most of it is from CompileOptions and the machine.
struct LowerOptions {
  const Policy* policy = nullptr;                // orders the phases; outlives the call, not null
  graph::KernelTraits kernels;                   // of all devices, unless kernels_of is set
  KernelTraitsOf kernels_of = nullptr;           // see CompileOptions
  bool split_weight_gradients = false;           // into phases of their own (W)
  std::optional<StagePlacement> placement = {};  // see PhaseOptions
  std::vector<int> device_groups = {};           // likewise
  // What the policy is told of the stages' times and links. None: a forward takes 1, a whole
  // backward 2, its parts 1 each, and links nothing.
  std::optional<Pipeline> pipeline = {};
  // Gradients and parameters are reduced, scattered and gathered together up to this size.
  BucketLimits buckets = {};
  // The devices of each host, in blocks; empty: all on one.
  std::vector<uint32_t> host_devices;
  // By which collectives are chosen, before those that are built in.
  absl::Span<const MeasuredCollective> collectives;
  // Rates for the plan's predictions.
  double flops_per_s = 1e11;
  double bytes_per_s = 1e10;  // of a device's memory
  LinkRates link;             // between two devices
  // Whether devices of one class share a program; otherwise each has its own.
  bool fold = true;
};

// The plan of a graph. kInvalidArgument if there is no policy. Other errors name the node, stage or
// kernel that cannot be planned, or say what the policy lacks.
absl::StatusOr<FoldedPlan> LowerToPlan(const graph::OpRegistry& ops, const graph::Graph& graph,
                                       const LowerOptions& options);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_LOWER_LOWER_TO_PLAN_H_
