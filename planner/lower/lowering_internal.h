// What lowering knows of all devices together: phases, transfers, collectives, classes of devices
// and tables. Its parts, in the order in which Run() calls them:
//   lowering_phases.cc     which phase each node runs in, the order of each stage's phases
//   lowering_channels.cc   transfers between stages, buckets of gradients, collectives
//   device_classes.cc      which devices share a program
//   spell_out.cc           the same for each device, where stages have different numbers of them
//   lowering_tables.cc     kernels, shardings and views that programs name by index
//   lower_to_plan.cc       the driver
// The program of one device is built by DeviceLowering (device_lowering_internal.h).
//
// Worked example, dp=2,pp=2 without tied weights: two stages of two devices each; one transfer of
// each activation and one of each gradient that crosses, each for both devices; a bucket of
// gradients and its all_reduce a stage; all devices of a stage are one class, so two programs.
//
// A stage here is a group of devices, which runs one or more stages of the graph as its chunks. In
// a bidirectional pipeline (strategy/directions.h) it is a stage of the graph instead: the devices
// of its mesh are those of two groups, and the program of a device has two parts (ProgramPart).
//
// Thread rule: one thread.

#ifndef PENSTOCK_PLANNER_LOWER_LOWERING_INTERNAL_H_
#define PENSTOCK_PLANNER_LOWER_LOWERING_INTERNAL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "graph/graph.h"
#include "graph/op.h"
#include "planner/lower/communication.h"
#include "planner/lower/lower_to_plan.h"
#include "planner/lower/phases.h"
#include "planner/lower/prefetch.h"
#include "planner/lower/rate_copies.h"
#include "planner/lower/schedule_times.h"
#include "planner/plan/folded_plan.h"
#include "planner/plan/plan.h"
#include "planner/sharding/cross_mesh.h"
#include "planner/sharding/execution_sharding.h"

namespace penstock::planner::internal {

using graph::Graph;
using graph::kNoValue;
using graph::Mesh;
using graph::Node;
using graph::NodeId;
using graph::Sharding;
using graph::ValueId;

inline constexpr PhaseKey kBeforeStepKey = {0, false, 0};
inline constexpr PhaseKey kFirstForwardKey = {0, true, 0};
inline constexpr PhaseKey kFirstUpdateKey = {1, false, 0};

// An assign's new value and where it is written.
struct Assignment {
  NodeId assign = graph::kNoNode;
  ValueId state = kNoValue;
  ValueId value = kNoValue;
};

// Gradient sums of one stage that are reduced or scattered by one collective, beside the phases.
// Nothing is copied: what is reduced lies in one buffer, and what is scattered are several tensors
// of the collective. Sums of micro-batches that are rounded first are rounded beside the phases,
// too, right before the collective.
struct Bucket {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::vector<NodeId> nodes;  // in the order in which their terms are made
  int stage = 0;
  PhaseKey key;
  int64_t bytes = 0;
  int64_t max_bytes = 0;
  DType dtype = DType::kF32;
  std::vector<CollectiveSpec> groups;  // of the first node: the groups of all
  std::vector<graph::AxisRef> axes;    // likewise
};

// Of the equal terms that a slice into a sum leaves, all but one are neutral: whether the device's
// counts. Over axes on which the terms were partial before, all count.
bool IsFirstOf(const Mesh& mesh, const Sharding& from, const graph::PartialSpec& partial,
               uint32_t device);

// Whether the device is the first of those that hold the same tile: on what splits nothing of an
// axis, its coordinate is 0.
bool IsFirstWithTile(const Mesh& mesh, const Sharding& sharding, uint32_t device);

// What a device runs of a stage: the program of a device of the stage's mesh.
struct ProgramPart {
  int stage = 0;
  uint32_t mesh_device = 0;
  int direction = 0;  // in a bidirectional pipeline
};

// What holds for all devices: phases, transfers, collectives, tables.
class Lowering {
 public:
  Lowering(const graph::OpRegistry& ops, Graph graph, const LowerOptions& options)
      : ops_(ops), graph_(std::move(graph)), options_(options) {}

  absl::StatusOr<FoldedPlan> Run();

 private:
  friend class DeviceLowering;

  // The collective of each group of a stage's devices, which are numbered in the mesh.
  struct Groups {
    std::vector<CollectiveSpec> specs;
    std::vector<uint32_t> group_of;  // of each device
  };

