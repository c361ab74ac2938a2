// Builds a part of the program of one device, and of all of its class, from what lowering knows of
// all devices (lowering_internal.h). Its files:
//   device_lowering.cc           phases, the walk through the nodes, fetches
//   device_lowering_kernels.cc   kernels and the values that they read; which of them work in place
//   device_lowering_channels.cc  buckets, sends, receives and redistributions
//   device_lowering_batches.cc   sub-batches, which lie in the whole values
//   device_lowering_states.cc    parameters and states: where their next values are written
//
// Worked example: `y = all_reduce(x)`, where x has no other reader, is a collective actor whose
// input and output are one buffer; AdamW writes the parameter where it lies.
//
// Thread rule: one thread.

#ifndef PENSTOCK_PLANNER_LOWER_DEVICE_LOWERING_INTERNAL_H_
#define PENSTOCK_PLANNER_LOWER_DEVICE_LOWERING_INTERNAL_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "planner/lower/device_program.h"
#include "planner/lower/lowering_internal.h"
#include "planner/lower/phases.h"
#include "planner/lower/prefetch.h"
#include "planner/plan/plan.h"

namespace penstock::planner::internal {

// What the parts of a device's program share.
struct DeviceDraft {
  DeviceProgram program;
  std::set<PhaseKey> keys;
  std::map<PhaseKey, int> phase_index;

  // Of all keys, in their order.
  void AddPhases();
};

// Adds one part to the program of one device, and of all of its class: what the device runs of a
// stage. The steps are those below, each for all parts before the next one, with
// DeviceDraft::AddPhases after the first. Nodes are added one by one to the part that has them, so
// that actors of different parts stand in the order of nodes too.
class DeviceLowering {
 public:
  DeviceLowering(Lowering& shared, const ProgramPart& part, DeviceDraft& draft)
      : shared_(shared),
        graph_(shared.graph_),
        mesh_(shared.MeshOfStage(part.stage)),
        stage_(part.stage),
        mesh_device_(part.mesh_device),
        direction_(part.direction),
        kernels_(shared.kernels_[shared.GroupOf(part.stage, part.direction)]),
        draft_(draft),
        program_(draft.program) {}

  void FindPhases();
  absl::Status Begin();
  // Nothing if the node is of another stage.
  absl::Status Add(const ScheduledNode& scheduled);
  absl::Status End();
  // `registers` are those of all states of the plan.
  void KeepStateRegisters(const std::vector<uint32_t>& registers) const;

 private:
  // A phase of the stage among those of the device.
  PhaseKey KeyHere(PhaseKey key) const;
  int PhaseIndex(const PhaseKey& key);
  int FloatingPhase(std::string name, bool per_microbatch);
  absl::StatusOr<TilePlan> Tile(ValueId value) const;
  absl::StatusOr<int> NewBuffer(ValueId value, bool per_microbatch);
  // The buffer from which actors of `phase` read the value.
  absl::StatusOr<int> BufferForReading(ValueId value, int phase);
  // `shardings` are those of the kernel's inputs, then of its outputs.
  void AddActor(int phase, ActorKind kind, std::string name, KernelPlan spec,
                std::vector<uint32_t> shardings, uint32_t target, std::vector<int> inputs,
                std::vector<int> outputs, int after = -1);
  absl::Status AddStates();
  absl::Status AddRounding(ValueId term, int phase);
  absl::Status AddBuckets();
  absl::Status AddSubBatches();
  bool LieSideBySide(const Node& join) const;
  absl::Status JoinSubBatches(NodeId id, int phase);
  bool IsReducedInPlace(NodeId reduction) const;
  absl::Status AddReceive(ValueId value);
  absl::Status AddReception(NodeId id, int phase);
  absl::Status AddNode(const ScheduledNode& scheduled);
  absl::Status AddRedistribution(const ScheduledNode& scheduled, int phase);
  void AddCollective(const ScheduledNode& scheduled, int phase, int input, int output, int after);
  void FinishGather(NodeId id);
  absl::Status AddKernel(NodeId id, int phase);
  absl::Status AddLeaf(ValueId value, int phase);
  absl::Status AddFetch(size_t index);
  absl::Status AddSends(ValueId value);
  absl::Status AddParts(ValueId value);
  absl::Status AddAssignments();
  bool IsReadBefore(ValueId state, NodeId writer) const;
  bool IsUsedOnce(const Assignment& assignment) const;
  bool WritesInPlace(const Assignment& assignment) const;
  bool IsCopiedByAssign(const Node& node) const;
  ValueId StateWrittenBy(ValueId value) const;
  absl::StatusOr<bool> AddPartOfState(NodeId id, int phase);
  absl::StatusOr<bool> AddPartOfBatch(NodeId id);
  bool MayOverwrite(const Node& node, int input, const KernelPlan& spec, size_t result,
                    int phase) const;
  bool MayStayIn(int buffer, ValueId result) const;

  Lowering& shared_;
  const Graph& graph_;
  const Mesh& mesh_;
  const int stage_;
  const uint32_t mesh_device_;
  const int direction_;
  const graph::KernelTraits& kernels_;
  DeviceDraft& draft_;
  DeviceProgram& program_;
  PhaseKey assign_key_;
  std::map<ValueId, int> buffer_;                       // by root value
  std::map<std::pair<ValueId, int>, int> leaf_buffer_;  // leaf value, phase
  std::map<ValueId, int> value_phase_;                  // phase in which a value is made here
  std::set<int> formed_;    // buffers that all micro-batches of a step form together
  std::set<NodeId> fused_;  // accumulates that their producer does itself
  std::map<ValueId, ValueId> accumulates_into_;
  // Buffers of values that lie in others: of a gradient's terms in their bucket, of a sub-batch in
  // the whole.
  std::map<ValueId, int> part_;
  // The kernel that follows a gather or a halo exchange.
  struct Unpack {
    KernelPlan kernel;
    int phase = 0;
    int tile = -1;  // of an exchange: what was there before
    uint32_t tile_sharding = kNone;
    int parts = -1;
    int output = -1;
  };
  std::map<NodeId, Unpack> unpacks_;
  // The buffers of a bucket's tensors, of as many nodes as have been added.
  struct JoinedOperands {
    std::vector<int> inputs;
    std::vector<int> outputs;
  };
  std::map<int, JoinedOperands> joined_;   // by ScheduledNode::bucket
  std::map<ValueId, int> scattered_part_;  // buffer of the part that a reduce_scatter leaves
};

}  // namespace penstock::planner::internal

#endif  // PENSTOCK_PLANNER_LOWER_DEVICE_LOWERING_INTERNAL_H_
