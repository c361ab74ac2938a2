// Plans for stages with different numbers of devices, and for bidirectional pipelines: each device
// has a program of its own, and collectives, transfers and states are those of all devices
// (FoldedPlan::is_folded).

#include <cstdint>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "planner/lower/lowering_internal.h"
#include "planner/plan/coordinates.h"

namespace penstock::planner::internal {

absl::Status Lowering::SpellOut() {
  for (size_t c = 0; c < folded_.collectives.size(); ++c) {
    const FoldedCollective& collective = folded_.collectives[c];
    first_collective_.push_back(static_cast<uint32_t>(plan_.collectives.size()));
    const std::vector<CollectiveSpec>& specs = groups_[c].specs;
    for (uint32_t g = 0; g < specs.size(); ++g) {
      CollectiveSpec& spec = plan_.collectives.emplace_back(specs[g]);
      spec.channel = collective.first_channel + g;
      for (uint32_t& device : spec.devices) {
        device = DeviceOf(static_cast<int>(collective.stage), device);
      }
      plan_.collective_per_microbatch.push_back(collective.per_microbatch);
    }
  }
  for (size_t t = 0; t < folded_.transfers.size(); ++t) {
    const FoldedTransfer& folded = folded_.transfers[t];
    first_transfer_.push_back(static_cast<uint32_t>(plan_.transfers.size()));
    const auto add = [&](uint32_t channel, uint32_t source, uint32_t destination,
                         uint64_t num_bytes) {
      TransferPlan& transfer = plan_.transfers.emplace_back();
      transfer.channel = channel;
      transfer.source = DeviceOf(static_cast<int>(folded.source_stage), source);
      transfer.destination = DeviceOf(static_cast<int>(folded.destination_stage), destination);
      transfer.num_bytes = num_bytes;
      transfer.per_microbatch = folded.per_microbatch;
    };
    if (const CrossMeshMessage* message = message_of_[t]; message != nullptr) {
      add(folded.first_channel, message->source, message->destination, message->part.num_bytes());
      continue;
    }
    const Mesh& mesh = MeshOfStage(static_cast<int>(folded.source_stage));
    for (uint32_t d = 0; d < NumDevices(static_cast<int>(folded.source_stage)); ++d) {
      ASSIGN_OR_RETURN(const TilePlan tile,
                       TileOf(mesh, folded_.shardings[folded.sharding], folded.type, d));
      add(folded.first_channel + d, d, d, tile.num_bytes());
    }
  }
  return absl::OkStatus();
}

uint32_t Lowering::SpellOutTarget(ActorKind kind, uint32_t target, uint32_t mesh_device) const {
  if (kind == ActorKind::kCollective) {
    return first_collective_[target] + groups_[target].group_of[mesh_device];
  }
  if (kind == ActorKind::kSend || kind == ActorKind::kRecv) {
    const bool is_message = message_of_[target] != nullptr;
    return first_transfer_[target] + (is_message ? 0 : mesh_device);
  }
  return target;
}

absl::Status Lowering::FinishSpelledOut() {
  for (size_t i = 0; i < folded_.states.size(); ++i) {
    const FoldedState& folded = folded_.states[i];
    StatePlan& state = plan_.states[i];
    const int stage = static_cast<int>(folded.stage);
    for (uint32_t d = 0; d < NumDevices(stage); ++d) {
      ASSIGN_OR_RETURN(TilePlan tile, TileOf(MeshOfStage(stage), folded_.shardings[folded.sharding],
                                             state.type, d));
      state.placements.push_back({DeviceOf(stage, d), folded.registers[d], std::move(tile)});
    }
  }
  plan_.devices = std::move(folded_.programs);
  plan_.kernels = std::move(folded_.kernels);
  for (const DevicePlan& device : plan_.devices) {
    plan_.predicted_peak_bytes.push_back(device.arena_bytes);
  }
  FoldedPlan whole;
  whole.common = std::move(plan_);
  folded_ = std::move(whole);
  return absl::OkStatus();
}

}  // namespace penstock::planner::internal