  absl::Status Analyse();
  absl::Status PlaceStages();
  absl::Status ScheduleStages();
  Pipeline DescribePipeline() const;  // for the policy
  PhaseReads FindReads() const;
  // Nothing for leaves, and for nodes that do not run in a compute lane.
  std::optional<StagePhase> ComputePhaseOf(const NodePhase& phase, int direction) const;
  absl::Status NumberTransfers();
  absl::Status NumberReceptions();
  // Without folding: the transfers and collectives of all devices, then their programs and states.
  absl::Status SpellOut();
  absl::Status FinishSpelledOut();
  // Of a program that is not folded: the target of an actor among those of all devices.
  uint32_t SpellOutTarget(ActorKind kind, uint32_t target, uint32_t mesh_device) const;
  // The program of a device of a group, and of all of its class.
  absl::StatusOr<DevicePlan> LowerDevice(int group, uint32_t device);
  std::vector<ProgramPart> PartsOf(int group, uint32_t device) const;
  absl::StatusOr<const Communication*> CommunicationOf(NodeId id, CollectiveKind kind);
  uint32_t AddCollective(int stage, bool per_microbatch, std::vector<CollectiveSpec> specs,
                         std::vector<graph::AxisRef> axes);
  const CollectiveSpec& SpecOn(uint32_t collective, uint32_t mesh_device) const {
    const Groups& groups = groups_[collective];
    return groups.specs[groups.group_of[mesh_device]];
  }
  // The collective of each group that moves the tensors of all these nodes.
  absl::StatusOr<std::vector<CollectiveSpec>> JoinCollectives(CollectiveKind kind,
                                                              const std::vector<NodeId>& nodes);
  bool IsCompletedByBackward(ValueId value, int stage) const;
  bool IsRoundedInBucket(ValueId term) const;
  bool CanBucket(NodeId id) const;
  absl::Status FormBuckets();
  absl::Status SizeBuffer(const Bucket& bucket, std::vector<CollectiveSpec>* specs) const;
  absl::Status NumberCollectives();
  absl::Status CheckCollectiveOf(NodeId id, const std::vector<CollectiveSpec>& specs) const;
  // The host on which each device of a stage is taken to be.
  std::vector<uint32_t> HostsOf(int stage, const std::vector<uint32_t>& devices) const;
  // Index of the value's sharding in the plan; kNone: its tile is the same on all devices.
  uint32_t ShardingIndex(ValueId value, bool always = false);
  // The view of the device's part of the tile of a value: both are of one tensor.
  uint32_t ViewIndex(ValueId whole, ValueId part);
  // What makes the program of a device of the mesh differ from others', by device.
  std::vector<std::vector<int64_t>> Signatures() const;
  void FindClasses();
  void FindKernels();
  uint32_t KernelIndex(const KernelPlan& spec, const std::vector<uint32_t>& shardings);
  absl::Status CheckKernels() const;

  // Whether each stage of the graph lies on two groups.
  bool is_bidirectional() const {
    return options_.placement.has_value() &&
           options_.placement->placement == Placement::kBidirectional;
  }
  int num_directions() const { return is_bidirectional() ? 2 : 1; }
  PhaseOptions PhasesToAssign() const {
    if (is_bidirectional()) return {options_.split_weight_gradients};
    return {options_.split_weight_gradients, options_.placement, options_.device_groups};
  }
  // Of a group of the pipeline.
  int DeviceGroupAt(int group) const {
    return options_.device_groups.empty() ? group : options_.device_groups[group];
  }
  // Devices share programs where each stage has the devices of one mesh for itself.
  bool is_folded() const { return graph_.meshes().size() == 1 && !is_bidirectional(); }
  int64_t num_microbatches() const { return graph_.meshes()[0].num_microbatches(); }
  const Mesh& MeshOf(ValueId value) const { return graph_.meshes()[ProducerOf(value).mesh]; }
  const Mesh& MeshOfStage(int stage) const { return graph_.meshes()[mesh_of_stage_[stage]]; }
  uint32_t NumDevices(int stage) const {
    return static_cast<uint32_t>(MeshOfStage(stage).num_devices());
  }
  // Those of a group.
  uint32_t NumDevicesOfGroup(int group) const {
    return first_device_[group + 1] - first_device_[group];
  }
  // The group in which a stage has the devices of a direction, and the device of the plan that a
  // device of the stage's mesh is.
  int GroupOf(int stage, int direction) const {
    if (!is_bidirectional()) return stage;
    return DeviceGroupAt(direction == 0 ? stage : num_stages_ - 1 - stage);
  }
  uint32_t DeviceOf(int stage, uint32_t mesh_device) const {
    if (!is_bidirectional()) return first_device_[stage] + mesh_device;
    const uint32_t of_group = NumDevices(stage) / 2;  // the direction is the major axis
    return first_device_[GroupOf(stage, static_cast<int>(mesh_device / of_group))] +
           mesh_device % of_group;
  }
  Sharding ShardingOf(ValueId value) const {
    return ClosedSharding(MeshOf(value), graph_.value(value));
  }
  const Node& ProducerOf(ValueId value) const { return graph_.node(graph_.value(value).producer); }
  const NodePhase& PhaseOf(ValueId value) const { return phases_[graph_.value(value).producer]; }
  bool IsState(ValueId value) const { return HoldsState(ProducerOf(value).op->role()); }
  // Whether the value lies in the memory of its device's host.
  bool IsOnHost(ValueId value) const {
    const Node& producer = ProducerOf(value);
    return producer.op->role() == graph::OpRole::kToHost ||
           (IsState(value) && producer.attributes.GetString("memory", "device") == "host");
  }
  // Whether the value is made anew in every micro-batch.
  bool IsMadeOften(ValueId value) const {
    return PhaseOf(value).key.per_microbatch && !FormsWhole(ProducerOf(value).op->role());
  }
  // The phase in which a returned value is fetched, and parts are taken of one that is sent to
  // another mesh: where it is made, or the first that has it whole.
  PhaseKey FetchKey(ValueId value) const;
  // The value whose bytes this one shares through reshapes.
  ValueId RootOf(ValueId value) const { return root_[value]; }

