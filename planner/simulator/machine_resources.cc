#include "planner/simulator/machine_resources.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "planner/cluster/collective_cost.h"
#include "planner/cluster/group_shape.h"
#include "planner/plan/plan.h"

namespace penstock::planner {
namespace {

void SortUnique(std::vector<uint32_t>* links) {
  std::sort(links->begin(), links->end());
  links->erase(std::unique(links->begin(), links->end()), links->end());
}

}  // namespace

void LinkTable::Add(uint32_t device, int meeting_level, bool is_out, std::vector<uint32_t>* links) {
  for (int l = 0; l <= meeting_level; ++l) {
    const int64_t uplinks = cluster_.level(l).uplinks;
    const bool has_own = uplinks == kUplinkPerDevice || !cluster_.level(l).torus.empty();
    const int64_t child = has_own ? device : cluster_.GroupOf(device, l - 1);
    const int64_t first = l == 0 || has_own ? device : cluster_.GroupBegin(l - 1, child);
    const int64_t index = has_own ? 0 : (device - first) % uplinks;
    const auto [it, is_new] =
        index_.try_emplace({static_cast<int32_t>(l), child, index, is_out}, num_links());
    if (is_new) bytes_per_s_.push_back(cluster_.level(l).bytes_per_s);
    links->push_back(it->second);
  }
}

std::vector<uint32_t> LinkTable::OfMessage(uint32_t source, uint32_t destination) {
  std::vector<uint32_t> links;
  const int level = cluster_.MeetingLevel(source, destination);
  Add(source, level, true, &links);
  Add(destination, level, false, &links);
  SortUnique(&links);
  return links;
}

std::vector<uint32_t> LinkTable::OfCollective(absl::Span<const uint32_t> devices) {
  std::vector<uint32_t> links;
  int level = -1;
  for (const uint32_t device : devices) {
    level = std::max(level, cluster_.MeetingLevel(devices[0], device));
  }
  for (const uint32_t device : devices) {
    for (const bool is_out : {true, false}) Add(device, level, is_out, &links);
  }
  SortUnique(&links);
  return links;
}

Route MessageRoute(const Machine& machine, uint32_t source, uint32_t destination,
                   double num_bytes) {
  Route route;
  route.goes_ahead = true;
  route.latency_s = machine.cluster.PathLatencyS(source, destination);
  route.seconds = PredictSendSeconds(machine.cluster, source, destination, num_bytes);
  const double share = machine.CoreShare(machine.cluster.MeetingLevel(source, destination));
  if (share > 0) {
    route.core_s = share * (route.seconds - route.latency_s) +
                   std::min(route.latency_s, machine.cluster.LatencyAcross(0));
  }
  return route;
}

Route CollectiveRoute(const Machine& machine, const GroupShape& shape, CollectiveKind kind,
                      double num_bytes) {
  Route route;
  route.seconds =
      PredictCollective(machine.cluster, shape, kind, num_bytes, {}, machine.methods).seconds;
  route.core_s = route.seconds * machine.CoreShare(static_cast<int>(shape.levels.size()) - 1);
  return route;
}

Route PermuteRoute(const Machine& machine, const GroupShape& shape, const CollectiveSpec& spec,
                   const std::vector<uint32_t>& devices) {
  std::vector<MessageEnds> messages;
  for (size_t i = 0; i < devices.size(); ++i) {
    messages.emplace_back(devices[i], devices[spec.peers[i]]);
  }
  Route route;
  route.seconds = PredictPermute(machine.cluster, shape, CountCrossing(machine.cluster, messages),
                                 CollectiveBytes(spec, devices.size()));
  route.core_s = route.seconds * machine.CoreShare(static_cast<int>(shape.levels.size()) - 1);
  route.goes_ahead = true;
  return route;
}

double CollectiveBytes(const CollectiveSpec& spec, size_t num_members) {
  int64_t count = 0;
  switch (spec.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather:
      count = std::accumulate(spec.counts.begin(), spec.counts.end(), int64_t{0});
      break;
    case CollectiveKind::kAllToAll:
      for (size_t rank = 0; rank < num_members; ++rank) {
        const auto row = spec.counts.begin() + static_cast<int64_t>(rank * num_members);
        count = std::max(count,
                         std::accumulate(row, row + static_cast<int64_t>(num_members), int64_t{0}));
      }
      break;
    case CollectiveKind::kBroadcast:
      count = spec.counts[0];
      break;
    case CollectiveKind::kPermute:
      count = *std::max_element(spec.counts.begin(), spec.counts.end());
      break;
  }
  return static_cast<double>(count) * static_cast<double>(ByteSize(spec.dtype));
}

MachineResources::MachineResources(const Machine& machine, uint32_t num_devices)
    : machine_(machine), cores_of_device_(num_devices, kNone), host_link_free_s_(num_devices) {
  uint32_t device = 0;
  for (const CoreGroup& cores : machine.core_groups) {
    const bool communicates = !machine.core_shares.empty() && !cores.has_spare_core();
    const bool is_shared =
        cores.num_at_once > 0 && (communicates || cores.num_at_once < cores.num_devices);
    for (int64_t i = 0; i < cores.num_devices && device < num_devices; ++i, ++device) {
      if (is_shared) cores_of_device_[device] = static_cast<uint32_t>(core_free_s_.size());
    }
    if (is_shared) core_free_s_.emplace_back(static_cast<size_t>(cores.num_at_once), 0.0);
  }
}

bool MachineResources::SharesCores(uint32_t device) const {
  return cores_of_device_[device] != kNone;
}

double* MachineResources::EarliestCore(uint32_t device) {
  const uint32_t cores = cores_of_device_[device];
  if (cores == kNone) return nullptr;
  return &*std::min_element(core_free_s_[cores].begin(), core_free_s_[cores].end());
}

MachineResources::Interval MachineResources::Compute(uint32_t device, double now, double seconds) {
  double begin = now;
  if (double* core = EarliestCore(device); core != nullptr) {
    begin = std::max(now, *core);
    *core = begin + seconds;
  }
  return {begin, begin + seconds};
}

MachineResources::Interval MachineResources::Copy(uint32_t device, bool is_to_host, double now,
                                                  double seconds) {
  double& free_s = host_link_free_s_[device][is_to_host ? 1 : 0];
  const double begin = std::max(now, free_s);
  free_s = begin + seconds;
  return {begin, free_s};
}

MachineResources::Interval MachineResources::Communicate(const Route& route,
                                                         absl::Span<const uint32_t> devices,
                                                         double now) {
  double begin = now;
  double end = now + route.seconds;
  if (route.links != nullptr && !route.links->empty()) {
    if (route.links->back() >= link_free_s_.size()) {
      link_free_s_.resize(route.links->back() + 1);
      link_free_ahead_s_.resize(link_free_s_.size());
    }
    std::vector<double>& free_s = route.goes_ahead ? link_free_ahead_s_ : link_free_s_;
    double slowest = std::numeric_limits<double>::infinity();
    for (const uint32_t link : *route.links) {
      begin = std::max(begin, free_s[link]);
      slowest = std::min(slowest, RateOf(link));
    }
    end = begin + route.seconds;
    for (const uint32_t link : *route.links) {
      const double share = slowest / RateOf(link);
      const double from = share < 1 ? now : begin;
      const double taken_s = share * (route.seconds - route.latency_s);
      free_s[link] = std::max(free_s[link], from) + taken_s;
      if (route.goes_ahead) link_free_s_[link] = std::max(link_free_s_[link], from) + taken_s;
    }
  }
  if (route.core_s > 0) {
    for (const uint32_t device : devices) {
      double* core = EarliestCore(device);
      if (core == nullptr) continue;
      *core = std::max(*core, begin) + route.core_s;
      // What cores do all the time has the turn of a kernel; the rest goes on beside kernels.
      if (route.core_s >= route.seconds) end = std::max(end, *core);
    }
  }
  return {begin, end};
}

}  // namespace penstock::planner
