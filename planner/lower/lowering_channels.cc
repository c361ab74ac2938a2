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
  const Node& producer = ProducerOf(term);
  const graph::Value& value = graph_.value(term);
  if (users_[term].size() != 1 || RootOf(term) != term || PhaseOf(term).is_leaf || IsState(term) ||
      PhaseOf(term).stage != phases_[id].stage || CollectiveOf(producer.op->role()) ||
      value.sharding->partials.size() != 1 ||
      value.sharding->partials[0].reduction != graph::Reduction::kSum ||
      graph_.value(result).sharding->is_partial()) {
    return false;
  }
  const PhaseKey& made = PhaseOf(term).key;
  if (!made.per_microbatch || made.level != 0 || made.order == 0) return false;
  if (IsMadeOften(term) && num_microbatches() > 1) return false;
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
    const CollectiveKind kind = *CollectiveOf(node.op->role());
    ASSIGN_OR_RETURN(const Communication* communication, CommunicationOf(id, kind));
    if (communication->pack_dim.has_value()) continue;
    ASSIGN_OR_RETURN(const TilePlan tile,
                     TileOf(MeshOf(node.operands[0]), ShardingOf(node.operands[0]), term.type, 0));
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
      if (other.bytes + bytes > other.max_bytes) break;
      bucket = b;
    }
    if (bucket < 0) {
      bucket = static_cast<int>(buckets_.size());
      buckets_.push_back({kind,
                          {},
                          phases_[id].stage,
                          phases_[id].key,
                          0,
                          options_.bucket_bytes_over
                              ? options_.bucket_bytes_over(communication->axes)
                              : options_.bucket_bytes,
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
        ASSIGN_OR_RETURN(const TilePlan tile, TileOf(MeshOf(graph_.node(id).operands[0]),
                                                     ShardingOf(graph_.node(id).operands[0]),
                                                     term.type, spec.devices[0]));
        elements += static_cast<int64_t>(AlignUp(tile.num_bytes()) / ByteSize(bucket.dtype));
      }
      const int n = static_cast<int>(spec.devices.size());
      for (int r = 0; r < n && bucket.kind == CollectiveKind::kAllReduce; ++r) {
        spec.counts[r] = PartOf(elements, r, n).size();
      }
    }
    bucket_collectives_.push_back(
        AddCollective(bucket.stage, num_microbatches() == 1, std::move(specs), bucket.axes));
  }
  return absl::OkStatus();
}

// In the order in which the lanes of every device come to them.
absl::Status Lowering::NumberCollectives() {
  std::vector<NodeId> by_phase;
  for (const ScheduledNode& scheduled : node_order_) {
    if (scheduled.part != ScheduledNode::Part::kFinish) by_phase.push_back(scheduled.node);
  }
  std::stable_sort(by_phase.begin(), by_phase.end(),
                   [&](NodeId a, NodeId b) { return phases_[a].key < phases_[b].key; });
  for (NodeId id : by_phase) {
    const Node& node = graph_.node(id);
    if (!phases_[id].is_live || bucket_of_.contains(id)) continue;
    const std::optional<CollectiveKind> kind = CollectiveOf(node.op->role());
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
    const uint32_t device = first_device_[stage] + mesh_device;
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
