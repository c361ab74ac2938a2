#include "cli/checkpoint_copy.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "cli/host_layout.h"

#include "actors/cluster/device_range.h"
#include "base/format.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

// Of each device, the first one of its process.
std::vector<uint32_t> FirstOfProcesses(const Job& job, uint32_t num_devices) {
  const int64_t num_processes = std::min<int64_t>(job.cluster.processes, num_devices);
  const std::vector<uint32_t> devices =
      ProcessDevicesOf(job, num_processes).value_or(std::vector<uint32_t>());
  std::vector<uint32_t> first(num_devices, 0);
  for (int64_t rank = 0; rank < num_processes; ++rank) {
    const actors::DeviceRange range =
        actors::DevicesOfRank(rank, num_processes, num_devices, devices);
    std::fill_n(first.begin() + range.first, range.count, range.first);
  }
  return first;
}

// Of the tiles that processes hold of a state.
uint64_t BytesOfTiles(const planner::StatePlan& state,
                      const std::vector<uint32_t>& first_of_processes, uint32_t first,
                      uint32_t count) {
  std::set<std::tuple<uint32_t, Shape, Shape>> tiles;  // process, offset and shape
  uint64_t num_bytes = 0;
  for (const planner::StatePlacement& placement : state.placements) {
    const uint32_t process = first_of_processes[placement.device];
    if (process - first >= count) continue;
    const bool is_new = tiles.emplace(process, placement.tile.offset, placement.tile.shape).second;
    if (is_new) num_bytes += placement.tile.num_bytes();
  }
  return num_bytes;
}

// Of the states of a model as it is trained, each once.
uint64_t StateBytes(const graph::Graph& forward, const graph::TrainingOptions& training) {
  uint64_t moments = 0;  // of each parameter
  if (training.optimizer == graph::Optimizer::kAdamW) {
    moments = 2;
  } else if (training.momentum > 0) {
    moments = 1;
  }
  uint64_t num_bytes = 0;
  for (const graph::Node& node : forward.nodes()) {
    const bool is_parameter = node.op->role() == graph::OpRole::kParameter;
    if (!is_parameter && node.op->role() != graph::OpRole::kState) continue;
    num_bytes += forward.value(node.results[0]).type.num_bytes() * (is_parameter ? 1 + moments : 1);
  }
  return num_bytes;
}

}  // namespace

absl::StatusOr<planner::Machine> WithoutCheckpointCopy(const Job& job, const graph::Graph& forward,
                                                       const graph::TrainingOptions& training,
                                                       int64_t num_devices,
                                                       planner::Machine machine) {
  if (job.checkpoint.path.empty()) return machine;
  const auto copied = static_cast<int64_t>(StateBytes(forward, training)) / num_devices;
  planner::ClusterSpec spec = machine.cluster.spec();
  for (planner::DeviceKind& kind : spec.kinds) {
    // The copies lie in the memory of the host, which may be that of the device, or have no limit.
    int64_t& memory = kind.host_link_bytes_per_s > 0 ? kind.host_memory_bytes : kind.memory_bytes;
    if (memory > 0) memory = std::max<int64_t>(memory - copied, 1);
  }
  ASSIGN_OR_RETURN(machine.cluster, planner::Cluster::Create(std::move(spec)));
  return machine;
}

uint64_t CheckpointCopyBytes(const Job& job, const planner::Plan& plan, uint32_t first,
                             uint32_t count) {
  if (job.checkpoint.path.empty()) return 0;
  const std::vector<uint32_t> first_of_processes =
      FirstOfProcesses(job, static_cast<uint32_t>(plan.devices.size()));
  uint64_t num_bytes = 0;
  for (const planner::StatePlan& state : plan.states) {
    num_bytes += BytesOfTiles(state, first_of_processes, first, count);
  }
  return num_bytes;
}

absl::StatusOr<uint64_t> CheckpointCopyBytes(const Job& job, const planner::FoldedPlan& plan) {
  if (job.checkpoint.path.empty()) return 0;
  if (!plan.is_folded()) return CheckpointCopyBytes(job, plan.common);
  const std::vector<uint32_t> first_of_processes = FirstOfProcesses(job, plan.num_devices());
  // Layers have states of the same types, which lie alike in a stage.
  std::map<std::tuple<uint32_t, uint32_t, DType, Shape>, uint64_t> known;
  uint64_t num_bytes = 0;
  for (uint32_t i = 0; i < plan.states.size(); ++i) {
    const TensorType& type = plan.common.states[i].type;
    const auto [it, is_new] = known.try_emplace(
        {plan.states[i].stage, plan.states[i].sharding, type.dtype, type.shape}, 0);
    if (is_new) {
      ASSIGN_OR_RETURN(const planner::StatePlan state, planner::ExpandState(plan, i));
      it->second = BytesOfTiles(state, first_of_processes, 0, UINT32_MAX);
    }
    num_bytes += it->second;
  }
  return num_bytes;
}

std::string CheckpointCopyNote(const Job& job, uint64_t num_bytes) {
  if (job.checkpoint.path.empty()) return "";
  return StrCat("      ", FormatBytes(num_bytes),
                " for the copies of states that go into checkpoints\n");
}

}  // namespace penstock::cli
