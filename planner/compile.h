// From a graph to a verified plan: the one list of passes and the driver around it.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_COMPILE_H_
#define PENSTOCK_PLANNER_COMPILE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "base/dtype.h"
#include "graph/graph.h"
#include "graph/kernel_spec.h"
#include "graph/op.h"
#include "planner/lower/lower_to_plan.h"
#include "planner/lower/sub_batches.h"
#include "planner/pass.h"
#include "planner/plan/folded_plan.h"
#include "planner/plan/plan.h"
#include "planner/policy/placement.h"
#include "planner/policy/policy.h"
#include "planner/search/estimate.h"
#include "planner/search/machine.h"
#include "planner/sharding/split_sends.h"
#include "planner/strategy/fuse_epilogues.h"

namespace penstock::planner {

// What a plan is compiled for.
struct CompileOptions {
  std::string policy = "1f1b";               // the order of phases, by its name
  const PolicyRegistry* policies = nullptr;  // that know the name
  graph::KernelTraits kernels;               // kernels::TraitsOf(registry, threads_per_device)
  // Instead of `kernels` where devices are of several kinds: called for each group of the pipeline.
  KernelTraitsOf kernels_of = nullptr;
  // Whether products are joined with what follows them (strategy/fuse_epilogues.h) on the devices
  // [first, first + count). Null: nowhere.
  std::function<bool(uint32_t first, uint32_t count)> fuses_epilogues = nullptr;
  uint32_t threads_per_device = 1;  // of CPU devices
  // bf16 or f16: mixed precision (strategy/mixed_precision.h); f32: the graph's own types.
  DType precision = DType::kF32;
  // Whether devices add up in f32 what the graph has in 16 bits (sharding/widen_sums.h).
  bool sums_in_f32 = false;
  // Whether mixed precision keeps residual sums in f32 (strategy/mixed_precision.h).
  bool residuals_in_f32 = false;
  std::string strategy;                  // recorded in the plan
  std::vector<ProgramSetting> settings;  // likewise
  bool split_weight_gradients = false;   // into W; also if the policy wants it
  // How many of the graph's stages each group of devices runs, as its chunks, and how they lie on
  // the groups (none: as the policy wants). In a bidirectional pipeline 1: each stage is a chunk of
  // two groups (strategy/directions.h).
  int chunks_per_group = 1;
  std::optional<Placement> placement = {};  // see above
  // Whether a stage of one device before the graph's keeps the parameters and updates them
  // (strategy/move_optimizer.h): device 0.
  bool optimizer_on_host = false;
  // Of each group of the pipeline, the group of devices that runs it; empty: in their order. All
  // have equally many devices.
  std::vector<int> device_groups = {};
  // What decides whether values are split on their way between stages.
  SendCosts send_costs;
  // Gradients of one dtype and group are reduced together up to this size, less where the links of
  // the machine are slow (BestBucketBytes in search/estimate.h); 0: each by itself.
  int64_t bucket_bytes = 4 << 20;
  // Collectives of less for each sub-batch stay whole (lower/sub_batches.h).
  int64_t sub_batch_bytes = kLeastSubBatchBytes;
  // Devices of each host for which collectives are chosen: they lie on the hosts in blocks, in this
  // order. Empty: all on one. The plan runs on any others too.
  std::vector<uint32_t> host_devices;
  // Where the plan is to run. Its step is predicted for it (search/estimate.h; of a bidirectional
  // pipeline, or stages with different numbers of devices, by a simulation), and the policy knows
  // the times of the stages; without one, both come from the constants of lower_to_plan.h.
  const Machine* machine = nullptr;
  // Filled in, if the machine is given, all stages have equally many devices and each lies on one
  // group.
  StepEstimate* estimate = nullptr;
  bool verify = true;  // whether graphs and the plan are checked after each pass
  bool fold = true;    // devices that do the same share a program
  PassOptions passes;  // what to watch of the passes
};

// `graph` carries its mesh, some shardings and, for a pipeline, the stage of every node; without
// any it is one stage. Errors name the node, pass or device concerned.
absl::StatusOr<FoldedPlan> CompileFolded(const graph::OpRegistry& ops, graph::Graph graph,
                                         const CompileOptions& options);

// The same, with the program of every device spelled out.
absl::StatusOr<Plan> Compile(const graph::OpRegistry& ops, graph::Graph graph,
                             const CompileOptions& options);

// The passes of Compile that leave a graph, in their order; what comes after makes the plan of it.
// In a bidirectional pipeline (sends.placement) split-directions comes first. With `fuses`,
// fuse-epilogues comes last; with `sums_in_f32`, widen-sums is among them, with
// `optimizer_on_host` move-optimizer. `ops` outlives the result. Passes of one result keep
// redistributions that they have planned for the next graph, so they are for one thread.
std::vector<Pass> CompilePasses(const graph::OpRegistry& ops, const SendOptions& sends = {},
                                DType precision = DType::kF32,
                                int64_t sub_batch_bytes = kLeastSubBatchBytes,
                                FusesStage fuses = nullptr, bool sums_in_f32 = false,
                                bool optimizer_on_host = false, bool residuals_in_f32 = false);

// The same without split-sends, for graphs whose stages are not yet those of a plan: MeasureWork
// charges what that pass would do (search/stage_work.h). Neither are batches split: it takes all
// communication within phases to be waited for.
std::vector<Pass> EstimatePasses(const graph::OpRegistry& ops, DType precision = DType::kF32,
                                 bool sums_in_f32 = false, bool residuals_in_f32 = false);

// Names what a graph computes, whatever its layout (meshes, shardings and stages): plans of one
// program have the same, Plan::graph_fingerprint.
uint64_t Fingerprint(graph::Graph graph);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_COMPILE_H_
