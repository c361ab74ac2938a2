#include "planner/lower/lower_to_plan.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "graph/init_streams.h"
#include "planner/cost/collective_choice.h"
#include "planner/cost/communication_cost.h"
#include "planner/cost/predict_step.h"
#include "planner/lower/communication.h"
#include "planner/lower/device_program.h"
#include "planner/lower/phases.h"
#include "planner/lower/prefetch.h"
#include "planner/plan/access_order.h"
#include "planner/plan/coordinates.h"
#include "planner/plan/folded_plan.h"
#include "planner/plan/memory.h"
#include "planner/sharding/execution_sharding.h"

namespace penstock::planner {
namespace {

using graph::Graph;
using graph::kNoValue;
using graph::Mesh;
using graph::Node;
using graph::NodeId;
using graph::Sharding;
using graph::ValueId;

constexpr PhaseKey kBeforeStepKey = {0, false, 0};
constexpr PhaseKey kFirstForwardKey = {0, true, 0};
constexpr PhaseKey kFirstUpdateKey = {1, false, 0};

bool FormsWhole(std::string_view op) { return op == "accumulate" || op == "gather_microbatches"; }

// Of each value: whether a node that runs once a micro-batch reads it, as it is or reshaped.
std::vector<bool> FindReadOften(const Graph& graph) {
  const auto is_often = [&](ValueId value) { return IsPerMicrobatch(graph, value); };
  std::vector<bool> is_read_often(graph.num_values(), false);
  for (NodeId id = graph.num_nodes() - 1; id >= 0; --id) {
    const Node& node = graph.node(id);
    const bool reads_often = std::any_of(node.operands.begin(), node.operands.end(), is_often) ||
                             std::any_of(node.results.begin(), node.results.end(), is_often) ||
                             (node.op->name() == "reshape" && is_read_often[node.results[0]]);
    if (!reads_often) continue;
    for (ValueId operand : node.operands) is_read_often[operand] = true;
  }
  return is_read_often;
}

// A value that all micro-batches form together and each of them then reads passes through a phase
// that runs once a step: its tokens come once, whole. Adds the `copy` that does so.
absl::StatusOr<Graph> AddRateCopies(const graph::OpRegistry& ops, const Graph& in) {
  const std::vector<bool> is_read_often = FindReadOften(in);
  std::vector<bool> needs_copy(in.num_nodes(), false);
  for (NodeId id = 0; id < in.num_nodes(); ++id) {
    const Node& node = in.node(id);
    needs_copy[id] = FormsWhole(node.op->name()) && is_read_often[node.results[0]] &&
                     !IsPerMicrobatch(in, node.results[0]);
  }
  Graph out(in.name());
  out.mutable_meshes() = in.meshes();
  out.ReserveNames(in);
  std::vector<ValueId> now(in.num_values(), kNoValue);
  std::vector<NodeId> now_node;
  for (NodeId id = 0; id < in.num_nodes(); ++id) {
    const Node& node = in.node(id);
    Node copy = node;
    for (ValueId& operand : copy.operands) operand = now[operand];
    if (copy.forward != graph::kNoNode) copy.forward = now_node[copy.forward];
    copy.results.clear();
    std::vector<std::string> names;
    for (ValueId result : node.results) {
      names.push_back(needs_copy[id] ? out.UniqueName(absl::StrCat(in.value(result).name, ".sum"))
                                     : in.value(result).name);
    }
    const NodeId made = out.AddTyped(copy, in.ResultTypes(node), names);
    now_node.push_back(made);
    for (size_t r = 0; r < node.results.size(); ++r) {
      now[node.results[r]] = out.node(made).results[r];
      out.mutable_value(now[node.results[r]]).sharding = in.value(node.results[r]).sharding;
    }
    if (!needs_copy[id]) continue;
    copy.op = ops.Find("copy");
    if (copy.op == nullptr) return absl::InternalError("no operator copy");
    copy.attributes = {};
    copy.operands = {now[node.results[0]]};
    const NodeId whole = out.AddTyped(copy, in.ResultTypes(node), {in.value(node.results[0]).name});
    now[node.results[0]] = out.node(whole).results[0];
    out.mutable_value(now[node.results[0]]).sharding = in.value(node.results[0]).sharding;
  }
  for (const graph::Return& ret : in.returns()) {
    out.mutable_returns().push_back({now[ret.value], ret.sharding});
  }
  return out;
}

// An assign's new value and where it is written.
struct Assignment {
  NodeId assign = graph::kNoNode;
  ValueId state = kNoValue;
  ValueId value = kNoValue;
};

// Gradient sums of one stage that are reduced by one collective, beside the phases: their buffer
// is contiguous, so nothing is copied. A reduce_scatter has its bucket to itself: parts of several
// gradients would not lie side by side.
struct Bucket {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::vector<NodeId> nodes;  // in the order in which their terms are made
  int stage = 0;
  PhaseKey key;
  int64_t bytes = 0;
  DType dtype = DType::kF32;
  std::vector<CollectiveSpec> groups;  // of the first node: the groups of all
  std::vector<graph::AxisRef> axes;    // likewise
};

// Of the equal terms that a slice into a sum leaves, all but one are neutral: whether the device's
// counts. Over axes on which the terms were partial before, all count.
bool IsFirstOf(const Mesh& mesh, const Sharding& from, const graph::PartialSpec& partial,
               uint32_t device) {
  std::vector<graph::AxisRef> summed;
  for (const graph::PartialSpec& before : from.partials) {
    summed.insert(summed.end(), before.axes.begin(), before.axes.end());
  }
  const std::vector<graph::AxisRef> added = Difference(partial.axes, summed);
  return std::all_of(added.begin(), added.end(), [&](const graph::AxisRef& axis) {
    return graph::Coordinate(mesh, axis, device, 0) == 0;
  });
}

// Whether the device is the first of those that hold the same tile: on what splits nothing of an
// axis, its coordinate is 0.
bool IsFirstWithTile(const Mesh& mesh, const Sharding& sharding, uint32_t device) {
  for (int axis = 0; axis < static_cast<int>(mesh.axes.size()); ++axis) {
    if (mesh.axes[axis].is_temporal) continue;
    int64_t part = 0;
    for (const graph::DimSharding& dim : sharding.dims) {
      for (const graph::AxisRef& piece : dim.axes) {
        if (piece.axis != axis) continue;
        part += graph::Coordinate(mesh, piece, device, 0) *
                (mesh.axes[axis].size / (piece.pre * piece.size));
      }
    }
    if (part != graph::Coordinate(mesh, graph::WholeAxis(mesh, axis), device, 0)) return false;
  }
  return true;
}

// What holds for all devices: phases, transfers, collectives, tables.
class Lowering {
 public:
  Lowering(const graph::OpRegistry& ops, Graph graph, const LowerOptions& options)
      : ops_(ops), graph_(std::move(graph)), options_(options), mesh_(graph_.meshes()[0]) {}

  absl::StatusOr<FoldedPlan> Run();

 private:
  friend class DeviceLowering;

  // The collective of each group of a stage's devices, which are numbered in the mesh.
  struct Groups {
    std::vector<CollectiveSpec> specs;
    std::vector<uint32_t> group_of;  // of each device
  };

  absl::Status Analyse();
  absl::Status ScheduleStages();
  PhaseReads FindReads() const;
  // Nothing for leaves, and for nodes that do not run in a compute lane.
  std::optional<StagePhase> ComputePhaseOf(const NodePhase& phase) const;
  absl::Status NumberTransfers();
  absl::StatusOr<const Communication*> CommunicationOf(NodeId id, CollectiveKind kind);
  uint32_t AddCollective(int stage, bool per_microbatch, std::vector<CollectiveSpec> specs,
                         std::vector<graph::AxisRef> axes);
  const CollectiveSpec& SpecOn(uint32_t collective, uint32_t mesh_device) const {
    const Groups& groups = groups_[collective];
    return groups.specs[groups.group_of[mesh_device]];
  }
  bool CanBucket(NodeId id) const;
  absl::Status FormBuckets();
  absl::Status NumberCollectives();
  // The host on which each device of a stage is taken to be.
  std::vector<uint32_t> HostsOf(int stage, const std::vector<uint32_t>& devices) const;
  // Index of the value's sharding in the plan; kNone: its tile is the same on all devices.
  uint32_t ShardingIndex(ValueId value, bool always = false);
  // The view of the device's part of the tile of a value: both are of one tensor.
  uint32_t ViewIndex(ValueId whole, ValueId part);
  // What makes the program of a device of the mesh differ from others', by device.
  std::vector<std::vector<int64_t>> Signatures() const;
  void FindClasses();
  graph::OpCost CostOf(const KernelPlan& spec) const;
  uint32_t KernelIndex(const KernelPlan& spec, const std::vector<uint32_t>& shardings);
  absl::Status CheckKernels() const;

