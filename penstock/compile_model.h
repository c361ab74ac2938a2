// From a graph to running devices in two calls:
//
//   const Registries registries = BuiltinRegistries();
//   ASSIGN_OR_RETURN(planner::Plan plan,
//                    CompileModel(registries, std::move(graph), {.strategy = "dp=2,tp=2"}));
//   ASSIGN_OR_RETURN(std::unique_ptr<actors::Session> session,
//                    StartSession(registries, std::move(plan)));
//
// CompileModel is ApplyStrategy, AssignStages and Compile; an application that needs what lies
// between them, or a search for the strategy (planner/search/search.h), calls those itself.
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

// How a graph is laid out over devices.
struct ModelOptions {
  // Axis sizes, such as "dp=2,tp=2" (planner/strategy/strategy.h). Empty: the graph is laid out by
  // the mesh, shardings and stages that it carries, or runs on one device if it carries none.
  std::string strategy = {};
  // Of a step, if there is a strategy; 0: the planner chooses (planner::ChooseMicrobatches).
  int64_t microbatches = 0;
  // What tp, ep and cp split: of a registered model, Model::tensor_splits.
  std::vector<graph::SplitHint> splits = {};
  std::string policy = "1f1b";  // orders the phases of a pipeline; one of Registries::policies
  int threads_per_device = 1;   // that kernels may use
};

// The verified plan of a graph: a forward pass, or a training step (graph/training.h).
//
// Errors name what is wrong with the strategy, or the node, pass or device concerned.
// kInvalidArgument for "auto" and "splits=cost", which need a machine to choose for.
absl::StatusOr<planner::Plan> CompileModel(const Registries& registries, graph::Graph graph,
                                           const ModelOptions& options = {});

// A session of the plan with the kernels and policies of `registries`, which outlive it, and the
// plan's threads per device. `options` says everything else; kernels and policies in it are kept.
absl::StatusOr<std::unique_ptr<actors::Session>> StartSession(const Registries& registries,
                                                              planner::Plan plan,
                                                              actors::SessionOptions options = {});

}  // namespace penstock

#endif  // PENSTOCK_PENSTOCK_COMPILE_MODEL_H_
