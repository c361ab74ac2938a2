#include "base/process_cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

#include "base/cgroup_internal.h"
#include "base/machine.h"
#include "base/system_file.h"

namespace penstock {
namespace {

constexpr int64_t kOneCore = 1000;  // flows are whole thousandths of a core
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
constexpr double kMostCores = 1e9;  // of a quota

// Of the calling thread; all processors of the machine where the system does not say.
std::vector<uint32_t> ReadAffinityMask() {
  constexpr size_t kMostSets = 64;  // of CPU_SETSIZE processors
  std::vector<uint32_t> processors;
  for (std::vector<cpu_set_t> sets(1); sets.size() <= kMostSets; sets.resize(2 * sets.size())) {
    const size_t num_bytes = sets.size() * sizeof(cpu_set_t);
    // Fails while the kernel may have more processors than that.
    if (sched_getaffinity(0, num_bytes, sets.data()) != 0) continue;
    for (uint32_t i = 0; i < 8 * num_bytes; ++i) {
      if (CPU_ISSET_S(i, num_bytes, sets.data())) processors.push_back(i);
    }
    return processors;
  }
  processors.resize(static_cast<size_t>(MachineCores()));
  std::iota(processors.begin(), processors.end(), 0u);
  return processors;
}

// A maximum flow, by augmentation along shortest paths (Edmonds and Karp, 1972).
class FlowNetwork {
 public:
  int AddNode() {
    edges_of_.emplace_back();
    return static_cast<int>(edges_of_.size() - 1);
  }

  void AddEdge(int from, int to, int64_t capacity) {
    edges_of_[static_cast<size_t>(from)].push_back(edges_.size());
    edges_.push_back({to, capacity});
    edges_of_[static_cast<size_t>(to)].push_back(edges_.size());
    edges_.push_back({from, 0});
  }

  // REQUIRES: the capacities of the edges to the sink have a sum; called once.
  int64_t MaximumFlow(int source, int sink) {
    int64_t flow = 0;
    while (FindPath(source, sink)) {
      int64_t more = kUnlimited;
      for (int node = sink; node != source; node = edges_[Reverse(EdgeTo(node))].to) {
        more = std::min(more, edges_[EdgeTo(node)].capacity);
      }
      for (int node = sink; node != source; node = edges_[Reverse(EdgeTo(node))].to) {
        Edge& edge = edges_[EdgeTo(node)];
        if (edge.capacity != kUnlimited) edge.capacity -= more;
        Edge& back = edges_[Reverse(EdgeTo(node))];
        if (back.capacity != kUnlimited) back.capacity += more;
      }
      flow += more;
    }
    return flow;
  }

 private:
  struct Edge {
    int to = 0;
    int64_t capacity = 0;  // that is left
  };
  static size_t Reverse(size_t edge) { return edge ^ 1; }
  size_t EdgeTo(int node) const { return *edge_to_[static_cast<size_t>(node)]; }

  // Sets edge_to_ of the nodes on a shortest path with capacity.
  bool FindPath(int source, int sink) {
    edge_to_.assign(edges_of_.size(), std::nullopt);
    std::vector<int> reached = {source};
    for (size_t i = 0; i < reached.size(); ++i) {
      for (const size_t edge : edges_of_[static_cast<size_t>(reached[i])]) {
        const int to = edges_[edge].to;
        if (edges_[edge].capacity == 0 || to == source) continue;
        if (edge_to_[static_cast<size_t>(to)].has_value()) continue;
        edge_to_[static_cast<size_t>(to)] = edge;
        if (to == sink) return true;
        reached.push_back(to);
      }
    }
    return false;
  }

  std::vector<Edge> edges_;                     // one, then its reverse
  std::vector<std::vector<size_t>> edges_of_;   // of each node
  std::vector<std::optional<size_t>> edge_to_;  // of each node of the last search
};

class DisjointSets {
 public:
  explicit DisjointSets(size_t count) : parents_(count) {
    std::iota(parents_.begin(), parents_.end(), size_t{0});
  }
  size_t Find(size_t i) {
    while (parents_[i] != i) i = parents_[i] = parents_[parents_[i]];
    return i;
  }
  void Join(size_t a, size_t b) { parents_[Find(b)] = Find(a); }

 private:
  std::vector<size_t> parents_;
};

// The groups of all processes. A process in a container may see fewer parents of a group than one
// outside: of {g} and {g, p}, both are limited by p.
class GroupTree {
 public:
  struct Group {
    double num_cores = 0;
    std::string parent;  // empty where no process sees one
  };

