#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "planner/cost/collective_choice.h"
#include "planner/lower/lowering_internal.h"
#include "planner/plan/coordinates.h"
#include "planner/plan/memory.h"
#include "planner/sharding/execution_sharding.h"

namespace penstock::planner::internal {

namespace {

// Whether what one bucket moves could be moved by the other.
bool AreAlike(const Bucket& a, const Bucket& b) {
  return a.kind == b.kind && a.axes == b.axes && a.stage == b.stage && a.dtype == b.dtype &&
         a.key == b.key;
}

}  // namespace

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
      plan_.num_channels += NumDevices(stage);
      transfers_[{value, stage}] = static_cast<uint32_t>(folded_.transfers.size());
      folded_.transfers.push_back(std::move(transfer));
      message_of_.push_back(nullptr);
    }
  }
  return absl::OkStatus();
}

// A transfer for each message between meshes.
absl::Status Lowering::NumberReceptions() {
  for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
    const Node& node = graph_.node(id);
    if (!phases_[id].is_live || node.op->role() != graph::OpRole::kReceive) continue;
    const ValueId source = node.operands[0];
    const ValueId result = node.results[0];
    Reception& reception = receptions_[id];
    ASSIGN_OR_RETURN(reception.messages,
                     PlanCrossMesh(graph_.value(source).type, MeshOf(source), ShardingOf(source),
                                   MeshOf(result), ShardingOf(result)));
    reception.first_transfer = static_cast<uint32_t>(folded_.transfers.size());
    for (const CrossMeshMessage& message : reception.messages) {
      FoldedTransfer& transfer = folded_.transfers.emplace_back();
      transfer.source_stage = static_cast<uint32_t>(PhaseOf(source).stage);
      transfer.destination_stage = static_cast<uint32_t>(phases_[id].stage);
      transfer.per_microbatch = IsMadeOften(source);
      transfer.first_channel = plan_.num_channels++;
      message_of_.push_back(&message);
      ASSIGN_OR_RETURN(const TilePlan tile, TileOf(MeshOf(source), ShardingOf(source),
                                                   graph_.value(source).type, message.source));
      if (ContiguousOffset(tile, message.part).has_value()) continue;
      keys_[PhaseOf(source).stage].insert(FetchKey(source));  // copies the part
    }
    receptions_of_[source].push_back(id);
  }
  return absl::OkStatus();
}

// Whether all of a step's backward passes complete the value, in place where it may lie in any
// buffer, and one node alone reads it.
bool Lowering::IsCompletedByBackward(ValueId value, int stage) const {
  const NodePhase& phase = PhaseOf(value);
  const graph::OpRole role = ProducerOf(value).op->role();
  const bool is_returned =
      std::any_of(graph_.returns().begin(), graph_.returns().end(),
                  [&](const graph::Return& ret) { return ret.value == value; });
  return users_[value].size() == 1 && !is_returned && RootOf(value) == value && !phase.is_leaf &&
         !IsState(value) && phase.stage == stage && !CollectiveOf(role) &&
         role != graph::OpRole::kJoinSubBatches && phase.key.per_microbatch &&
         phase.key.level == 0 && phase.key.order != 0 &&
         (num_microbatches() == 1 || !IsMadeOften(value));
}

// Sums of micro-batches are rounded once a step, where gradients are added up in 16 bits.
bool Lowering::IsRoundedInBucket(ValueId term) const {
  const Node& node = ProducerOf(term);
  const NodePhase& phase = PhaseOf(term);
  return node.op->name() == "cast" && phase.is_live && !phase.is_leaf &&
         !phase.key.per_microbatch && users_[term].size() == 1 && RootOf(term) == term &&
         IsCompletedByBackward(node.operands[0], phase.stage);
}

// A sum over devices of a gradient that is complete when its term is made, that only the update
// reads, and whose term nobody else reads. One that is scattered as soon as it is made needs no
// memory beyond its phase, so it stays there.
bool Lowering::CanBucket(NodeId id) const {
  const Node& node = graph_.node(id);
  const std::optional<CollectiveKind> kind = CollectiveOf(node.op->role());
  if (!phases_[id].is_live ||
      (kind != CollectiveKind::kAllReduce &&
       (kind != CollectiveKind::kReduceScatter || num_microbatches() == 1))) {
    return false;
  }
  const ValueId term = node.operands[0];
  const ValueId result = node.results[0];
  const graph::Value& value = graph_.value(term);
  if (PhaseOf(term).stage != phases_[id].stage || value.sharding->partials.size() != 1 ||
      value.sharding->partials[0].reduction != graph::Reduction::kSum ||
      graph_.value(result).sharding->is_partial() ||
      !(IsCompletedByBackward(term, phases_[id].stage) || IsRoundedInBucket(term))) {
    return false;
  }
  for (const graph::Return& ret : graph_.returns()) {
    if (ret.value == result) return false;
  }
  return std::all_of(users_[result].begin(), users_[result].end(), [&](NodeId user) {
    return !phases_[user].is_live || !phases_[user].key.per_microbatch;
  });
}

