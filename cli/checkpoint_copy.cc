#include "cli/checkpoint_copy.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "cli/device_list.h"
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
      ProcessDevicesOf(job, num_processes, num_devices).value_or(std::vector<uint32_t>());
  std::vector<uint32_t> first(num_devices, 0);
  for (int64_t rank = 0; rank < num_processes; ++rank) {
    const actors::DeviceRange range =
        actors::DevicesOfRank(rank, num_processes, num_devices, devices);
    std::fill_n(first.begin() + range.first, range.count, range.first);
  }
  return first;
}

// Adds `times` the bytes of the tiles of a state, each to the first device of its process that
// holds it.
void AddTiles(const planner::StatePlan& state, uint64_t times,
              const std::vector<uint32_t>& first_of_processes, std::vector<uint64_t>* bytes) {
  std::set<std::tuple<uint32_t, Shape, Shape>> tiles;  // process, offset and shape
  for (const planner::StatePlacement& placement : state.placements) {
    const uint32_t process = first_of_processes[placement.device];
    const bool is_new = tiles.emplace(process, placement.tile.offset, placement.tile.shape).second;
    if (is_new) (*bytes)[placement.device] += times * placement.tile.num_bytes();
  }
}

// Of each device; without checkpoints 0.
std::vector<uint64_t> BytesOfDevices(const Job& job, const planner::Plan& plan) {
  std::vector<uint64_t> bytes(plan.devices.size(), 0);
  if (job.checkpoint.path.empty()) return bytes;
  const std::vector<uint32_t> first_of_processes =
      FirstOfProcesses(job, static_cast<uint32_t>(plan.devices.size()));
  for (const planner::StatePlan& state : plan.states) {
    AddTiles(state, 1, first_of_processes, &bytes);
  }
  return bytes;
}

absl::StatusOr<std::vector<uint64_t>> BytesOfDevices(const Job& job,
                                                     const planner::FoldedPlan& plan) {
  if (!plan.is_folded()) return BytesOfDevices(job, plan.common);
  std::vector<uint64_t> bytes(plan.num_devices(), 0);
  if (job.checkpoint.path.empty()) return bytes;
  const std::vector<uint32_t> first_of_processes = FirstOfProcesses(job, plan.num_devices());
  // Layers have states of the same types, which lie alike in a stage: how many there are of each.
  std::map<std::tuple<uint32_t, uint32_t, DType, Shape>, std::pair<uint32_t, uint64_t>> alike;
  for (uint32_t i = 0; i < plan.states.size(); ++i) {
    const TensorType& type = plan.common.states[i].type;
    const auto [it, is_new] = alike.try_emplace(
        {plan.states[i].stage, plan.states[i].sharding, type.dtype, type.shape}, i, 0);
    ++it->second.second;
  }
  for (const auto& [key, states] : alike) {
    ASSIGN_OR_RETURN(const planner::StatePlan state, planner::ExpandState(plan, states.first));
    AddTiles(state, states.second, first_of_processes, &bytes);
  }
  return bytes;
}

CheckpointCopies DivideByKind(const Job& job, std::vector<uint64_t> bytes) {
  CheckpointCopies copies;
  if (job.checkpoint.path.empty()) return copies;
  const auto num_devices = static_cast<int64_t>(bytes.size());
  const DeviceList devices = DeviceListOf(job, num_devices).value_or(DeviceList());
  copies.host_bytes.resize(bytes.size(), 0);
  copies.device_bytes = std::move(bytes);
  for (size_t d = 0; d < copies.device_bytes.size(); ++d) {
    if (devices.KindOf(static_cast<int64_t>(d)) == "cpu") continue;
    std::swap(copies.device_bytes[d], copies.host_bytes[d]);
  }
  return copies;
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
    int64_t& memory = planner::HasHostLink(kind) ? kind.host_memory_bytes : kind.memory_bytes;
    if (memory > 0) memory = std::max<int64_t>(memory - copied, 1);
  }
  ASSIGN_OR_RETURN(machine.cluster, planner::Cluster::Create(std::move(spec)));
  return machine;
}

uint64_t CheckpointCopyBytes(const Job& job, const planner::Plan& plan, uint32_t first,
                             uint32_t count) {
  const std::vector<uint64_t> bytes = BytesOfDevices(job, plan);
  const std::vector<uint32_t> first_of_processes =
      FirstOfProcesses(job, static_cast<uint32_t>(bytes.size()));
  uint64_t num_bytes = 0;
  for (size_t d = 0; d < bytes.size(); ++d) {
    if (first_of_processes[d] - first < count) num_bytes += bytes[d];
  }
  return num_bytes;
}

uint64_t CheckpointCopies::total() const {
  return std::accumulate(device_bytes.begin(), device_bytes.end(), uint64_t{0}) +
         std::accumulate(host_bytes.begin(), host_bytes.end(), uint64_t{0});
}

CheckpointCopies CheckpointCopiesOf(const Job& job, const planner::Plan& plan) {
  return DivideByKind(job, BytesOfDevices(job, plan));
}

absl::StatusOr<CheckpointCopies> CheckpointCopiesOf(const Job& job,
                                                    const planner::FoldedPlan& plan) {
  ASSIGN_OR_RETURN(std::vector<uint64_t> bytes, BytesOfDevices(job, plan));
  return DivideByKind(job, std::move(bytes));
}

void AddCheckpointCopies(const CheckpointCopies& copies, const std::vector<int>& device_groups,
                         planner::StepEstimate* estimate) {
  const size_t num_groups = estimate->groups.size();
  if (copies.device_bytes.empty() || num_groups == 0) return;
  const size_t size = copies.device_bytes.size() / num_groups;
  for (size_t g = 0; g < num_groups; ++g) {
    const size_t place = g < device_groups.size() ? static_cast<size_t>(device_groups[g]) : g;
    uint64_t most = 0;
    for (size_t d = place * size; d < (place + 1) * size; ++d) {
      most = std::max(most, copies.device_bytes[d] + copies.host_bytes[d]);
    }
    estimate->groups[g].memory.host += static_cast<double>(most);
  }
}

std::string CheckpointCopyNote(const Job& job, uint64_t num_bytes) {
  if (job.checkpoint.path.empty()) return "";
  return StrCat("      with ", FormatBytes(num_bytes),
                " in all for the copies of states that go into checkpoints\n");
}

}  // namespace penstock::cli