  explicit GroupTree(absl::Span<const ProcessCores> processes) {
    for (const ProcessCores& process : processes) {
      const std::vector<CoreQuota>& quotas = process.quotas;
      for (const CoreQuota& quota : quotas)
        groups_.try_emplace(quota.group, Group{quota.num_cores, ""});
      for (size_t i = 1; i < quotas.size(); ++i) SetParent(quotas[i - 1].group, quotas[i].group);
    }
  }

  const std::map<std::string, Group>& groups() const { return groups_; }

 private:
  void SetParent(const std::string& group, const std::string& parent) {
    if (!groups_[group].parent.empty()) return;
    // A hierarchy that is mounted twice is listed twice: {g, p, g, p}.
    for (const std::string* up = &parent; !up->empty(); up = &groups_[*up].parent) {
      if (*up == group) return;
    }
    groups_[group].parent = parent;
  }

  std::map<std::string, Group> groups_;
};

}  // namespace

ProcessCores CoresOfThisProcess() {
  ProcessCores cores{ReadAffinityMask(), {}};
  for (const CgroupPlace& place : FindCpuCgroups(ReadSystemFile("/proc/self/cgroup"),
                                                 ReadSystemFile("/proc/self/mountinfo"))) {
    for (CoreQuota& quota : QuotasOf(place)) cores.quotas.push_back(std::move(quota));
  }
  return cores;
}

// The time that quotas allow flows from the source through groups, outermost first, to the
// processes in them, from there to the processors of their masks, and to the sink. Processes that
// are alike are one node, and so are processors of the same processes.
int CountCores(absl::Span<const ProcessCores> processes) {
  FlowNetwork network;
  const int source = network.AddNode();
  const int sink = network.AddNode();
  const GroupTree tree(processes);
  absl::flat_hash_map<std::string, int> groups;  // the nodes
  for (const auto& [name, group] : tree.groups()) groups[name] = network.AddNode();
  for (const auto& [name, group] : tree.groups()) {
    const double num_cores = std::clamp(group.num_cores, 0.0, kMostCores);
    network.AddEdge(group.parent.empty() ? source : groups[group.parent], groups[name],
                    std::llround(num_cores * kOneCore));
  }
  std::vector<const ProcessCores*> added;
  absl::flat_hash_map<uint32_t, std::vector<int>> users_of;  // of each processor
  for (const ProcessCores& process : processes) {
    const bool is_known = std::any_of(added.begin(), added.end(),
                                      [&](const ProcessCores* other) { return *other == process; });
    if (is_known) continue;
    added.push_back(&process);
    const int innermost = process.quotas.empty() ? source : groups[process.quotas.front().group];
    const int user = network.AddNode();
    network.AddEdge(innermost, user, kUnlimited);
    for (const uint32_t processor : process.processors) users_of[processor].push_back(user);
  }
  std::map<std::vector<int>, int64_t> processors_of;  // how many have these users
  for (const auto& [processor, users] : users_of) ++processors_of[users];
  for (const auto& [users, num_processors] : processors_of) {
    const int node = network.AddNode();
    for (const int user : users) network.AddEdge(user, node, kUnlimited);
    network.AddEdge(node, sink, num_processors * kOneCore);
  }
  const int64_t flow = network.MaximumFlow(source, sink);
  return static_cast<int>(std::max<int64_t>((flow + kOneCore - 1) / kOneCore, 1));
}

std::vector<uint32_t> FindCoreSharers(absl::Span<const ProcessCores> processes) {
  struct Group {
    double num_cores = 0;
    std::vector<size_t> members;
    absl::flat_hash_set<uint32_t> processors;
  };
  DisjointSets sets(processes.size());
  absl::flat_hash_map<uint32_t, size_t> first_users;  // of processors
  absl::flat_hash_map<std::string, Group> groups;
  for (size_t i = 0; i < processes.size(); ++i) {
    for (const uint32_t processor : processes[i].processors) {
      sets.Join(first_users.try_emplace(processor, i).first->second, i);
    }
    for (const CoreQuota& quota : processes[i].quotas) {
      Group& group = groups[quota.group];
      group.num_cores = quota.num_cores;
      group.members.push_back(i);
      group.processors.insert(processes[i].processors.begin(), processes[i].processors.end());
    }
  }
  for (const auto& [name, group] : groups) {
    if (group.num_cores >= static_cast<double>(group.processors.size())) continue;
    for (const size_t member : group.members) sets.Join(group.members[0], member);
  }
  std::vector<uint32_t> numbers;
  absl::flat_hash_map<size_t, uint32_t> number_of_set;
  for (size_t i = 0; i < processes.size(); ++i) {
    const auto next = static_cast<uint32_t>(number_of_set.size());
    numbers.push_back(number_of_set.try_emplace(sets.Find(i), next).first->second);
  }
  return numbers;
}

}  // namespace penstock
