// What work occupies on a machine: links, those between devices and their hosts included, and cores
// that devices share, each with the time until which it is taken.
//
//   cores   that devices share serve one kernel each at a time, in the order in which kernels
//           become ready
//   links   carry one message or collective at a time in each direction; who asks first is served
//           first, so those that meet on an uplink wait for each other, but messages go ahead of
//           collectives. What crosses a slow link takes it for as long as it lasts, and a faster
//           one for the time in which that would carry as much: a sum of gradients between nodes
//           does not hold up what passes inside a node, not even while it waits
//   copies  between the memories of a device and its host have a link of their own, which carries
//           one at a time in each direction
//
// Thread rule: one thread.

#ifndef PENSTOCK_PLANNER_SIMULATOR_MACHINE_RESOURCES_H_
#define PENSTOCK_PLANNER_SIMULATOR_MACHINE_RESOURCES_H_

#include <array>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

#include "base/collective.h"
#include "planner/cluster/cluster_model.h"
#include "planner/cluster/group_shape.h"
#include "planner/search/machine.h"

namespace penstock::planner {

// Links that communication takes, numbered as they are asked for. A link is a direction of an
// uplink of a child of a level (cluster_model.h).
class LinkTable {
 public:
  // The cluster outlives the result.
  explicit LinkTable(const Cluster& cluster) : cluster_(cluster) {}

  uint32_t num_links() const { return static_cast<uint32_t>(bytes_per_s_.size()); }
  double bytes_per_s(uint32_t link) const { return bytes_per_s_[link]; }
  // Sorted.
  std::vector<uint32_t> OfMessage(uint32_t source, uint32_t destination);
  std::vector<uint32_t> OfCollective(absl::Span<const uint32_t> devices);

 private:
  // The uplinks through which a device reaches the level at which it meets others.
  void Add(uint32_t device, int meeting_level, bool is_out, std::vector<uint32_t>* links);

  const Cluster& cluster_;
  absl::flat_hash_map<std::tuple<int32_t, int64_t, int64_t, bool>, uint32_t> index_;
  std::vector<double> bytes_per_s_;
};

// What a message or a collective takes and occupies.
struct Route {
  double seconds = 0;
  double latency_s = 0;  // of it, at the end, while links are free
  double core_s = 0;     // that each end's core spends on it
  // A message goes ahead of the collectives on its links, which take longer by as much, as in the
  // engine: a pipeline does not wait for sums of gradients.
  bool goes_ahead = false;
  std::shared_ptr<const std::vector<uint32_t>> links;  // null: none
};

// A message of `num_bytes` without its links.
Route MessageRoute(const Machine& machine, uint32_t source, uint32_t destination, double num_bytes);
// A collective without its links; `num_bytes` as PredictCollective wants them.
Route CollectiveRoute(const Machine& machine, const GroupShape& shape, CollectiveKind kind,
                      double num_bytes);

// A permute without its links, whose members are `devices`.
Route PermuteRoute(const Machine& machine, const GroupShape& shape, const CollectiveSpec& spec,
                   const std::vector<uint32_t>& devices);

// Of a collective of `num_members`, as PredictCollective wants them, of the member with most.
double CollectiveBytes(const CollectiveSpec& spec, size_t num_members);

class MachineResources {
 public:
  struct Interval {
    double begin_s = 0;
    double end_s = 0;
  };

  // The machine outlives the result.
  MachineResources(const Machine& machine, uint32_t num_devices);

  // The rate of each link that routes name; without it, all have the same.
  void SetLinkRates(std::vector<double> bytes_per_s) { link_bytes_per_s_ = std::move(bytes_per_s); }

  // Whether the device shares cores with others, or with its communication.
  bool SharesCores(uint32_t device) const;

  // When a device computes for `seconds`, if it could begin at `now`. Calls, here and below, come
  // in order of time.
  Interval Compute(uint32_t device, double now, double seconds);
  // When the device copies to or from its host for `seconds`, if it could begin at `now`.
  Interval Copy(uint32_t device, bool is_to_host, double now, double seconds);
  // When `devices`, all of which had started at `now`, have communicated.
  Interval Communicate(const Route& route, absl::Span<const uint32_t> devices, double now);

 private:
  // Until which one of the cores that the device shares is taken; null: it shares none.
  double* EarliestCore(uint32_t device);
  double RateOf(uint32_t link) const {
    return link < link_bytes_per_s_.size() ? link_bytes_per_s_[link] : 1;
  }

  const Machine& machine_;
  std::vector<uint32_t> cores_of_device_;  // index into core_free_s_; kNone: its own
  std::vector<std::vector<double>> core_free_s_;
  std::vector<std::array<double, 2>> host_link_free_s_;  // of each device: from and to its host
  std::vector<double> link_bytes_per_s_;
  // Until when links are taken, and until when by what goes ahead.
  std::vector<double> link_free_s_;
  std::vector<double> link_free_ahead_s_;
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SIMULATOR_MACHINE_RESOURCES_H_
