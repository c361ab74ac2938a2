#include "planner/cluster/probed_hosts.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "base/strings.h"

namespace penstock::planner {
namespace {

struct Edge {
  double bytes_per_s = 0;
  int64_t a = 0;
  int64_t b = 0;
};

// Sets of hosts, each named by its first host.
class HostSets {
 public:
  explicit HostSets(int64_t num_hosts) : parents_(static_cast<size_t>(num_hosts)) {
    std::iota(parents_.begin(), parents_.end(), 0);
  }
  int64_t Find(int64_t host) const {
    while (parents_[static_cast<size_t>(host)] != host) host = parents_[static_cast<size_t>(host)];
    return host;
  }
  // Whether they were two sets.
  bool Join(int64_t a, int64_t b) {
    const auto [first, second] = std::minmax({Find(a), Find(b)});
    parents_[static_cast<size_t>(second)] = first;
    return first != second;
  }

 private:
  std::vector<int64_t> parents_;
};

// Of a maximum spanning tree, from the fastest link on.
std::vector<Edge> TreeOf(const HostLinks& links) {
  std::vector<Edge> edges;
  for (int64_t a = 0; a < links.num_hosts(); ++a) {
    for (int64_t b = a + 1; b < links.num_hosts(); ++b) {
      edges.push_back({links.Of(a, b).bytes_per_s, a, b});
    }
  }
  std::stable_sort(edges.begin(), edges.end(), [](const Edge& left, const Edge& right) {
    return left.bytes_per_s > right.bytes_per_s;
  });
  HostSets sets(links.num_hosts());
  std::vector<Edge> tree;
  for (const Edge& edge : edges) {
    if (sets.Join(edge.a, edge.b)) tree.push_back(edge);
  }
  return tree;
}

// Where levels end in the tree's edges: after the largest steps between rates, and at the end.
std::vector<size_t> LevelEnds(const std::vector<Edge>& tree) {
  std::vector<std::pair<double, size_t>> steps;
  for (size_t i = 1; i < tree.size(); ++i) {
    const double step = tree[i - 1].bytes_per_s / tree[i].bytes_per_s;
    if (step > kRateStep) steps.emplace_back(step, i);
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const auto& left, const auto& right) { return left.first > right.first; });
  if (steps.size() > kMaxProbedLevels - 1) steps.resize(kMaxProbedLevels - 1);
  std::vector<size_t> ends = {tree.size()};
  for (const auto& [step, end] : steps) ends.push_back(end);
  std::sort(ends.begin(), ends.end());
  return ends;
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Of level `level` of `num_levels`.
std::string NameOf(size_t level, size_t num_levels) {
  constexpr std::array<const char*, kMaxProbedLevels> kNames = {"network", "row", "rack"};
  if (num_levels == 2 && level == 0) return "rack";
  return kNames[num_levels - 1 - level];
}

// The measurement is no more exact than that.
int64_t PercentOf(double part) { return std::clamp<int64_t>(std::llround(100 * part), 1, 100); }

DeviceKind SlowedDown(DeviceKind kind, int64_t percent) {
  const double part = 0.01 * static_cast<double>(percent);
  StrAppend(&kind.name, " at ", percent, " %");
  kind.memory_bytes_per_s = std::max(kind.memory_bytes_per_s * part, kMinBytesPerS);
  for (double& rate : kind.peak_flops_per_s) {
    if (rate > 0) rate = std::max(rate * part, kMinFlopsPerS);
  }
  kind.launch_s = std::min(kind.launch_s / part, kMaxLaunchS);
  return kind;
}

}  // namespace

HostTopology GroupHosts(const HostLinks& links) {
  const int64_t num_hosts = links.num_hosts();
  const std::vector<Edge> tree = TreeOf(links);
  const std::vector<size_t> ends = LevelEnds(tree);

  // The group of each host, by level: that of a host alone first.
  std::vector<std::vector<int64_t>> groups;
  HostSets sets(num_hosts);
  size_t begin = 0;
  for (size_t level = 0; level <= ends.size(); ++level) {
    std::vector<int64_t>& group = groups.emplace_back();
    for (int64_t host = 0; host < num_hosts; ++host) group.push_back(sets.Find(host));
    if (level == ends.size()) break;
    for (; begin < ends[level]; ++begin) sets.Join(tree[begin].a, tree[begin].b);
  }

  HostTopology topology;
  topology.order.resize(static_cast<size_t>(num_hosts));
  std::iota(topology.order.begin(), topology.order.end(), 0);
  std::sort(topology.order.begin(), topology.order.end(), [&](int64_t a, int64_t b) {
    for (size_t level = groups.size(); level-- > 0;) {
      const int64_t group_of_a = groups[level][static_cast<size_t>(a)];
      const int64_t group_of_b = groups[level][static_cast<size_t>(b)];
      if (group_of_a != group_of_b) return group_of_a < group_of_b;
    }
    return false;
  });

  for (size_t level = 0; level + 1 < groups.size(); ++level) {
    const auto& inner = groups[level];
    const auto& outer = groups[level + 1];
    std::vector<double> rates;
    std::vector<double> latencies;
    for (int64_t a = 0; a < num_hosts; ++a) {
      for (int64_t b = a + 1; b < num_hosts; ++b) {
        const auto i = static_cast<size_t>(a);
        const auto j = static_cast<size_t>(b);
        if (inner[i] == inner[j] || outer[i] != outer[j]) continue;
        rates.push_back(links.Of(a, b).bytes_per_s);
        latencies.push_back(links.Of(a, b).latency_s);
      }
    }
    NetworkLevel network;
    network.name = NameOf(level, groups.size() - 1);
    network.bytes_per_s = Median(std::move(rates));
    network.latency_s = Median(std::move(latencies));
    int64_t hosts_of_child = 0;
    int64_t fewest = num_hosts;
    for (size_t i = 0; i < topology.order.size(); ++i) {
      const auto host = static_cast<size_t>(topology.order[i]);
      const auto previous = static_cast<size_t>(i == 0 ? 0 : topology.order[i - 1]);
      const bool begins_child = i == 0 || inner[host] != inner[previous];
      const bool begins_group = i == 0 || outer[host] != outer[previous];
      if (begins_group) network.fan_out.push_back(0);
      if (begins_child) {
        ++network.fan_out.back();
        if (i > 0) fewest = std::min(fewest, hosts_of_child);
        hosts_of_child = 0;
      }
      ++hosts_of_child;
    }
    network.uplinks = std::min(fewest, hosts_of_child);
    topology.levels.push_back(std::move(network));
  }
  return topology;
}

std::vector<SlowHost> FindSlowHosts(const std::vector<double>& rates) {
  std::vector<SlowHost> slow;
  if (rates.size() < 2) return slow;
  // Of an even number the upper one: of two hosts, the slower one is named.
  const double median = Median(rates);
  for (size_t i = 0; i < rates.size(); ++i) {
    if (rates[i] < kSlowPart * median) {
      slow.push_back({static_cast<int64_t>(i), rates[i] / median});
    }
  }
  return slow;
}

void SlowDown(absl::Span<const uint32_t> host_devices, absl::Span<const double> parts,
              ClusterSpec* spec) {
  std::vector<int64_t> kinds;  // of each device
  for (const DeviceRun& run : spec->devices) {
    kinds.insert(kinds.end(), static_cast<size_t>(run.count), run.kind);
  }
  kinds.resize(std::accumulate(host_devices.begin(), host_devices.end(), size_t{0}), 0);
  std::map<std::pair<int64_t, int64_t>, int64_t> slower;  // by kind and percent
  size_t device = 0;
  for (size_t host = 0; host < host_devices.size(); ++host) {
    const int64_t percent = PercentOf(parts[host]);
    for (uint32_t i = 0; i < host_devices[host]; ++i) {
      int64_t& kind = kinds[device++];
      const DeviceKind& usual = spec->kinds[static_cast<size_t>(kind)];
      if (percent == 100 || HasHostLink(usual)) continue;
      const auto [it, is_new] =
          slower.try_emplace({kind, percent}, static_cast<int64_t>(spec->kinds.size()));
      kind = it->second;
      if (is_new) spec->kinds.push_back(SlowedDown(usual, percent));
    }
  }
  if (slower.empty()) return;
  spec->devices.clear();
  for (const int64_t kind : kinds) {
    if (spec->devices.empty() || spec->devices.back().kind != kind) {
      spec->devices.push_back({0, kind});
    }
    ++spec->devices.back().count;
  }
}

}  // namespace penstock::planner
