#include "planner/search/communicating_groups.h"

#include <algorithm>
#include <utility>

#include "planner/plan/coordinates.h"

namespace penstock::planner {

CommunicatingGroups GroupsOf(const Machine& machine, const graph::Mesh& mesh, CollectiveKind kind,
                             const std::vector<graph::AxisRef>& axes, int num_groups,
                             std::optional<int64_t> shift) {
  std::vector<std::vector<int64_t>> members;
  const std::vector<std::vector<uint32_t>> of_stage = GroupDevices(mesh, axes);
  for (int64_t g = 0; g < num_groups; ++g) {
    for (const std::vector<uint32_t>& devices : of_stage) {
      std::vector<int64_t>& group = members.emplace_back();
      for (const uint32_t device : devices) group.push_back(g * mesh.num_devices() + device);
    }
  }
  CommunicatingGroups groups;
  groups.kind = kind;
  for (const std::vector<int64_t>& group : members) {
    GroupShape shape = ShapeOf(machine.cluster, group);
    if (std::find(groups.shapes.begin(), groups.shapes.end(), shape) == groups.shapes.end()) {
      groups.shapes.push_back(std::move(shape));
    }
  }
  groups.at_once = CountGroupsAtOnce(machine.cluster, members);
  if (!shift.has_value()) return groups;
  std::vector<MessageEnds> messages;
  for (const std::vector<int64_t>& group : members) {
    for (size_t i = 0; i < group.size(); ++i) {
      messages.emplace_back(group[i], group[(i + static_cast<size_t>(*shift)) % group.size()]);
    }
  }
  groups.crossing = CountCrossing(machine.cluster, messages);
  return groups;
}

const CommunicatingGroups& GroupsCache::Find(const Machine& machine, const graph::Mesh& mesh,
                                             CollectiveKind kind,
                                             const std::vector<graph::AxisRef>& axes,
                                             int num_groups, std::optional<int64_t> shift) {
  // Micro-batches have no devices: spatial axes are numbered without them.
  std::vector<int64_t> key = {static_cast<int64_t>(kind), num_groups, shift.value_or(-1)};
  std::vector<int64_t> numbers;
  for (const graph::MeshAxis& axis : mesh.axes) {
    numbers.push_back(static_cast<int64_t>(key.size()));
    if (!axis.is_temporal) key.push_back(axis.size);
  }
  key.push_back(-1);
  for (const graph::AxisRef& axis : axes) {
    if (graph::IsTemporal(mesh, axis)) continue;
    key.insert(key.end(), {numbers[static_cast<size_t>(axis.axis)], axis.pre, axis.size});
  }
  const auto [it, is_new] = groups_.try_emplace(std::move(key));
  if (is_new) it->second = GroupsOf(machine, mesh, kind, axes, num_groups, shift);
  return it->second;
}

double PredictSeconds(const Machine& machine, const CommunicatingGroups& groups, double num_bytes) {
  double slowest = 0;
  for (const GroupShape& shape : groups.shapes) {
    const double seconds = groups.crossing.empty()
                               ? PredictCollective(machine.cluster, shape, groups.kind, num_bytes,
                                                   groups.at_once, machine.methods)
                                     .seconds
                               : PredictPermute(machine.cluster, shape, groups.crossing, num_bytes);
    slowest = std::max(slowest, seconds);
  }
  return slowest;
}

double CoreShare(const Machine& machine, const CommunicatingGroups& groups) {
  double most = 0;
  for (const GroupShape& shape : groups.shapes) {
    most = std::max(most, machine.CoreShare(static_cast<int>(shape.levels.size()) - 1));
  }
  return most;
}

}  // namespace penstock::planner