  const Node& ProducerOf(ValueId value) const { return graph_.node(graph_.value(value).producer); }
  const NodePhase& PhaseOf(ValueId value) const { return phases_[graph_.value(value).producer]; }
  bool IsState(ValueId value) const {
    const std::string_view op = ProducerOf(value).op->name();
    return op == "parameter" || op == "state";
  }
  // Whether the value is made anew in every micro-batch.
  bool IsMadeOften(ValueId value) const {
    return PhaseOf(value).key.per_microbatch && !FormsWhole(ProducerOf(value).op->name());
  }
  // The phase in which a returned value is fetched: where it is made, or the first that has it
  // whole.
  PhaseKey FetchKey(ValueId value) const;
  // The value whose bytes this one shares through reshapes.
  ValueId RootOf(ValueId value) const { return root_[value]; }

  const graph::OpRegistry& ops_;
  const Graph graph_;
  const LowerOptions& options_;
  const Mesh& mesh_;
  FoldedPlan folded_;
  Plan& plan_ = folded_.common;
  std::vector<NodePhase> phases_;
  std::vector<NodeTurn> turns_;
  std::vector<std::vector<NodeId>> users_;
  std::vector<ValueId> root_;
  std::vector<std::vector<ValueId>> values_of_root_;  // that share its bytes, itself too
  std::vector<bool> is_read_often_;
  int num_stages_ = 1;
  uint32_t devices_per_stage_ = 1;
  // Stages other than the producer's that read a value.
  std::map<ValueId, std::set<int>> remote_readers_;
  std::map<std::pair<ValueId, int>, uint32_t> transfers_;  // value, stage
  // By kind, type and shardings: layers repeat.
  absl::flat_hash_map<std::string, std::unique_ptr<const Communication>> communication_by_key_;
  std::map<NodeId, const Communication*> communications_;
  std::map<NodeId, uint32_t> collectives_;
  std::vector<Groups> groups_;  // of each collective
  std::vector<Bucket> buckets_;
  std::map<NodeId, int> bucket_of_;
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
};

// Builds the program of one device, and of all of its class.
class DeviceLowering {
 public:
  DeviceLowering(Lowering& shared, int stage, uint32_t mesh_device)
      : shared_(shared),
        graph_(shared.graph_),
        mesh_(shared.mesh_),
        stage_(stage),
        mesh_device_(mesh_device) {}

  absl::StatusOr<DevicePlan> Run();

 private:
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
  absl::Status AddBuckets();
  absl::Status AddReceive(ValueId value);
  absl::Status AddNode(const NodeTurn& turn);
  absl::Status AddRedistribution(const NodeTurn& turn, int phase);
  void FinishGather(NodeId id);
  absl::Status AddKernel(NodeId id, int phase);
  absl::Status AddLeaf(ValueId value, int phase);
  absl::Status AddFetch(size_t index);
  absl::Status AddSends(ValueId value);
  absl::Status AddAssignments();
  bool IsReadBefore(ValueId state, NodeId writer) const;
  bool WritesInPlace(const Assignment& assignment) const;
  ValueId StateWrittenBy(ValueId value) const;
  absl::StatusOr<bool> AddPartOfState(NodeId id, int phase);
  bool MayOverwrite(const Node& node, int input, const KernelPlan& spec, int phase) const;
  bool MayStayIn(int buffer, ValueId result) const;

  Lowering& shared_;
  const Graph& graph_;
  const Mesh& mesh_;
  const int stage_;
  const uint32_t mesh_device_;
  DeviceProgram program_;
  std::map<PhaseKey, int> phase_index_;
  PhaseKey assign_key_;
  std::map<ValueId, int> buffer_;                       // by root value
  std::map<std::pair<ValueId, int>, int> leaf_buffer_;  // leaf value, phase
  std::map<ValueId, int> value_phase_;                  // phase in which a value is made here
  std::set<int> formed_;    // buffers that all micro-batches of a step form together
  std::set<NodeId> fused_;  // accumulates that their producer does itself
  std::map<ValueId, ValueId> accumulates_into_;
  std::map<ValueId, int> bucket_part_;  // buffer of a gradient's terms in its bucket
  // The kernel that follows a gather.
  struct Unpack {
    KernelPlan kernel;
    int phase = 0;
    int parts = -1;
    int output = -1;
  };
  std::map<NodeId, Unpack> unpacks_;
  std::map<ValueId, int> scattered_part_;  // buffer of the part that a reduce_scatter leaves
};

// ---------------------------------------------------------------------------- shared analysis

absl::Status Lowering::Analyse() {
  ASSIGN_OR_RETURN(phases_,
                   AssignPhases(graph_, {options_.split_weight_gradients, options_.num_groups}));
  turns_ = OrderNodes(graph_, phases_, options_.bucket_bytes);
  devices_per_stage_ = static_cast<uint32_t>(mesh_.num_devices());
  users_ = graph_.Users();
  is_read_often_ = FindReadOften(graph_);
  root_.resize(graph_.num_values());
  for (ValueId value = 0; value < graph_.num_values(); ++value) {
    root_[value] = value;
    const Node& node = ProducerOf(value);
    if (node.op->name() != "reshape" || !PhaseOf(value).is_live) continue;
    const ValueId operand = node.operands[0];
    // A leaf is made again where it is read; a reshape of it is a node like any other.
    if (PhaseOf(operand).is_leaf || PhaseOf(operand).stage != PhaseOf(value).stage) continue;
    root_[value] = root_[operand];
  }
  values_of_root_.resize(graph_.num_values());
  for (ValueId value = 0; value < graph_.num_values(); ++value) {
    values_of_root_[root_[value]].push_back(value);
  }
  for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
    const NodePhase& phase = phases_[id];
    const Node& node = graph_.node(id);
    if (!phase.is_live) continue;
    num_stages_ = std::max(num_stages_, phase.stage + 1);
    if (node.op->name() == "assign") {
      assignments_.push_back({id, node.operands[0], node.operands[1]});
      assignments_of_[node.operands[1]].push_back(assignments_.back());
    }
    for (ValueId operand : node.operands) {
      const NodePhase& source = PhaseOf(operand);
      if (!source.is_leaf && source.stage != phase.stage) {
        remote_readers_[operand].insert(phase.stage);
      }
    }
  }
  keys_.resize(num_stages_);
  for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
    const NodePhase& phase = phases_[id];
    const Node& node = graph_.node(id);
    if (!phase.is_live || phase.is_leaf || node.op->has_declared_type()) continue;
    if (node.op->name() != "assign") keys_[phase.stage].insert(phase.key);
  }
  for (const graph::Return& ret : graph_.returns()) {
    keys_[PhaseOf(ret.value).stage].insert(FetchKey(ret.value));
  }
  return absl::OkStatus();
}

PhaseKey Lowering::FetchKey(ValueId value) const {
  const NodePhase& source = PhaseOf(value);
  const bool made_often = IsMadeOften(value);
  if (source.is_leaf || ProducerOf(value).op->has_declared_type()) {
    return made_often ? kFirstForwardKey : kBeforeStepKey;
  }
  if (!made_often && source.key.per_microbatch) return {source.key.level + 1, false, 0};
  return source.key;
}

absl::Status Lowering::ScheduleStages() {
  StageContext context;
  context.num_stages = num_stages_;
  context.num_microbatches = static_cast<int>(plan_.num_microbatches);
  bool has_orders = true;
  for (int stage = 0; stage < num_stages_; ++stage) {
    context.stage = stage;
    context.chunks = {PhaseKinds{}};
    for (const PhaseKey& key : keys_[stage]) {
      if (key.lane() != Lane::kCompute) continue;
      if (key.chunk >= context.num_chunks()) context.chunks.resize(key.chunk + 1);
      context.chunks[key.chunk][static_cast<size_t>(key.kind())] = true;
    }
    ASSIGN_OR_RETURN(StageSchedule schedule, MakeSchedule(*options_.policy, context));
    if (!context.has_choices()) schedule.order.clear();
    if (schedule.order.empty() && context.has_choices()) {
      has_orders = false;
      ASSIGN_OR_RETURN(const int credits, ActivationCreditsOf(*options_.policy, context));
      activations_ = std::max(activations_, credits);
    }
    orders_.push_back(std::move(schedule.order));
  }
  if (has_orders) times_ = ScheduleTimes::Of(orders_, context.num_microbatches, FindReads());
  // A deadlock between the orders is for the verifier to describe.
  if (has_orders && !times_.has_value()) activations_ = context.num_microbatches;
  return absl::OkStatus();
}

