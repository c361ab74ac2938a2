// All that most applications need of Penstock. Each header can be included by itself as well.
//
//   registries, CompileModel, StartSession   penstock/
//   graphs and models                        graph/
//   plans, strategies, policies              planner/
//   sessions, clusters, checkpoints          actors/
//   tensors                                  base/
//
// Thread rule: that of each header.

#ifndef PENSTOCK_PENSTOCK_PENSTOCK_H_
#define PENSTOCK_PENSTOCK_PENSTOCK_H_

#include "actors/checkpoint/checkpoint.h"
#include "actors/checkpoint/checkpoint_folder.h"
#include "actors/cluster/cluster.h"
#include "actors/cluster/node.h"
#include "actors/session/checkpoint_states.h"
#include "actors/session/checkpoint_writer.h"
#include "actors/session/run_steps.h"
#include "actors/session/session.h"
#include "base/dlpack.h"
#include "base/dtype.h"
#include "base/random.h"
#include "base/shape.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/tensor.h"
#include "graph/builder.h"
#include "graph/gradients.h"
#include "graph/graph.h"
#include "graph/layers.h"
#include "graph/models/model.h"
#include "graph/op.h"
#include "graph/text.h"
#include "graph/training.h"
#include "kernels/kernel.h"
#include "penstock/compile_model.h"
#include "penstock/load_plugin.h"
#include "penstock/registries.h"
#include "penstock/version.h"
#include "planner/compile.h"
#include "planner/plan/plan.h"
#include "planner/plan/plan_io.h"
#include "planner/policy/policy.h"
#include "planner/strategy/strategy.h"

#endif  // PENSTOCK_PENSTOCK_PENSTOCK_H_