  const graph::OpRegistry& ops_;
  const Graph graph_;
  const LowerOptions& options_;
  FoldedPlan folded_;
  Plan& plan_ = folded_.common;
  std::vector<NodePhase> phases_;
  std::vector<ScheduledNode> node_order_;
  std::vector<std::vector<NodeId>> users_;
  std::vector<ValueId> root_;
  std::vector<std::vector<ValueId>> values_of_root_;  // that share its bytes, itself too
  std::vector<bool> is_read_often_;
  int num_stages_ = 1;
  std::vector<int> mesh_of_stage_;
  std::vector<uint32_t> first_device_;        // of each group, and the number of all devices
  std::vector<graph::KernelTraits> kernels_;  // that the devices of a group have in common
  // Stages other than the producer's that read a value.
  std::map<ValueId, std::set<int>> remote_readers_;
  std::map<std::pair<ValueId, int>, uint32_t> transfers_;  // value, stage
  // Nodes that receive from another mesh: their messages, and the transfer of the first.
  struct Reception {
    std::vector<CrossMeshMessage> messages;
    uint32_t first_transfer = 0;
  };
  std::map<NodeId, Reception> receptions_;
  std::map<ValueId, std::vector<NodeId>> receptions_of_;  // of the value that they receive
  std::vector<const CrossMeshMessage*> message_of_;       // of each transfer; null: one a device
  // By kind, type and shardings: layers repeat.
  absl::flat_hash_map<std::string, std::unique_ptr<const Communication>> communication_by_key_;
  std::map<NodeId, const Communication*> communications_;
  std::map<NodeId, uint32_t> collectives_;
  std::map<NodeId, size_t> tensor_of_;  // of those in a bucket of a phase, in their collective
  std::vector<Groups> groups_;          // of each collective
  std::vector<Bucket> buckets_;
  std::map<NodeId, int> bucket_of_;
  std::set<ValueId> rounded_in_bucket_;       // terms that are made with their collective
  std::vector<uint32_t> bucket_collectives_;  // of each bucket; the first of the plan
  std::vector<Assignment> assignments_;
  std::map<ValueId, std::vector<Assignment>> assignments_of_;  // of a new value
  std::map<ValueId, int> state_index_;
  std::vector<std::set<PhaseKey>> keys_;          // a stage each
  std::vector<std::vector<PhaseChoice>> orders_;  // likewise; empty: decided as the plan runs
  std::optional<ScheduleTimes> times_;            // of all orders, if all are known
  int activations_ = 1;                           // else: the most credits of a stage
  absl::flat_hash_map<std::string, std::vector<uint32_t>> kernels_by_op_;
  absl::flat_hash_map<std::string, uint32_t> sharding_by_text_;
  std::vector<std::optional<uint32_t>> sharding_index_;  // of each value, if asked for
  std::vector<uint32_t> class_sizes_;
  // Without folding: of each folded collective and transfer, the first of all devices.
  std::vector<uint32_t> first_collective_;
  std::vector<uint32_t> first_transfer_;
};

}  // namespace penstock::planner::internal

#endif  // PENSTOCK_PLANNER_LOWER_LOWERING_INTERNAL_H_