std::optional<StagePhase> Lowering::ComputePhaseOf(const NodePhase& phase) const {
  if (!phase.is_live || phase.is_leaf || phase.key.lane() != Lane::kCompute) return std::nullopt;
  return StagePhase{phase.stage, {phase.key.chunk, phase.key.kind()}};
}

PhaseReads Lowering::FindReads() const {
  PhaseReads reads;
  for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
    const std::optional<StagePhase> reader = ComputePhaseOf(phases_[id]);
    if (!reader.has_value()) continue;
    for (const ValueId operand : graph_.node(id).operands) {
      const std::optional<StagePhase> source = ComputePhaseOf(PhaseOf(operand));
      if (source.has_value() && *source != *reader) reads.insert({*source, *reader});
    }
  }
  return reads;
}

absl::Status Lowering::NumberTransfers() {
  for (const auto& [value, stages] : remote_readers_) {
    const graph::Value& v = graph_.value(value);
    for (int stage : stages) {
      FoldedTransfer transfer;
      transfer.source_stage = static_cast<uint32_t>(PhaseOf(value).stage);
      transfer.destination_stage = static_cast<uint32_t>(stage);
      transfer.per_microbatch = IsMadeOften(value);
      transfer.first_channel = plan_.num_channels;
      transfer.type = v.type;
      transfer.sharding = ShardingIndex(value, true);
      plan_.num_channels += devices_per_stage_;
      transfers_[{value, stage}] = static_cast<uint32_t>(folded_.transfers.size());
      folded_.transfers.push_back(std::move(transfer));
    }
  }
  return absl::OkStatus();
}

// A sum over devices of a gradient that is complete when its term is made, that only the update
// reads, and whose term nobody else reads. One that is scattered as soon as it is made needs no
// memory beyond its phase, so it stays there.
bool Lowering::CanBucket(NodeId id) const {
  const Node& node = graph_.node(id);
  const std::optional<CollectiveKind> kind = CollectiveOf(node.op->name());
  if (!phases_[id].is_live ||
      (kind != CollectiveKind::kAllReduce &&
       (kind != CollectiveKind::kReduceScatter || mesh_.num_microbatches() == 1))) {
    return false;
  }
  const ValueId term = node.operands[0];
  const ValueId result = node.results[0];
  const Node& producer = ProducerOf(term);
  const graph::Value& value = graph_.value(term);
  if (users_[term].size() != 1 || RootOf(term) != term || PhaseOf(term).is_leaf || IsState(term) ||
      PhaseOf(term).stage != phases_[id].stage || CollectiveOf(producer.op->name()) ||
      value.sharding->partials.size() != 1 ||
      value.sharding->partials[0].reduction != graph::Reduction::kSum ||
      graph_.value(result).sharding->is_partial()) {
    return false;
  }
  const PhaseKey& made = PhaseOf(term).key;
  if (!made.per_microbatch || made.level != 0 || made.order == 0) return false;
  if (IsMadeOften(term) && mesh_.num_microbatches() > 1) return false;
  for (const graph::Return& ret : graph_.returns()) {
    if (ret.value == result) return false;
  }
  return std::all_of(users_[result].begin(), users_[result].end(), [&](NodeId user) {
    return !phases_[user].is_live || !phases_[user].key.per_microbatch;
  });
}

absl::Status Lowering::FormBuckets() {
  if (options_.bucket_bytes <= 0) return absl::OkStatus();
  for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
    if (!CanBucket(id)) continue;
    const Node& node = graph_.node(id);
    const graph::Value& term = graph_.value(node.operands[0]);
    const Sharding from = ClosedSharding(mesh_, term);
    const CollectiveKind kind = *CollectiveOf(node.op->name());
    ASSIGN_OR_RETURN(const Communication* communication, CommunicationOf(id, kind));
    if (communication->pack_dim.has_value()) continue;
    ASSIGN_OR_RETURN(const TilePlan tile, TileOf(mesh_, from, term.type, 0));
    const auto bytes = static_cast<int64_t>(tile.num_bytes());
    int bucket = -1;
    const bool is_shared = kind == CollectiveKind::kAllReduce;
    for (int b = static_cast<int>(buckets_.size()) - 1; is_shared && b >= 0 && bucket < 0; --b) {
      const Bucket& other = buckets_[b];
      if (other.kind != kind || other.axes != communication->axes ||
          other.stage != phases_[id].stage || other.dtype != term.type.dtype ||
          other.key != phases_[id].key) {
        continue;
      }
      if (other.bytes + bytes > options_.bucket_bytes) break;
      bucket = b;
    }
    if (bucket < 0) {
      bucket = static_cast<int>(buckets_.size());
      buckets_.push_back({kind,
                          {},
                          phases_[id].stage,
                          phases_[id].key,
                          0,
                          term.type.dtype,
                          communication->groups,
                          communication->axes});
    }
    buckets_[bucket].nodes.push_back(id);
    buckets_[bucket].bytes += bytes;
    bucket_of_[id] = bucket;
  }
  for (const Bucket& bucket : buckets_) {
    std::vector<CollectiveSpec> specs = bucket.groups;
    for (CollectiveSpec& spec : specs) {
      int64_t elements = 0;
      for (NodeId id : bucket.nodes) {
        const graph::Value& term = graph_.value(graph_.node(id).operands[0]);
        ASSIGN_OR_RETURN(const TilePlan tile,
                         TileOf(mesh_, ClosedSharding(mesh_, term), term.type, spec.devices[0]));
        elements += static_cast<int64_t>(AlignUp(tile.num_bytes()) / ByteSize(bucket.dtype));
      }
      const int n = static_cast<int>(spec.devices.size());
      for (int r = 0; r < n && bucket.kind == CollectiveKind::kAllReduce; ++r) {
        spec.counts[r] = PartOf(elements, r, n).size();
      }
    }
    bucket_collectives_.push_back(
        AddCollective(bucket.stage, mesh_.num_microbatches() == 1, std::move(specs), bucket.axes));
  }
  return absl::OkStatus();
}

