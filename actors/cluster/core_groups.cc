#include "actors/cluster/core_groups.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/process_cores.h"

namespace penstock::actors {

std::vector<CoreGroup> FindCoreGroups(absl::Span<const NodeDescription> nodes) {
  std::map<std::string_view, std::vector<size_t>> nodes_of_host;
  for (size_t i = 0; i < nodes.size(); ++i) nodes_of_host[nodes[i].host].push_back(i);
  std::vector<CoreGroup> groups;
  for (const auto& [host, indices] : nodes_of_host) {
    std::vector<ProcessCores> processes;
    for (const size_t i : indices) processes.push_back(nodes[i].cores);
    const std::vector<uint32_t> numbers = FindCoreSharers(processes);
    for (uint32_t number = 0; number < numbers.size(); ++number) {
      CoreGroup group;
      std::vector<ProcessCores> members;
      for (size_t i = 0; i < numbers.size(); ++i) {
        if (numbers[i] != number) continue;
        group.nodes.push_back(indices[i]);
        group.num_devices += nodes[indices[i]].num_devices;
        members.push_back(std::move(processes[i]));
      }
      if (members.empty()) break;
      group.num_cores = CountCores(members);
      groups.push_back(std::move(group));
    }
  }
  std::sort(groups.begin(), groups.end(),
            [](const CoreGroup& a, const CoreGroup& b) { return a.nodes[0] < b.nodes[0]; });
  return groups;
}

}  // namespace penstock::actors
