// Everything that the planner and the engine look up by name, in one value.
//
//   Registries registries = BuiltinRegistries();
//   RETURN_IF_ERROR(registries.ops.Add(std::make_unique<MyOp>()));
//
// Thread rule: built by one thread and then read by any. Graphs, plans under way and sessions refer
// to the registries that they were made with, which outlive them.

#ifndef PENSTOCK_PENSTOCK_REGISTRIES_H_
#define PENSTOCK_PENSTOCK_REGISTRIES_H_

#include "graph/models/model.h"
#include "graph/op.h"
#include "kernels/kernel.h"
#include "planner/policy/policy.h"

namespace penstock {

// What a program may use: the built-in parts, and what an application or a plug-in adds.
struct Registries {
  graph::OpRegistry ops;            // what operators mean
  graph::ModelRegistry models;      // functions that build graphs, and presets of their sizes
  kernels::KernelRegistry kernels;  // what computes operators on devices of the kind "cpu"
  // The same on GPUs, devices of the kind "cuda" (kernels/gpu.h); empty where CUDA is not built.
  kernels::KernelRegistry cuda_kernels;
  planner::PolicyRegistry policies;  // orders of the phases of a pipeline
};

// All operators, models, kernels and policies of this library.
Registries BuiltinRegistries();

}  // namespace penstock

#endif  // PENSTOCK_PENSTOCK_REGISTRIES_H_