// In the order in which the lanes of every device come to them.
absl::Status Lowering::NumberCollectives() {
  std::vector<NodeId> by_phase;
  for (const NodeTurn& turn : turns_) {
    if (turn.part != NodeTurn::Part::kFinish) by_phase.push_back(turn.node);
  }
  std::stable_sort(by_phase.begin(), by_phase.end(),
                   [&](NodeId a, NodeId b) { return phases_[a].key < phases_[b].key; });
  for (NodeId id : by_phase) {
    const Node& node = graph_.node(id);
    if (!phases_[id].is_live || bucket_of_.contains(id)) continue;
    const std::optional<CollectiveKind> kind = CollectiveOf(node.op->name());
    if (!kind) continue;
    ASSIGN_OR_RETURN(const Communication* communication, CommunicationOf(id, *kind));
    const uint32_t collective = AddCollective(phases_[id].stage, phases_[id].key.per_microbatch,
                                              communication->groups, communication->axes);
    folded_.collectives[collective].first_channel = plan_.num_channels;
    plan_.num_channels += static_cast<uint32_t>(communication->groups.size());
    collectives_[id] = collective;
    communications_[id] = communication;
  }
  // Lower channels go first on a link (transport.h): transfers between stages, then what phases
  // wait for, then sums of gradients. Of these the last ones are of the first layers, which the
  // next forward pass needs first.
  for (size_t i = bucket_collectives_.size(); i-- > 0;) {
    folded_.collectives[bucket_collectives_[i]].first_channel = plan_.num_channels;
    plan_.num_channels += static_cast<uint32_t>(groups_[bucket_collectives_[i]].specs.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<const Communication*> Lowering::CommunicationOf(NodeId id, CollectiveKind kind) {
  const Node& node = graph_.node(id);
  const graph::Value& result = graph_.value(node.results[0]);
  const Sharding from = ClosedSharding(mesh_, graph_.value(node.operands[0]));
  const Sharding to = ClosedSharding(mesh_, result);
  std::string key = absl::StrCat(std::string(Name(kind)), " ", penstock::ToString(result.type), " ",
                                 graph::ToString(mesh_, from), " ", graph::ToString(mesh_, to));
  const std::optional<TileRoll> roll = TileRollOf(graph_, node);
  if (roll.has_value()) absl::StrAppend(&key, " ", roll->dim, " ", roll->by, "/", roll->parts);
  std::unique_ptr<const Communication>& known = communication_by_key_[key];
  if (known == nullptr) {
    ASSIGN_OR_RETURN(Communication communication,
                     PlanCommunication(mesh_, kind, result.type, from, to, roll));
    known = std::make_unique<const Communication>(std::move(communication));
  }
  return known.get();
}

// `specs` have devices of the mesh, and no channel.
uint32_t Lowering::AddCollective(int stage, bool per_microbatch, std::vector<CollectiveSpec> specs,
                                 std::vector<graph::AxisRef> axes) {
  FoldedCollective collective;
  collective.stage = static_cast<uint32_t>(stage);
  collective.per_microbatch = per_microbatch;
  collective.axes = std::move(axes);
  Groups groups;
  groups.group_of.resize(devices_per_stage_);
  bool is_uniform = true;
  for (uint32_t g = 0; g < specs.size(); ++g) {
    CollectiveSpec& spec = specs[g];
    ChooseCollective(HostsOf(stage, spec.devices), &spec);
    for (const uint32_t device : spec.devices) groups.group_of[device] = g;
    collective.specs.push_back(spec);
    collective.specs.back().devices.clear();
    is_uniform = is_uniform && collective.specs.back() == collective.specs[0];
  }
  if (is_uniform) collective.specs.resize(1);
  groups.specs = std::move(specs);
  groups_.push_back(std::move(groups));
  folded_.collectives.push_back(std::move(collective));
  return static_cast<uint32_t>(folded_.collectives.size() - 1);
}

std::vector<uint32_t> Lowering::HostsOf(int stage, const std::vector<uint32_t>& devices) const {
  std::vector<uint32_t> hosts;
  for (const uint32_t mesh_device : devices) {
    const uint32_t device = static_cast<uint32_t>(stage) * devices_per_stage_ + mesh_device;
    uint32_t host = 0;
    uint32_t end = 0;  // of the devices of the hosts so far
    for (const uint32_t count : options_.host_devices) {
      end += count;
      if (device < end) break;
      ++host;
    }
    hosts.push_back(host);
  }
  return hosts;
}

// The work of a kernel, feed or fetch on its tiles.
graph::OpCost Lowering::CostOf(const KernelPlan& spec) const {
  std::vector<TensorType> operands;
  std::vector<TensorType> results;
  for (const TilePlan& tile : spec.inputs) operands.push_back({tile.dtype, tile.shape});
  for (const TilePlan& tile : spec.outputs) results.push_back({tile.dtype, tile.shape});
  const graph::Op* op = ops_.Find(spec.op);
  if (op != nullptr) {
    graph::OpCost cost = op->Cost({spec.attributes, operands, results});
    // A sum that the kernel keeps itself is read, too.
    for (size_t i = 0; spec.accumulate && spec.op != "accumulate" && i < results.size(); ++i) {
      cost.bytes += static_cast<double>(results[i].num_bytes());
    }
    return cost;
  }
  // Copies between a tile and what has no tile: a fed or fetched tensor, the parts of a packed one.
  graph::OpCost copy;
  for (const TensorType& type : operands) copy.bytes += static_cast<double>(type.num_bytes());
  for (const TensorType& type : results) copy.bytes += static_cast<double>(type.num_bytes());
  if (operands.empty() || results.empty()) copy.bytes *= 2;
  return copy;
}

uint32_t Lowering::ShardingIndex(ValueId value, bool always) {
  sharding_index_.resize(graph_.num_values());
  std::optional<uint32_t>& index = sharding_index_[value];
  if (index.has_value() && !(always && *index == kNone)) return *index;
  Sharding sharding = ClosedSharding(mesh_, graph_.value(value));
  sharding.partials.clear();
  sharding.replicated.clear();
  const bool is_whole = std::all_of(sharding.dims.begin(), sharding.dims.end(),
                                    [](const graph::DimSharding& dim) { return dim.axes.empty(); });
  if (is_whole && !always) {
    index = kNone;
    return kNone;
  }
  const auto next = static_cast<uint32_t>(folded_.shardings.size());
  const auto [known, is_new] = sharding_by_text_.emplace(graph::ToString(mesh_, sharding), next);
  if (is_new) folded_.shardings.push_back(std::move(sharding));
  if (!is_whole) index = known->second;
  return known->second;
}

uint32_t Lowering::ViewIndex(ValueId whole, ValueId part) {
  const FoldedView view = {graph_.value(whole).type, ShardingIndex(whole, true),
                           ShardingIndex(part, true)};
  const auto known = std::find(folded_.views.begin(), folded_.views.end(), view);
  if (known != folded_.views.end()) return static_cast<uint32_t>(known - folded_.views.begin());
  folded_.views.push_back(view);
  return static_cast<uint32_t>(folded_.views.size() - 1);
}

uint32_t Lowering::KernelIndex(const KernelPlan& spec, const std::vector<uint32_t>& shardings) {
  std::string key = spec.op;
  for (const TilePlan& tile : spec.inputs) absl::StrAppend(&key, penstock::ToString(tile.shape));
  for (const TilePlan& tile : spec.outputs) {
    absl::StrAppend(&key, "|", penstock::ToString(tile.shape), penstock::ToString(tile.offset));
  }
  std::vector<uint32_t>& candidates = kernels_by_op_[key];
  for (uint32_t index : candidates) {
    if (folded_.kernels[index] == spec && folded_.kernel_shardings[index] == shardings) {
      return index;
    }
  }
  candidates.push_back(static_cast<uint32_t>(folded_.kernels.size()));
  folded_.kernels.push_back(spec);
  folded_.kernel_shardings.push_back(shardings);
  return candidates.back();
}

std::vector<std::vector<int64_t>> Lowering::Signatures() const {
  std::vector<std::vector<int64_t>> signatures(devices_per_stage_);
  const auto add = [&](const auto& of_device) {
    for (uint32_t d = 0; d < devices_per_stage_; ++d) signatures[d].push_back(of_device(d));
  };
  // Sizes of tiles.
  std::set<std::pair<std::vector<graph::AxisRef>, int64_t>> seen;
  for (ValueId value = 0; value < graph_.num_values(); ++value) {
    const graph::Value& v = graph_.value(value);
    const Sharding sharding = ClosedSharding(mesh_, v);
    for (size_t i = 0; i < sharding.dims.size(); ++i) {
      const graph::DimSharding& dim = sharding.dims[i];
      const int64_t extent = v.type.shape[i];
      if (extent % graph::NumParts(dim) == 0 || !seen.insert({dim.axes, extent}).second) continue;
      add([&](uint32_t d) { return graph::LocalRange(mesh_, dim, extent, d, 0).size(); });
      if (mesh_.num_microbatches() == 1) continue;
      add([&](uint32_t d) {
        return graph::LocalRange(mesh_, dim, extent, d, 1).begin -
               graph::LocalRange(mesh_, dim, extent, d, 0).begin;
      });
    }
  }
  // Groups of other sizes than the rest have.
  for (size_t c = 0; c < groups_.size(); ++c) {
    const std::vector<CollectiveSpec>& specs = folded_.collectives[c].specs;
    if (specs.size() == 1) continue;
    add([&](uint32_t d) {
      return std::find(specs.begin(), specs.end(), specs[groups_[c].group_of[d]]) - specs.begin();
    });
  }
  std::set<const Communication*> compared;
  for (const auto& [node, communication] : communications_) {
    if (!compared.insert(communication).second) continue;
    const std::vector<uint32_t>& group_of = groups_[collectives_.at(node)].group_of;
    for (const auto* sizes : {&communication->pack_sizes, &communication->unpack_sizes}) {
      if (std::all_of(sizes->begin(), sizes->end(),
                      [&](const auto& other) { return other == sizes->front(); })) {
        continue;
      }
      add([&](uint32_t d) {
        return std::find(sizes->begin(), sizes->end(), (*sizes)[group_of[d]]) - sizes->begin();
      });
    }
  }
  // Terms that are neutral on all devices but some.
  for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
    const Node& node = graph_.node(id);
    if (node.op->name() != "local_slice") continue;
    const Sharding from = ClosedSharding(mesh_, graph_.value(node.operands[0]));
    for (const graph::PartialSpec& partial :
         ClosedSharding(mesh_, graph_.value(node.results[0])).partials) {
      add([&](uint32_t d) { return IsFirstOf(mesh_, from, partial, d); });
    }
  }
  for (const graph::Return& ret : graph_.returns()) {
    const Sharding sharding = ClosedSharding(mesh_, graph_.value(ret.value));
    add([&](uint32_t d) { return IsFirstWithTile(mesh_, sharding, d); });
  }
  return signatures;
}

void Lowering::FindClasses() {
  folded_.class_of.resize(devices_per_stage_);
  std::map<std::vector<int64_t>, uint32_t> class_by_signature;
  const std::vector<std::vector<int64_t>> signatures = Signatures();
  for (uint32_t d = 0; d < devices_per_stage_; ++d) {
    const auto next = static_cast<uint32_t>(class_by_signature.size());
    folded_.class_of[d] =
        options_.fold ? class_by_signature.emplace(signatures[d], next).first->second : d;
  }
  class_sizes_ = folded_.SizeOfClasses();
}

// That every operator runs on these element types; an error names the first node that does not.
absl::Status Lowering::CheckKernels() const {
  for (uint32_t k = 0; k < folded_.kernels.size(); ++k) {
    const KernelPlan& kernel = folded_.kernels[k];
    if (kernel.op == "feed" || kernel.op == "fetch") continue;
    const absl::Status status = options_.kernels.check_kernel(kernel);
    if (status.ok()) continue;
    for (const DevicePlan& program : folded_.programs) {
      for (const ActorPlan& actor : program.actors) {
        if (actor.kernel != k) continue;
        const ValueId value = graph_.FindValue(actor.name);
        std::string where;
        if (value != kNoValue && ProducerOf(value).location.line > 0) {
          const graph::SourceLocation& place = ProducerOf(value).location;
          where = absl::StrCat(place.file, ":", place.line, ":", place.column, ": ");
        }
        return absl::Status(status.code(),
                            absl::StrCat(where, "%", actor.name, ": ", status.message()));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<FoldedPlan> Lowering::Run() {
  RETURN_IF_ERROR(Analyse());
  folded_.mesh = mesh_;
  plan_.name = graph_.name();
  plan_.num_microbatches = static_cast<uint32_t>(mesh_.num_microbatches());
  plan_.policy = std::string(options_.policy->name());
  const std::vector<uint32_t> init_streams = graph::InitStreams(graph_);
  for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
    const Node& node = graph_.node(id);
    const std::string op(node.op->name());
    if (!node.op->has_declared_type()) continue;
    const graph::Value& value = graph_.value(node.results[0]);
    if (op == "input") {
      plan_.feeds.push_back({value.name, value.type});
    } else if (phases_[id].is_live) {
      StatePlan state;
      state.name = value.name;
      state.type = value.type;
      state.is_parameter = op == "parameter";
      state.init = node.attributes.GetString("init", state.is_parameter ? "normal" : "zeros");
      state.std = node.attributes.GetDouble("std", 0.02);
      state.stream = init_streams[id];
      state_index_[node.results[0]] = static_cast<int>(plan_.states.size());
      plan_.states.push_back(std::move(state));
      folded_.states.push_back(
          {static_cast<uint32_t>(phases_[id].stage), ShardingIndex(node.results[0], true), {}});
    }
  }
  for (const graph::Return& ret : graph_.returns()) {
    const graph::Value& value = graph_.value(ret.value);
    plan_.fetches.push_back({value.name, value.type, 0});
  }
  RETURN_IF_ERROR(ScheduleStages());
  RETURN_IF_ERROR(NumberTransfers());
  RETURN_IF_ERROR(FormBuckets());
  RETURN_IF_ERROR(NumberCollectives());
  FindClasses();
  for (int stage = 0; stage < num_stages_; ++stage) {
    plan_.stages.emplace_back().order = orders_[stage];
    for (const uint32_t d : folded_.FirstOfClasses()) {
      ASSIGN_OR_RETURN(DevicePlan program, DeviceLowering(*this, stage, d).Run());
      folded_.programs.push_back(std::move(program));
    }
  }
  RETURN_IF_ERROR(CheckKernels());
  plan_.predicted_step_s = PredictStepSeconds(PlanOfPrograms(folded_));
  return std::move(folded_);
}

// ------------------------------------------------------------------------------- one device

absl::StatusOr<TilePlan> DeviceLowering::Tile(ValueId value) const {
  const graph::Value& v = graph_.value(value);
  return TileOf(mesh_, ClosedSharding(mesh_, v), v.type, mesh_device_);
}

int DeviceLowering::PhaseIndex(const PhaseKey& key) {
  const auto it = phase_index_.find(key);
  if (it != phase_index_.end()) return it->second;
  return -1;
}

int DeviceLowering::FloatingPhase(std::string name, bool per_microbatch) {
  PhasePlan plan;
  plan.name = std::move(name);
  plan.kind = PhaseKind::kTransfer;
  plan.lane = Lane::kFloating;
  plan.per_microbatch = per_microbatch;
  return program_.AddPhase(std::move(plan));
}

absl::StatusOr<int> DeviceLowering::NewBuffer(ValueId value, bool per_microbatch) {
  const auto part = bucket_part_.find(value);
  if (part != bucket_part_.end()) return part->second;
  ASSIGN_OR_RETURN(TilePlan tile, Tile(value));
  Buffer buffer;
  buffer.bytes = tile.num_bytes();
  buffer.per_microbatch = per_microbatch;
  return program_.AddBuffer(buffer);
}

void DeviceLowering::AddActor(int phase, ActorKind kind, std::string name, KernelPlan spec,
                              std::vector<uint32_t> shardings, uint32_t target,
                              std::vector<int> inputs, std::vector<int> outputs, int after) {
  DraftActor actor;
  actor.after = after;
  actor.plan.name = std::move(name);
  actor.plan.kind = kind;
  actor.plan.target = target;
  actor.inputs = std::move(inputs);
  actor.outputs = std::move(outputs);
  const LowerOptions& options = shared_.options_;
  if (!spec.op.empty()) {
    if (kind == ActorKind::kKernel) actor.scratch_bytes = options.kernels.workspace_bytes(spec);
    const graph::OpCost cost = shared_.CostOf(spec);
    actor.predicted_s =
        std::max(cost.bytes / options.bytes_per_s, cost.flops / options.flops_per_s);
    actor.plan.kernel = shared_.KernelIndex(spec, shardings);
  } else if (kind == ActorKind::kCollective) {
    actor.predicted_s = CollectiveSeconds(shared_.SpecOn(target, mesh_device_), options.link);
  } else {
    const int buffer = actor.inputs.empty() ? actor.outputs[0] : actor.inputs[0];
    actor.predicted_s = TransferSeconds(program_.buffer(buffer).bytes, options.link);
  }
  program_.AddActor(phase, std::move(actor));
}

absl::Status DeviceLowering::AddLeaf(ValueId value, int phase) {
  const Node& node = shared_.ProducerOf(value);
  ASSIGN_OR_RETURN(TilePlan tile, Tile(value));
  ASSIGN_OR_RETURN(int buffer, NewBuffer(value, program_.phase(phase).plan.per_microbatch));
  KernelPlan spec;
  spec.outputs = {tile};
  if (node.op->name() == "input") {
    spec.op = "feed";
    uint32_t feed = 0;
    while (shared_.plan_.feeds[feed].name != graph_.value(value).name) ++feed;
    AddActor(phase, ActorKind::kFeed, graph_.value(value).name, spec,
             {shared_.ShardingIndex(value)}, feed, {}, {buffer});
  } else {
    spec.op = std::string(node.op->name());
    spec.attributes = node.attributes;
    AddActor(phase, ActorKind::kKernel, graph_.value(value).name, spec,
             {shared_.ShardingIndex(value)}, kNone, {}, {buffer});
  }
  leaf_buffer_[{value, phase}] = buffer;
  return absl::OkStatus();
}

absl::StatusOr<int> DeviceLowering::BufferForReading(ValueId value, int phase) {
  if (shared_.PhaseOf(value).is_leaf) {
    if (!leaf_buffer_.contains({value, phase})) RETURN_IF_ERROR(AddLeaf(value, phase));
    return leaf_buffer_.at({value, phase});
  }
  const auto it = buffer_.find(shared_.RootOf(value));
  if (it == buffer_.end() || shared_.PhaseOf(value).stage != stage_) {
    const auto received = buffer_.find(value);
    if (received != buffer_.end()) return received->second;
    return absl::InternalError(absl::StrCat("%", graph_.value(value).name, " has no buffer"));
  }
  return it->second;
}

absl::Status DeviceLowering::AddStates() {
  for (const auto& [value, index] : shared_.state_index_) {
    if (shared_.PhaseOf(value).stage != stage_) continue;
    ASSIGN_OR_RETURN(int buffer, NewBuffer(value, false));
    program_.buffer(buffer).state = index;
    buffer_[value] = buffer;
  }
  return absl::OkStatus();
}

absl::Status DeviceLowering::AddBuckets() {
  const bool per_microbatch = mesh_.num_microbatches() == 1;
  for (size_t b = 0; b < shared_.buckets_.size(); ++b) {
    const Bucket& bucket = shared_.buckets_[b];
    if (bucket.stage != stage_) continue;
    Buffer buffer;
    buffer.per_microbatch = per_microbatch;
    const int whole = program_.AddBuffer(buffer);
    for (NodeId id : bucket.nodes) {
      const ValueId term = graph_.node(id).operands[0];
      ASSIGN_OR_RETURN(const TilePlan tile, Tile(term));
      bucket_part_[term] = program_.AddPart(whole, tile.num_bytes());
    }
    const uint32_t target = shared_.bucket_collectives_[b];
    int output = whole;
    if (bucket.kind == CollectiveKind::kReduceScatter) {
      // Into the device's own part of the buffer.
      const Node& node = graph_.node(bucket.nodes[0]);
      const ValueId term = node.operands[0];
      const ValueId part = node.results[0];
      ASSIGN_OR_RETURN(const TilePlan whole_tile, Tile(term));
      ASSIGN_OR_RETURN(const TilePlan tile, Tile(part));
      const std::optional<uint64_t> offset = ContiguousOffset(whole_tile, tile);
      if (!offset.has_value()) {
        return absl::InternalError(
            absl::StrCat("the parts of %", graph_.value(term).name, " are not contiguous"));
      }
      output = program_.AddView(bucket_part_.at(term), shared_.ViewIndex(term, part), *offset,
                                tile.num_bytes());
      scattered_part_[node.results[0]] = output;
    }
    const std::string name = absl::StrCat(
        bucket.kind == CollectiveKind::kAllReduce ? "reduce gradients " : "scatter gradient ", b);
    AddActor(FloatingPhase(name, per_microbatch), ActorKind::kCollective, name, {}, {}, target,
             {whole}, {output});
  }
  return absl::OkStatus();
}

absl::Status DeviceLowering::AddReceive(ValueId value) {
  const bool per_microbatch = shared_.IsMadeOften(value);
  ASSIGN_OR_RETURN(int buffer, NewBuffer(value, per_microbatch));
  program_.buffer(buffer).received = true;
  program_.buffer(buffer).source = shared_.ComputePhaseOf(shared_.PhaseOf(value));
  buffer_[value] = buffer;
  const std::string name = absl::StrCat("recv ", graph_.value(value).name);
  const uint32_t transfer = shared_.transfers_.at({value, stage_});
  AddActor(FloatingPhase(name, per_microbatch), ActorKind::kRecv, name, {}, {}, transfer, {},
           {buffer});
  return absl::OkStatus();
}

absl::Status DeviceLowering::AddSends(ValueId value) {
  const auto readers = shared_.remote_readers_.find(value);
  if (readers == shared_.remote_readers_.end()) return absl::OkStatus();
  const bool per_microbatch = shared_.IsMadeOften(value);
  for (int stage : readers->second) {
    const std::string name = absl::StrCat("send ", graph_.value(value).name);
    const uint32_t transfer = shared_.transfers_.at({value, stage});
    const int phase = FloatingPhase(name, per_microbatch);
    AddActor(phase, ActorKind::kSend, name, {}, {}, transfer, {buffer_.at(shared_.RootOf(value))},
             {});
  }
  return absl::OkStatus();
}

// Whether the value may lie in a buffer of values before it. What micro-batches read may not lie
// where micro-batches form it: the next step's would write there while this step's read.
bool DeviceLowering::MayStayIn(int buffer, ValueId result) const {
  return !formed_.contains(buffer) || !shared_.is_read_often_[result];
}

absl::Status DeviceLowering::AddRedistribution(const NodeTurn& turn, int phase) {
  const NodeId id = turn.node;
  const Node& node = graph_.node(id);
  const ValueId operand = node.operands[0];
  const ValueId result = node.results[0];
  const std::string& name = graph_.value(result).name;
  const Communication& communication = *shared_.communications_.at(id);
  const uint32_t target = shared_.collectives_.at(id);
  const CollectiveSpec& spec = shared_.SpecOn(target, mesh_device_);
  const uint32_t group = shared_.groups_[target].group_of[mesh_device_];
  ASSIGN_OR_RETURN(TilePlan in, Tile(operand));
  ASSIGN_OR_RETURN(TilePlan out, Tile(result));
  const bool per_microbatch = program_.phase(phase).plan.per_microbatch;
  ASSIGN_OR_RETURN(int source, BufferForReading(operand, phase));

  // A sum is reduced in place when nobody else reads its terms.
  const bool in_place =
      spec.kind == CollectiveKind::kAllReduce && shared_.users_[operand].size() == 1 &&
      shared_.RootOf(operand) == operand && !shared_.PhaseOf(operand).is_leaf &&
      !shared_.IsState(operand) && shared_.PhaseOf(operand).stage == stage_ &&
      program_.buffer(source).per_microbatch == per_microbatch && MayStayIn(source, result);
  const int rank = static_cast<int>(
      std::find(spec.devices.begin(), spec.devices.end(), mesh_device_) - spec.devices.begin());
  auto flat = [&](const TilePlan& like, int64_t elements) {
    TilePlan tile;
    tile.dtype = like.dtype;
    tile.shape = {elements};
    tile.global = {elements};
    tile.offset = {0};
    tile.microbatch_stride = {0};
    return tile;
  };
  auto part_attributes = [](int dim, const std::vector<int64_t>& sizes) {
    return graph::Attributes{{"axis", dim}, {"sizes", graph::AttrValue::Ints(sizes)}};
  };
  auto new_flat = [&](const TilePlan& tile) {
    Buffer buffer;
    buffer.bytes = tile.num_bytes();
    buffer.per_microbatch = per_microbatch;
    return program_.AddBuffer(buffer);
  };
  int input = source;
  if (communication.pack_dim) {
    const TilePlan parts = flat(in, InputCount(spec, rank));
    KernelPlan pack = {"pack",
                       part_attributes(*communication.pack_dim, communication.pack_sizes[group]),
                       {in},
                       {parts}};
    input = new_flat(parts);
    AddActor(phase, ActorKind::kKernel, absl::StrCat(name, ".pack"), pack,
             {shared_.ShardingIndex(operand), kNone}, kNone, {source}, {input});
  }
  int output = in_place ? source : -1;
  if (const ValueId state = StateWrittenBy(result); state != kNoValue) {
    output = buffer_.at(state);
  }
  if (output < 0) {
    ASSIGN_OR_RETURN(output, NewBuffer(result, per_microbatch));
  }
  buffer_[result] = output;
  int after = -1;
  if (turn.is_gated) {
    const std::vector<DraftActor>& actors = program_.phase(phase).actors;
    const auto last = std::find_if(actors.rbegin(), actors.rend(),
                                   [](const DraftActor& actor) { return !actor.is_async(); });
    if (last != actors.rend()) after = last->id;
  }
  if (!communication.unpack_dim) {
    AddActor(phase, ActorKind::kCollective, name, {}, {}, target, {input}, {output}, after);
    return absl::OkStatus();
  }
  const TilePlan parts = flat(out, OutputCount(spec, rank));
  const int gathered = new_flat(parts);
  AddActor(phase, ActorKind::kCollective, name, {}, {}, target, {input}, {gathered}, after);
  unpacks_[id] = {{"unpack",
                   part_attributes(*communication.unpack_dim, communication.unpack_sizes[group]),
                   {parts},
                   {out}},
                  phase,
                  gathered,
                  output};
  if (turn.part == NodeTurn::Part::kAll) FinishGather(id);
  return absl::OkStatus();
}

// What a gather that has started leaves to do.
void DeviceLowering::FinishGather(NodeId id) {
  const auto it = unpacks_.find(id);
  if (it == unpacks_.end()) return;
  const std::string& name = graph_.value(graph_.node(id).results[0]).name;
  Unpack& unpack = it->second;
  AddActor(unpack.phase, ActorKind::kKernel, absl::StrCat(name, ".unpack"),
           std::move(unpack.kernel), {kNone, shared_.ShardingIndex(graph_.node(id).results[0])},
           kNone, {unpack.parts}, {unpack.output});
}

// Whether the kernel may write its first result over this operand: nobody else reads it, and it
// was made in the same phase.
bool DeviceLowering::MayOverwrite(const Node& node, int input, const KernelPlan& spec,
                                  int phase) const {
  const ValueId operand = node.operands[input];
  if (shared_.users_[operand].size() != 1 || shared_.RootOf(operand) != operand) return false;
  if (std::count(node.operands.begin(), node.operands.end(), operand) != 1) return false;
  if (shared_.PhaseOf(operand).is_leaf || shared_.IsState(operand)) return false;
  if (shared_.PhaseOf(operand).stage != stage_) return false;
  const auto made = value_phase_.find(operand);
  if (made == value_phase_.end() || made->second != phase) return false;
  const bool is_returned =
      std::any_of(graph_.returns().begin(), graph_.returns().end(),
                  [&](const graph::Return& ret) { return ret.value == operand; });
  if (is_returned || FormsWhole(shared_.ProducerOf(operand).op->name())) return false;
  return spec.inputs[input].num_bytes() == spec.outputs[0].num_bytes() &&
         shared_.options_.kernels.can_alias(spec, input);
}

absl::Status DeviceLowering::AddKernel(NodeId id, int phase) {
  const Node& node = graph_.node(id);
  KernelPlan spec;
  spec.op = std::string(node.op->name());
  spec.attributes = node.attributes;
  std::vector<int> inputs;
  for (ValueId operand : node.operands) {
    ASSIGN_OR_RETURN(TilePlan tile, Tile(operand));
    ASSIGN_OR_RETURN(int buffer, BufferForReading(operand, phase));
    spec.inputs.push_back(std::move(tile));
    inputs.push_back(buffer);
  }
  std::vector<int> outputs;
  for (ValueId result : node.results) {
    ASSIGN_OR_RETURN(TilePlan tile, Tile(result));
    spec.outputs.push_back(std::move(tile));
  }
  spec.accumulate = spec.op == "accumulate";

  if (spec.op == "local_slice") {
    ASSIGN_OR_RETURN(const bool is_view, AddPartOfState(id, phase));
    if (is_view) return absl::OkStatus();
    // Into a sum: all terms but the first are neutral.
    const Sharding from = ClosedSharding(mesh_, graph_.value(node.operands[0]));
    const Sharding to = ClosedSharding(mesh_, graph_.value(node.results[0]));
    for (const graph::PartialSpec& partial : to.partials) {
      if (from.partials == to.partials) break;
      const bool is_idempotent = partial.reduction == graph::Reduction::kMax ||
                                 partial.reduction == graph::Reduction::kMin;
      if (is_idempotent || IsFirstOf(mesh_, from, partial, mesh_device_)) continue;
      const double neutral = partial.reduction == graph::Reduction::kProd ? 1.0 : 0.0;
      spec.op = "constant";
      spec.attributes = {{"value", neutral}};
      spec.inputs.clear();
      inputs.clear();
      break;
    }
  }

  const std::vector<int> updated = node.op->updated_operands();
  for (size_t r = 0; r < node.results.size(); ++r) {
    const ValueId result = node.results[r];
    value_phase_[result] = phase;
    // A running sum that this kernel keeps itself.
    const auto whole = accumulates_into_.find(result);
    if (whole != accumulates_into_.end()) {
      // (The whole may lie in a bucket.)
      ASSIGN_OR_RETURN(int buffer, NewBuffer(whole->second, false));
      spec.accumulate = true;
      formed_.insert(buffer);
      outputs.push_back(buffer);
      buffer_[result] = buffer;
      buffer_[whole->second] = buffer;
      continue;
    }
    int buffer = -1;
    if (const ValueId state = StateWrittenBy(result); state != kNoValue) {
      buffer = buffer_.at(state);
    }
    if (buffer < 0 && r == 0) {
      for (size_t i = 0; i < node.operands.size() && buffer < 0; ++i) {
        if (spec.op == "constant" || spec.accumulate || bucket_part_.contains(result)) break;
        if (MayOverwrite(node, static_cast<int>(i), spec, phase) && MayStayIn(inputs[i], result)) {
          buffer = inputs[i];
        }
      }
    }
    if (buffer < 0) {
      const bool is_whole = FormsWhole(spec.op);
      ASSIGN_OR_RETURN(buffer,
                       NewBuffer(result, shared_.phases_[id].key.per_microbatch && !is_whole));
      if (is_whole) formed_.insert(buffer);
    }
    outputs.push_back(buffer);
    buffer_[result] = buffer;
  }
  std::vector<uint32_t> shardings;
  if (!inputs.empty()) {
    for (ValueId operand : node.operands) shardings.push_back(shared_.ShardingIndex(operand));
  }
  for (ValueId made : node.results) shardings.push_back(shared_.ShardingIndex(made));
  const std::string& name = graph_.value(node.results[0]).name;
  AddActor(phase, ActorKind::kKernel, name, std::move(spec), std::move(shardings), kNone,
           std::move(inputs), std::move(outputs));
  return absl::OkStatus();
}

// Whether nothing in the per-step lane reads the state after the node `writer` of this stage has
// written it.
bool DeviceLowering::IsReadBefore(ValueId state, NodeId writer) const {
  const NodePhase& phase = shared_.phases_[writer];
  for (ValueId value : shared_.values_of_root_[state]) {
    for (NodeId user : shared_.users_[value]) {
      const NodePhase& reading = shared_.phases_[user];
      if (!reading.is_live || user == writer) continue;
      if (graph_.node(user).op->name() == "assign") {
        // Copied to another state, after everything else; or this very assign.
        if (shared_.RootOf(graph_.node(user).operands[1]) == state) return false;
        continue;
      }
      if (reading.stage != stage_) continue;  // a send: it holds the writer's phase back
      if (reading.key.lane() == Lane::kPerStep &&
          (reading.key > phase.key || (reading.key == phase.key && user > writer))) {
        return false;
      }
    }
  }
  return true;
}

// Whether the node that makes the new value may write it where the state is: its kernel can, or it
// gathers the parts; it runs after the step, and nothing reads the old state later.
bool DeviceLowering::WritesInPlace(const Assignment& assignment) const {
  const NodeId producer_id = graph_.value(assignment.value).producer;
  const Node& producer = graph_.node(producer_id);
  const NodePhase& phase = shared_.phases_[producer_id];
  if (phase.stage != stage_ || phase.key.per_microbatch || phase.key.level == 0) return false;
  if (CollectiveOf(producer.op->name()) != CollectiveKind::kAllGather) {
    const std::vector<int> updated = producer.op->updated_operands();
    const size_t result =
        std::find(producer.results.begin(), producer.results.end(), assignment.value) -
        producer.results.begin();
    if (result >= updated.size() || producer.operands[updated[result]] != assignment.state) {
      return false;
    }
  }
  // Two assigns of one new value cannot both be in place.
  return IsReadBefore(assignment.state, producer_id) &&
         shared_.assignments_of_.at(assignment.value).size() == 1;
}

// The state where the value is written when it is made, if there is one.
ValueId DeviceLowering::StateWrittenBy(ValueId value) const {
  const auto it = shared_.assignments_of_.find(value);
  if (it == shared_.assignments_of_.end() || !WritesInPlace(it->second[0])) return kNoValue;
  return it->second[0].state;
}

// Lets an update work on its part of a parameter where that lies, if its bytes are contiguous: the
// node slices the parameter for one update, whose result is gathered into the parameter again.
absl::StatusOr<bool> DeviceLowering::AddPartOfState(NodeId id, int phase) {
  const Node& slice = graph_.node(id);
  const ValueId state = slice.operands[0];
  const ValueId part = slice.results[0];
  if (!shared_.IsState(state) || shared_.users_[part].size() != 1) return false;
  if (std::any_of(graph_.returns().begin(), graph_.returns().end(),
                  [part](const graph::Return& ret) { return ret.value == part; })) {
    return false;
  }
  const NodeId update = shared_.users_[part][0];
  const std::vector<int> updated = graph_.node(update).op->updated_operands();
  if (updated.empty() || graph_.node(update).operands[updated[0]] != part ||
      shared_.phases_[update].key != shared_.phases_[id].key || !IsReadBefore(state, update)) {
    return false;
  }
  const std::vector<NodeId>& users = shared_.users_[graph_.node(update).results[0]];
  const bool is_put_back = users.size() == 1 && !graph_.node(users[0]).results.empty() &&
                           StateWrittenBy(graph_.node(users[0]).results[0]) == state;
  if (!is_put_back) return false;
  ASSIGN_OR_RETURN(const TilePlan whole_tile, Tile(state));
  ASSIGN_OR_RETURN(const TilePlan tile, Tile(part));
  const std::optional<uint64_t> offset = ContiguousOffset(whole_tile, tile);
  if (!offset.has_value()) return false;
  buffer_[part] = program_.AddView(buffer_.at(state), shared_.ViewIndex(state, part), *offset,
                                   tile.num_bytes());
  value_phase_[part] = phase;
  return true;
}

absl::Status DeviceLowering::AddNode(const NodeTurn& turn) {
  const NodeId id = turn.node;
  const Node& node = graph_.node(id);
  const NodePhase& node_phase = shared_.phases_[id];
  const int phase = PhaseIndex(node_phase.key);
  const ValueId result = node.results[0];
  if (shared_.RootOf(result) != result) {
    value_phase_[result] = phase;
    return AddSends(result);
  }
  if (shared_.bucket_of_.contains(id)) {
    const auto scattered = scattered_part_.find(result);
    buffer_[result] =
        scattered != scattered_part_.end() ? scattered->second : bucket_part_.at(node.operands[0]);
  } else if (!fused_.contains(id)) {
    if (shared_.communications_.contains(id)) {
      RETURN_IF_ERROR(AddRedistribution(turn, phase));
      value_phase_[result] = phase;
    } else {
      RETURN_IF_ERROR(AddKernel(id, phase));
    }
  }
  for (ValueId made : node.results) RETURN_IF_ERROR(AddSends(made));
  return absl::OkStatus();
}

absl::Status DeviceLowering::AddFetch(size_t index) {
  const ValueId value = graph_.returns()[index].value;
  const NodePhase& source = shared_.PhaseOf(value);
  if (source.stage != stage_) return absl::OkStatus();
  // Of the devices that hold the same tile the first one writes it.
  const Sharding sharding = ClosedSharding(mesh_, graph_.value(value));
  if (!IsFirstWithTile(mesh_, sharding, mesh_device_)) return absl::OkStatus();
  const int phase = PhaseIndex(shared_.FetchKey(value));
  ASSIGN_OR_RETURN(TilePlan tile, Tile(value));
  ASSIGN_OR_RETURN(int buffer, BufferForReading(value, phase));
  KernelPlan spec;
  spec.op = "fetch";
  spec.inputs = {tile};
  AddActor(phase, ActorKind::kFetch, absl::StrCat("return ", graph_.value(value).name), spec,
           {shared_.ShardingIndex(value)}, static_cast<uint32_t>(index), {buffer}, {});
  shared_.plan_.fetches[index].num_actors +=
      shared_.class_sizes_[shared_.folded_.class_of[mesh_device_]] *
      (shared_.IsMadeOften(value) ? shared_.plan_.num_microbatches : 1);
  return absl::OkStatus();
}

absl::Status DeviceLowering::AddAssignments() {
  struct Copy {
    ValueId state;
    int source;
    int phase;
  };
  std::vector<Copy> copies;
  for (const Assignment& assignment : shared_.assignments_) {
    if (shared_.phases_[assignment.assign].stage != stage_ || WritesInPlace(assignment)) continue;
    const int phase = PhaseIndex(assign_key_);
    ASSIGN_OR_RETURN(int source, BufferForReading(assignment.value, phase));
    ASSIGN_OR_RETURN(TilePlan tile, Tile(assignment.state));
    const KernelPlan copy = {"copy", {}, {tile}, {tile}};
    const std::vector<uint32_t> shardings(2, shared_.ShardingIndex(assignment.state));
    const std::string& name = graph_.value(assignment.state).name;
    if (program_.buffer(source).state >= 0) {
      // The new value is another state, which may be written too: take it before any is.
      ASSIGN_OR_RETURN(const int taken, NewBuffer(assignment.state, false));
      AddActor(phase, ActorKind::kKernel, absl::StrCat(name, ".next"), copy, shardings, kNone,
               {source}, {taken});
      source = taken;
    }
    copies.push_back({assignment.state, source, phase});
  }
  for (const Copy& copy : copies) {
    ASSIGN_OR_RETURN(TilePlan tile, Tile(copy.state));
    AddActor(copy.phase, ActorKind::kKernel, absl::StrCat("assign ", graph_.value(copy.state).name),
             {"copy", {}, {tile}, {tile}},
             std::vector<uint32_t>(2, shared_.ShardingIndex(copy.state)), kNone, {copy.source},
             {buffer_.at(copy.state)});
  }
  return absl::OkStatus();
}

absl::StatusOr<DevicePlan> DeviceLowering::Run() {
  // The phases of the stage, the same on all its devices.
  std::set<PhaseKey> keys = shared_.keys_[stage_];
  // Copies into states come after everything that reads the old value at its place in the order.
  bool has_copies = false;
  assign_key_ = kFirstUpdateKey;
  for (const Assignment& assignment : shared_.assignments_) {
    if (shared_.phases_[assignment.assign].stage != stage_) continue;
    has_copies = has_copies || !WritesInPlace(assignment);
    assign_key_ = std::max(assign_key_, shared_.phases_[assignment.assign].key);
  }
  for (const PhaseKey& key : keys) {
    if (key.lane() != Lane::kPerStep) continue;
    assign_key_ =
        std::max(assign_key_, key.per_microbatch ? PhaseKey{key.level + 1, false, 0} : key);
  }
  if (has_copies) keys.insert(assign_key_);
  for (const PhaseKey& key : keys) {
    PhasePlan plan;
    plan.kind = key.kind();
    plan.lane = key.lane();
    plan.per_microbatch = key.per_microbatch;
    plan.name = std::string(Name(plan.kind));
    if (key.level > 1 || (key.level == 1 && key.per_microbatch)) {
      absl::StrAppend(&plan.name, " level ", key.level);
    }
    if (!key.per_microbatch && key.order > 0) absl::StrAppend(&plan.name, " ", key.order);
    if (plan.lane == Lane::kCompute) plan.chunk = static_cast<uint32_t>(key.chunk);
    if (key.chunk > 0) absl::StrAppend(&plan.name, " of chunk ", key.chunk);
    phase_index_[key] = program_.AddPhase(std::move(plan));
  }

  RETURN_IF_ERROR(AddStates());
  RETURN_IF_ERROR(AddBuckets());
  for (const auto& [value, stages] : shared_.remote_readers_) {
    if (stages.contains(stage_)) RETURN_IF_ERROR(AddReceive(value));
  }
  for (const auto& [value, index] : shared_.state_index_) {
    if (shared_.PhaseOf(value).stage == stage_) RETURN_IF_ERROR(AddSends(value));
  }
  // Sums over micro-batches that the kernel which makes the terms can keep.
  for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
    const Node& node = graph_.node(id);
    const NodePhase& phase = shared_.phases_[id];
    if (!phase.is_live || phase.stage != stage_ || node.op->name() != "accumulate") continue;
    const ValueId term = node.operands[0];
    const Node& producer = shared_.ProducerOf(term);
    const NodePhase& producing = shared_.PhaseOf(term);
    if (producing.stage != stage_ || producing.key != phase.key || producing.is_leaf ||
        producer.results.size() != 1 || shared_.users_[term].size() != 1 ||
        shared_.RootOf(term) != term || node.attributes.GetString("reduction", "sum") != "sum" ||
        !shared_.options_.kernels.supports_accumulate(producer.op->name())) {
      continue;
    }
    fused_.insert(id);
    accumulates_into_[term] = node.results[0];
  }
  for (const NodeTurn& turn : shared_.turns_) {
    const NodePhase& phase = shared_.phases_[turn.node];
    const Node& node = graph_.node(turn.node);
    if (!phase.is_live || phase.is_leaf || phase.stage != stage_ || node.op->has_declared_type() ||
        node.op->name() == "assign") {
      continue;
    }
    if (turn.part == NodeTurn::Part::kFinish) {
      FinishGather(turn.node);
    } else {
      RETURN_IF_ERROR(AddNode(turn));
    }
  }
  for (size_t i = 0; i < graph_.returns().size(); ++i) RETURN_IF_ERROR(AddFetch(i));
  RETURN_IF_ERROR(AddAssignments());

  program_.OrderCommunication(shared_.options_.bucket_bytes);

  DeviceProgram::Credits credits;
  credits.microbatches = static_cast<int>(shared_.plan_.num_microbatches);
  credits.stage = stage_;
  credits.times = shared_.times_.has_value() ? &*shared_.times_ : nullptr;
  credits.activations = shared_.activations_;
  std::vector<uint32_t> state_registers(shared_.plan_.states.size(), kNone);
  DevicePlan device =
      program_.Finish(credits, &state_registers, &shared_.folded_.view_operands.emplace_back());
  device.stage = static_cast<uint32_t>(stage_);
  AddOrderChannels(shared_.folded_.kernels, &device);
  for (const auto& [value, index] : shared_.state_index_) {
    if (shared_.PhaseOf(value).stage != stage_) continue;
    shared_.folded_.states[index].registers.push_back(state_registers[index]);
  }
  return device;
}

}  // namespace

absl::StatusOr<FoldedPlan> LowerToPlan(const graph::OpRegistry& ops, const Graph& graph,
                                       const LowerOptions& options) {
  if (options.policy == nullptr) return absl::InvalidArgumentError("no scheduling policy is given");
  Graph with_mesh = graph;
  if (with_mesh.meshes().empty()) with_mesh.mutable_meshes().push_back({"m", {}});
  ASSIGN_OR_RETURN(Graph prepared, AddRateCopies(ops, with_mesh));
  return Lowering(ops, std::move(prepared), options).Run();
}

}  // namespace penstock::planner
