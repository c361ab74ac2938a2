// From what was measured of hosts to what the planner is told of them. Of their links, a hierarchy
// of networks: which hosts are near each other, and what the networks carry that join them. Of
// their speeds, kinds of devices that are slower.
//
// Links of about the same rate belong to one network. The links of a maximum spanning tree are
// taken from the fastest to the slowest; where the next one is much slower (kRateStep), the hosts
// that are joined so far are the groups of a level.
//
// Example. Hosts a and c are on one switch, b and d on another, with 1.25 GB/s; a link that gives
// each of two pairs 60 MB/s joins the switches.
//   order   a, c, b, d
//   levels  "rack"    fan_out 2, 1.25 GB/s
//           "network" fan_out 2, 60 MB/s, 2 uplinks
//
// Pairs of disjoint hosts are measured at the same time, so the rate of a link that several pairs
// share is what each of them got: a group has as many uplinks of that rate as it has hosts.
//
// Thread rule: values and pure functions.

#ifndef PENSTOCK_PLANNER_CLUSTER_PROBED_HOSTS_H_
#define PENSTOCK_PLANNER_CLUSTER_PROBED_HOSTS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "planner/cluster/cluster_model.h"

namespace penstock::planner {

struct HostLink {
  double bytes_per_s = 0;
  double latency_s = 0;

  friend bool operator==(const HostLink&, const HostLink&) = default;
};

// What was measured between each two hosts.
class HostLinks {
 public:
  explicit HostLinks(int64_t num_hosts)
      : num_hosts_(num_hosts), links_(static_cast<size_t>(num_hosts * num_hosts)) {}

  int64_t num_hosts() const { return num_hosts_; }
  // REQUIRES, here and below: a and b are different hosts.
  void Set(int64_t a, int64_t b, const HostLink& link) { links_[Index(a, b)] = link; }
  const HostLink& Of(int64_t a, int64_t b) const { return links_[Index(a, b)]; }

 private:
  size_t Index(int64_t a, int64_t b) const {
    return static_cast<size_t>(std::min(a, b) * num_hosts_ + std::max(a, b));
  }

  int64_t num_hosts_;
  std::vector<HostLink> links_;
};

struct HostTopology {
  std::vector<int64_t> order;        // of the hosts, so that groups are contiguous
  std::vector<NetworkLevel> levels;  // above the level of a host, from the inside out

  friend bool operator==(const HostTopology&, const HostTopology&) = default;
};

// The next level begins with a link that has less than the previous one's rate over this.
inline constexpr double kRateStep = 1.5;
inline constexpr size_t kMaxProbedLevels = 3;

// REQUIRES: at least two hosts, and rates that a network can have (cluster_model.h).
HostTopology GroupHosts(const HostLinks& links);

// A host that computes slower than the median of the hosts.
struct SlowHost {
  int64_t host = 0;
  double part = 0;  // of the median's rate

  friend bool operator==(const SlowHost&, const SlowHost&) = default;
};

// Hosts with less than this part of the median's rate are named.
inline constexpr double kSlowPart = 0.9;

// Of the rates of all hosts, in their order.
std::vector<SlowHost> FindSlowHosts(const std::vector<double>& rates);

// Gives the devices of slow hosts kinds of their own, such as "cpu at 60 %", which compute and
// reach their memory at that part of the rates of their kind. Devices with memory of their own,
// such as GPUs, stay as they are: the rates of hosts are those of their processors. REQUIRES:
// `parts` has a positive part for each host, 1 for those that are not slow, and `host_devices` the
// number of its devices. They are all devices of `spec`.
void SlowDown(absl::Span<const uint32_t> host_devices, absl::Span<const double> parts,
              ClusterSpec* spec);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_CLUSTER_PROBED_HOSTS_H_
