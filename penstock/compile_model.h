// From a graph to running devices in two calls:
//
//   const Registries registries = BuiltinRegistries();
//   ASSIGN_OR_RETURN(planner::Plan plan,
//                    CompileModel(registries, std::move(graph), {.strategy = "dp=2,tp=2"}));
//   ASSIGN_OR_RETURN(std::unique_ptr<actors::Session> session,
//                    StartSession(registries, std::move(plan)));
//
// CompileModel is ApplyStrategy, AssignStages and Compile, and FindStrategy before them for "auto";
// an application that needs what lies between them calls those itself.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PENSTOCK_COMPILE_MODEL_H_
#define PENSTOCK_PENSTOCK_COMPILE_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "actors/session/session.h"
#include "graph/graph.h"
#include "graph/models/model.h"
#include "penstock/registries.h"
#include "planner/plan/plan.h"

namespace penstock {

namespace planner {
struct Machine;
}  // namespace planner

// How a graph is laid out over devices.
struct ModelOptions {
  // Axis sizes, such as "dp=2,tp=2" (planner/strategy/strategy.h). Empty: the graph is laid out by
  // the mesh, shardings and stages that it carries, or runs on one device if it carries none.
  //
  // "auto": the strategy, micro-batches and stages of a training step that are estimated to be
  // fastest on `devices` devices of `machine` (planner/search/search.h). Where `splits` names
  // nothing that tp splits, and with "splits=cost", that is chosen by cost too.
  std::string strategy = {};
  int64_t devices = 1;  // for "auto"; other strategies have as many as their axes say
  // What is chosen for. It outlives the call; null: this host, whose cores the devices share.
  const planner::Machine* machine = nullptr;
  // Of a step, if there is a strategy; 0: the planner chooses (planner::ChooseMicrobatches, or the
  // search of "auto").
  int64_t microbatches = 0;
  // What tp, ep and cp split: of a registered model, Model::tensor_splits.
  std::vector<graph::SplitHint> splits = {};
  // Orders the phases of a pipeline; one of Registries::policies. Empty: 1f1b, or the fastest one
  // for "auto".
  std::string policy = {};
  int threads_per_device = 1;  // that kernels may use
};

// The verified plan of a graph: a forward pass, or a training step (graph/training.h).
//
// Errors name what is wrong with the strategy, or the node, pass or device concerned.
// kInvalidArgument for "auto" and a graph that is no training step or has a mesh already;
// kResourceExhausted if no strategy fits into the memory of the devices.
absl::StatusOr<planner::Plan> CompileModel(const Registries& registries, graph::Graph graph,
                                           const ModelOptions& options = {});

// A session of the plan with the kernels and policies of `registries`, which outlive it, and the
// plan's threads per device. `options` says everything else; kernels and policies in it are kept.
absl::StatusOr<std::unique_ptr<actors::Session>> StartSession(const Registries& registries,
                                                              planner::Plan plan,
                                                              actors::SessionOptions options = {});

}  // namespace penstock

#endif  // PENSTOCK_PENSTOCK_COMPILE_MODEL_H_
