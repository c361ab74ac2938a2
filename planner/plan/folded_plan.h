// A plan in which devices that run the same program share it, so that it is as large as its
// programs, whatever the number of devices.
//
// Every stage has the devices of one mesh: device s * D + d of the plan is device d of the mesh in
// stage s, for D = mesh.num_devices(). The devices of a program differ only in what d determines:
// offsets of tiles, by the shardings of tensors, and partners in communication. The axes of a
// collective give its groups; a transfer goes from device d of one stage to device d of another.
// Devices whose tiles differ in size, or that have other parts in a collective or fetch, are of
// different *classes*. Classes hold for all stages at once.
//
// Example: dp=16 and tp=8 in 8 stages are 1,024 devices and 16 programs: in each stage that of the
// first device, which fetches the loss, and that of the 127 others.
//
// Thread rule: values and pure functions.

#ifndef PENSTOCK_PLANNER_PLAN_FOLDED_PLAN_H_
#define PENSTOCK_PLANNER_PLAN_FOLDED_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "base/collective.h"
#include "graph/sharding.h"
#include "planner/plan/plan.h"

namespace penstock::planner {

// A collective of every group of devices of a stage.
struct FoldedCollective {
  uint32_t stage = 0;                // whose devices take part
  bool per_microbatch = false;       // runs for each micro-batch; else once a step
  uint32_t first_channel = 0;        // group g has channel first_channel + g
  std::vector<graph::AxisRef> axes;  // the groups are GroupDevices(mesh, axes)
  std::vector<CollectiveSpec>
      specs;  // without devices and channel: one for all groups, or one each
};

// A message from each device of a stage to the same one of another.
struct FoldedTransfer {
  uint32_t source_stage = 0;       // that sends
  uint32_t destination_stage = 0;  // that receives
  bool per_microbatch = true;      // passes for each micro-batch; else once a step
  uint32_t first_channel = 0;      // device d of the mesh has channel first_channel + d
  TensorType type;                 // of the tensor
  uint32_t sharding = 0;  // of the tensor, on both stages: index into FoldedPlan::shardings
};

// A part of a tile, where a device works on its own part of what it holds. In a program, the offset
// of the operand is that on the first device of the class.
struct FoldedView {
  TensorType type;     // of the tensor
  uint32_t whole = 0;  // the sharding of the tile
  uint32_t part = 0;   // the sharding of its part
  friend bool operator==(const FoldedView&, const FoldedView&) = default;
};

// An operand of a program's actor that is a view.
struct ViewOperand {
  uint32_t actor = 0;      // index in DevicePlan::actors
  bool is_output = false;  // else an input
  uint32_t index = 0;      // among the actor's inputs or outputs
  uint32_t view = 0;       // index into FoldedPlan::views
};

// A state lies on all devices of one stage.
struct FoldedState {
  uint32_t stage = 0;               // that has it
  uint32_t sharding = 0;            // of the state's tensor: index into FoldedPlan::shardings
  std::vector<uint32_t> registers;  // of each class
};

// Where stages lie on meshes with different numbers of devices, nothing is folded: `common` is the
// plan of all devices, and the rest is empty.
struct FoldedPlan {
  // All that is not of single devices. Its devices, kernels, collectives, transfers, placements of
  // states and predicted peaks are empty; fetches count the actors of all devices.
  Plan common;
  graph::Mesh mesh;                // of the devices of each stage
  std::vector<uint32_t> class_of;  // of each device of the mesh; classes are numbered as they occur
  // Program of class c in stage s: s * num_classes() + c. Kernels, and targets of collectives,
  // sends and receives, are those below.
  std::vector<DevicePlan> programs;
  std::vector<KernelPlan> kernels;  // each as on the first device of a class that has it
  // Of each kernel's inputs, then its outputs: indices into `shardings`; kNone: the tile is the
  // same on all devices.
  std::vector<std::vector<uint32_t>> kernel_shardings;
  std::vector<FoldedCollective> collectives;            // in their global order
  std::vector<FoldedTransfer> transfers;                // from stage to stage
  std::vector<FoldedState> states;                      // of common.states
  std::vector<graph::Sharding> shardings;               // of the mesh, that indices refer to
  std::vector<FoldedView> views;                        // that ViewOperand::view refers to
  std::vector<std::vector<ViewOperand>> view_operands;  // of each program

  // Whether devices share programs. If not, `common` is all there is.
  bool is_folded() const { return !class_of.empty(); }
  // Stages of the plan: groups of devices.
  uint32_t num_stages() const { return static_cast<uint32_t>(common.stages.size()); }
  // Devices of the mesh; 0 if nothing is folded.
  uint32_t devices_per_stage() const { return static_cast<uint32_t>(class_of.size()); }
  // Devices of the plan, whether it is folded or not.
  uint32_t num_devices() const {
    return is_folded() ? num_stages() * devices_per_stage()
                       : static_cast<uint32_t>(common.devices.size());
  }
  // Classes of devices of the mesh; 0 if nothing is folded.
  uint32_t num_classes() const;
  // Index into `programs`. REQUIRES: is_folded(), and the plan has the device.
  uint32_t ProgramOf(uint32_t device) const {
    return device / devices_per_stage() * num_classes() + class_of[device % devices_per_stage()];
  }
  // What the device runs, folded or not. REQUIRES: the plan has the device.
  const DevicePlan& ProgramOnDevice(uint32_t device) const {
    return is_folded() ? programs[ProgramOf(device)] : common.devices[device];
  }
  std::vector<uint32_t> ProgramsOfDevices() const;  // ProgramOf of each device
  // The first device of the mesh in each class.
  std::vector<uint32_t> FirstOfClasses() const;
  // How many devices of the mesh are of each class.
  std::vector<uint32_t> SizeOfClasses() const;
};

// The plan of all devices.
absl::StatusOr<Plan> ExpandPlan(const FoldedPlan& folded);

// The same, but only `devices` have programs and parts of states; of the others it has stages and
// sizes of arenas.
absl::StatusOr<Plan> ExpandDevices(const FoldedPlan& folded, absl::Span<const uint32_t> devices);

// A state, by its index in the plan, with its parts on all devices.
absl::StatusOr<StatePlan> ExpandState(const FoldedPlan& folded, uint32_t index);

// The first device of each program, in the order of programs.
std::vector<uint32_t> FirstOfPrograms(const FoldedPlan& folded);

// A device for each program, in the same order: their phases, registers and channels, and the order
// in which they meet. All devices of a stage meet in a collective, though they are of several
// groups; sizes are those of the first group. A transfer joins two programs of one class.
Plan PlanOfPrograms(const FoldedPlan& folded);

// Of the plan of all devices.
PlanCounts Count(const FoldedPlan& folded);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_FOLDED_PLAN_H_
