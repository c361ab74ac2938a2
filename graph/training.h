// From a loss to a training step: gradients, learning-rate schedule, clipping and optimizer, all as
// graph nodes, so that the planner splits and places them like any others.
//
// The loss is the mean over the global batch. Nothing here knows of micro-batches or devices: a
// gradient that is partial over them is summed where the sharding of its readers asks for it.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_GRAPH_TRAINING_H_
#define PENSTOCK_GRAPH_TRAINING_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "base/dtype.h"
#include "graph/builder.h"
#include "graph/graph.h"
#include "graph/op.h"

namespace penstock::graph {

// How parameters are updated: Loshchilov & Hutter (2019), or descent, with momentum or without.
enum class Optimizer : uint8_t { kAdamW, kSgd };
// What the learning rate does after the warm-up.
enum class LearningRateSchedule : uint8_t { kConstant, kCosine };

// What BuildTrainingGraph adds to a graph.
struct TrainingOptions {
  Optimizer optimizer = Optimizer::kAdamW;  // that updates parameters
  double beta1 = 0.9;                       // AdamW: of the first moment
  double beta2 = 0.95;                      // AdamW: of the second moment
  double epsilon = 1e-8;                    // AdamW: added to the root of the second moment
  double momentum = 0.9;                    // sgd; 0 for none
  double weight_decay = 0.1;                // see IsDecayed
  // The global norm of the gradients above which all are scaled down to it; 0: no clipping.
  double clip_norm = 1.0;

  double learning_rate = 3e-4;                                      // the highest
  LearningRateSchedule schedule = LearningRateSchedule::kConstant;  // after the warm-up
  int64_t warmup_steps = 0;        // linear from learning_rate / warmup_steps, either schedule
  int64_t total_steps = 0;         // cosine: the step at which the minimum is reached
  double min_learning_rate = 0.0;  // cosine

  // Multiplies the loss before the backward pass, so that small gradients do not vanish in f16, and
  // divides the gradients again (Micikevicius et al., "Mixed precision training", 2018). A step
  // whose gradients are not finite updates nothing and halves the scale; after `growth_steps`
  // finite steps in a row it doubles. 0: gradients are not scaled.
  double loss_scale = 0;                   // at first
  int64_t loss_scale_growth_steps = 2000;  // `growth_steps` above

  // bf16 or f16: devices add up the gradients of f32 parameters in it. Those of micro-batches are
  // added up in f32 before.
  DType gradient_dtype = DType::kF32;

  // Return the norm of the gradients (before clipping) as the second value.
  bool return_gradient_norm = false;
};

// The learning rate of step 1, 2, ... as the graph computes it, up to rounding.
double LearningRate(const TrainingOptions& options, int64_t step);

// Whether weight decay applies: weights of rank 2 and above, not biases or norms (parameters that
// start at zeros or ones).
bool IsDecayed(const Graph& graph, ValueId parameter);

// The training step of a graph that returns one scalar, the loss: adds the gradients of all float
// parameters and their updates. State added: "step" (i64[], updates done), for each parameter P
// "P.m" and "P.v" (adamw), or "P.momentum" (sgd with momentum), and with a loss scale
// "loss_scale" (the scale over its first value) and "loss_scale.steps" (i64[], finite steps since
// it changed). Returns the loss before the update
// and, where asked for, the gradient norm. All that was added after the gradients has
// Phase::kUpdate.
absl::StatusOr<Graph> BuildTrainingGraph(const OpRegistry& ops, Graph forward,
                                         const TrainingOptions& options);

// The values by which a loss is scaled so that small gradients stay numbers.
struct LossScale {
  ValueId state = kNoValue;  // the scale over TrainingOptions::loss_scale
  ValueId value = kNoValue;  // the scale
};

// The updates alone: gradients[i] is that of parameters[i]. `scalar_dtype` is that of the learning
// rate and the norm; the norm goes to *norm unless it is null. `loss_scale` is by what the
// gradients were multiplied. Errors are the builder's too. REQUIRES: equal lengths, not empty,
// floats.
absl::Status AddOptimizer(GraphBuilder& builder, absl::Span<const ValueId> parameters,
                          absl::Span<const ValueId> gradients, const TrainingOptions& options,
                          DType scalar_dtype, ValueId* norm, const LossScale& loss_scale = {});

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_TRAINING_H_