// Counts of the buffer in which the terms of a bucket lie side by side.
absl::Status Lowering::SizeBuffer(const Bucket& bucket, std::vector<CollectiveSpec>* specs) const {
  for (CollectiveSpec& spec : *specs) {
    int64_t elements = 0;
    for (const NodeId id : bucket.nodes) {
      const ValueId term = graph_.node(id).operands[0];
      ASSIGN_OR_RETURN(const TilePlan tile, TileOf(MeshOf(term), ShardingOf(term),
                                                   graph_.value(term).type, spec.devices[0]));
      elements += static_cast<int64_t>(AlignUp(tile.num_bytes()) / ByteSize(bucket.dtype));
    }
    const int n = static_cast<int>(spec.devices.size());
    for (int r = 0; r < n; ++r) spec.counts[r] = PartOf(elements, r, n).size();
  }
  return absl::OkStatus();
}

absl::Status Lowering::FormBuckets() {
  if (options_.buckets.bytes <= 0) return absl::OkStatus();
  for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
    if (!CanBucket(id)) continue;
    const Node& node = graph_.node(id);
    const graph::Value& term = graph_.value(node.operands[0]);
    const CollectiveKind kind = *CollectiveOf(node.op->role());
    ASSIGN_OR_RETURN(const Communication* communication, CommunicationOf(id, kind));
    if (communication->pack_dim.has_value()) continue;
    ASSIGN_OR_RETURN(const TilePlan tile,
                     TileOf(MeshOf(node.operands[0]), ShardingOf(node.operands[0]), term.type, 0));
    const auto bytes = static_cast<int64_t>(tile.num_bytes());
    Bucket next;
    next.kind = kind;
    next.stage = phases_[id].stage;
    next.key = phases_[id].key;
    next.dtype = term.type.dtype;
    next.axes = communication->axes;
    int bucket = -1;
    for (int b = static_cast<int>(buckets_.size()) - 1; b >= 0 && bucket < 0; --b) {
      const Bucket& other = buckets_[b];
      if (!AreAlike(other, next)) continue;
      if (other.bytes + bytes > other.max_bytes) break;
      bucket = b;
    }
    if (bucket < 0) {
      bucket = static_cast<int>(buckets_.size());
      next.max_bytes = options_.buckets.Over(kind, communication->axes);
      next.groups = communication->groups;
      buckets_.push_back(std::move(next));
    }
    buckets_[bucket].nodes.push_back(id);
    buckets_[bucket].bytes += bytes;
    bucket_of_[id] = bucket;
    const ValueId reduced = node.operands[0];
    if (IsRoundedInBucket(reduced)) rounded_in_bucket_.insert(reduced);
  }
  // What is scattered last has a bucket to itself, since nothing hides it.
  std::vector<Bucket> last_of_each;
  for (size_t b = buckets_.size(); b-- > 0;) {
    Bucket& bucket = buckets_[b];
    const auto is_alike = [&](const Bucket& other) { return AreAlike(other, bucket); };
    if (bucket.kind != CollectiveKind::kReduceScatter ||
        std::any_of(last_of_each.begin(), last_of_each.end(), is_alike)) {
      continue;
    }
    Bucket& last = last_of_each.emplace_back(bucket);
    last.nodes.erase(last.nodes.begin(), last.nodes.end() - 1);
    if (bucket.nodes.size() > 1) bucket.nodes.pop_back();
  }
  for (Bucket& last : last_of_each) {
    const int bucket = bucket_of_.at(last.nodes[0]);
    if (buckets_[bucket].nodes.back() == last.nodes[0]) continue;  // it is alone
    bucket_of_[last.nodes[0]] = static_cast<int>(buckets_.size());
    buckets_.push_back(std::move(last));
  }
  for (const Bucket& bucket : buckets_) {
    std::vector<CollectiveSpec> specs;
    if (bucket.kind == CollectiveKind::kReduceScatter) {
      ASSIGN_OR_RETURN(specs, JoinCollectives(bucket.kind, bucket.nodes));
    } else {
      specs = bucket.groups;
      RETURN_IF_ERROR(SizeBuffer(bucket, &specs));
    }
    bucket_collectives_.push_back(
        AddCollective(bucket.stage, num_microbatches() == 1, std::move(specs), bucket.axes));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CollectiveSpec>> Lowering::JoinCollectives(
    CollectiveKind kind, const std::vector<NodeId>& nodes) {
  ASSIGN_OR_RETURN(const Communication* first, CommunicationOf(nodes[0], kind));
  std::vector<CollectiveSpec> specs = first->groups;
  if (nodes.size() == 1) return specs;
  for (CollectiveSpec& spec : specs) spec.counts.assign(spec.counts.size(), 0);
  for (const NodeId id : nodes) {
    ASSIGN_OR_RETURN(const Communication* communication, CommunicationOf(id, kind));
    for (size_t g = 0; g < specs.size(); ++g) {
      const CollectiveSpec& part = communication->groups[g];
      if (part.devices != specs[g].devices || part.reduce != specs[g].reduce ||
          part.dtype != specs[g].dtype) {
        return absl::InternalError(absl::StrCat(
            "%", graph_.value(graph_.node(id).results[0]).name, " cannot be moved together with %",
            graph_.value(graph_.node(nodes[0]).results[0]).name));
      }
      specs[g].tensors.push_back(part.counts);
      for (size_t r = 0; r < part.counts.size(); ++r) specs[g].counts[r] += part.counts[r];
    }
  }
  return specs;
}

// In the order in which the lanes of every device come to them.
absl::Status Lowering::NumberCollectives() {
  std::vector<NodeId> by_phase;
  std::map<NodeId, int> phase_bucket_of;
  std::map<int, std::vector<NodeId>> phase_buckets;
  for (const ScheduledNode& scheduled : node_order_) {
    if (scheduled.part == ScheduledNode::Part::kFinish) continue;
    by_phase.push_back(scheduled.node);
    if (scheduled.bucket < 0) continue;
    phase_bucket_of[scheduled.node] = scheduled.bucket;
    std::vector<NodeId>& nodes = phase_buckets[scheduled.bucket];
    tensor_of_[scheduled.node] = nodes.size();
    nodes.push_back(scheduled.node);
  }
  std::stable_sort(by_phase.begin(), by_phase.end(),
                   [&](NodeId a, NodeId b) { return phases_[a].key < phases_[b].key; });
  for (NodeId id : by_phase) {
    const Node& node = graph_.node(id);
    if (!phases_[id].is_live || bucket_of_.contains(id)) continue;
    const std::optional<CollectiveKind> kind = CollectiveOf(node.op->role());
    if (!kind) continue;
    ASSIGN_OR_RETURN(const Communication* communication, CommunicationOf(id, *kind));
    communications_[id] = communication;
    std::vector<NodeId> nodes = {id};
    if (const auto bucket = phase_bucket_of.find(id); bucket != phase_bucket_of.end()) {
      nodes = phase_buckets[bucket->second];
      if (id != nodes[0]) {
        collectives_[id] = collectives_.at(nodes[0]);
        continue;
      }
    }
    ASSIGN_OR_RETURN(std::vector<CollectiveSpec> specs, JoinCollectives(*kind, nodes));
    RETURN_IF_ERROR(CheckCollectiveOf(id, specs));
    const auto num_groups = static_cast<uint32_t>(specs.size());
    const uint32_t collective = AddCollective(phases_[id].stage, phases_[id].key.per_microbatch,
                                              std::move(specs), communication->axes);
    folded_.collectives[collective].first_channel = plan_.num_channels;
    plan_.num_channels += num_groups;
    collectives_[id] = collective;
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

// Groups that lie opposite each other run their phases of a stage at different times.
absl::Status Lowering::CheckCollectiveOf(NodeId id,
                                         const std::vector<CollectiveSpec>& specs) const {
  if (!is_bidirectional() || phases_[id].key.lane() != Lane::kCompute) return absl::OkStatus();
  const int stage = phases_[id].stage;
  const uint32_t of_group = NumDevices(stage) / 2;
  for (const CollectiveSpec& spec : specs) {
    const bool joins_directions = std::any_of(
        spec.devices.begin(), spec.devices.end(),
        [&](uint32_t device) { return device / of_group != spec.devices[0] / of_group; });
    if (!joins_directions) continue;
    return absl::UnimplementedError(absl::StrCat(
        "%", graph_.value(graph_.node(id).results[0]).name, " of stage ", stage,
        " joins micro-batches of both directions in a forward or backward pass; policy '",
        std::string(options_.policy->name()), "' runs them at different times"));
  }
  return absl::OkStatus();
}

absl::StatusOr<const Communication*> Lowering::CommunicationOf(NodeId id, CollectiveKind kind) {
  const Node& node = graph_.node(id);
  const graph::Value& result = graph_.value(node.results[0]);
  const Mesh& mesh = graph_.meshes()[node.mesh];
  const Sharding from = ShardingOf(node.operands[0]);
  const Sharding to = ShardingOf(node.results[0]);
  std::string key =
      absl::StrCat(std::string(Name(kind)), " ", penstock::ToString(result.type), " ", node.mesh,
                   " ", graph::ToString(mesh, from), " ", graph::ToString(mesh, to));
  const std::optional<TileRoll> roll = TileRollOf(graph_, node);
  if (roll.has_value()) absl::StrAppend(&key, " ", roll->dim, " ", roll->by, "/", roll->parts);
  std::unique_ptr<const Communication>& known = communication_by_key_[key];
  if (known == nullptr) {
    ASSIGN_OR_RETURN(Communication communication,
                     PlanCommunication(mesh, kind, result.type, from, to, roll));
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
  groups.group_of.resize(NumDevices(stage));
  bool is_uniform = true;
  for (uint32_t g = 0; g < specs.size(); ++g) {
    CollectiveSpec& spec = specs[g];
    ChooseCollective(HostsOf(stage, spec.devices), options_.collectives, &spec);
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
    const uint32_t device = DeviceOf(stage, mesh_device);
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

}  // namespace penstock::planner::internal
