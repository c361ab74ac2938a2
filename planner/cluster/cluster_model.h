// A cluster as values: kinds of devices, and the hierarchy of networks that joins them.
//
// Levels are listed from the inside out. Level 0 joins devices to the smallest groups, level 1
// joins those groups to larger ones, and the outermost level has one group: the cluster. The
// devices are numbered so that every group is a contiguous range. The *children* of a group are
// devices at level 0 and groups of level l - 1 at level l. Each child is attached to its group's
// network by its uplinks, which carry both directions at once.
//
// Example: two nodes of 8 devices, each device with a network card of 25 GB/s.
//   level 0 "node"  fan_out 8, 300 GB/s, 2 us
//   level 1 "pod"   fan_out 2, 25 GB/s, 4 us, kUplinkPerDevice
// Devices 0 and 7 meet at level 0, devices 7 and 8 at level 1. If all 8 devices of a node send to
// the other node at once, each has 25 GB/s. With one uplink for the node, each would have 3.125.
//
// Invariants: a Cluster is valid and immutable. Rates and latencies of a path never improve with
// the level at which its ends meet: a path has the lowest rate and the highest latency of the
// levels that it passes through.
//
// Thread rule: values and pure functions.

#ifndef PENSTOCK_PLANNER_CLUSTER_CLUSTER_MODEL_H_
#define PENSTOCK_PLANNER_CLUSTER_CLUSTER_MODEL_H_

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/dtype.h"
#include "planner/cluster/measured_collective.h"
#include "planner/cluster/measured_kernel.h"

namespace penstock::planner {

// The part of its peak rate that a device reaches in an operation of a given size.
struct EfficiencyPoint {
  double flops = 0;     // of the operation, on one device
  double fraction = 0;  // of the peak rate, above 0 and at most 1

  friend bool operator==(const EfficiencyPoint&, const EfficiencyPoint&) = default;
};

// Where a device kind has no curve. Narayanan et al., "Efficient Large-Scale Language Model
// Training on GPU Clusters Using Megatron-LM" (2021) report 44 to 52 % of the peak for whole
// training steps, which include communication, pipeline bubbles and memory-bound operators; large
// products alone do better.
inline constexpr double kDefaultEfficiency = 0.6;

// What the planner knows of one kind of device.
struct DeviceKind {
  std::string name;          // such as "H200": for messages, and by which cluster files refer to it
  int64_t memory_bytes = 0;  // that a plan may use of a device
  double memory_bytes_per_s = 0;  // of the device's own memory, reads and writes together
  // By DType. 0: the device has no rate for the type.
  std::array<double, kNumDTypes> peak_flops_per_s = {};
  std::vector<EfficiencyPoint> efficiency;  // by increasing flops; empty: kDefaultEfficiency
  double launch_s = 0;  // of the host, for a kernel; it runs ahead of the device
  double step_s = 0;    // of the host, between two steps; the device is idle meanwhile
  // What holds instead for the operators that were measured, one for each operator, dtype and
  // bound.
  std::vector<MeasuredKernel> kernels;
  // To and from the memory of the host, in each direction. 0: the device works in that memory.
  double host_link_bytes_per_s = 0;
  // What a device may use of its host's memory beside its own. 0: not known, and not limited.
  int64_t host_memory_bytes = 0;

  friend bool operator==(const DeviceKind&, const DeviceKind&) = default;
};

// Whether the device has memory of its own, and copies to and from its host beside its kernels.
inline bool HasHostLink(const DeviceKind& kind) { return kind.host_link_bytes_per_s > 0; }

// What a copy to or from the memory of the host takes. One within a memory reads and writes it.
double HostCopySeconds(const DeviceKind& kind, double num_bytes);

// What the peak rates allow for an operation of a dtype; one that the device has no rate for
// computes at the highest of the others.
struct Roofline {
  double seconds = 0;                            // the longer of what flops and bytes take
  RooflineBound bound = RooflineBound::kMemory;  // which of the two that is
};
// What the peak rates allow `flops` and `bytes` of memory traffic on one device.
Roofline RooflineOf(const DeviceKind& kind, DType dtype, double flops, double bytes);

// Interpolates linearly in the logarithm of `flops`; constant beyond the ends of the curve.
double EfficiencyAt(const DeviceKind& kind, double flops);

// Of NetworkLevel::uplinks: as many uplinks as the child has devices.
inline constexpr int64_t kUplinkPerDevice = 0;

// The networks of one level, one in each of its groups, which are alike but for their fan-out.
struct NetworkLevel {
  std::string name;  // of one group, such as "node"
  // Children of each group: one number for all groups, or one for each in order.
  std::vector<int64_t> fan_out;
  double bytes_per_s = 0;  // of one uplink, in each direction
  double latency_s = 0;  // from end to end of a path that this level joins; of one link of a torus
  // Of each child. A transfer uses one uplink, and the devices of a child spread their transfers
  // over its uplinks evenly. kUplinkPerDevice: no device shares its uplink.
  int64_t uplinks = 1;
  // Extents of a torus, empty for a switch. Only level 0 can be one. Device i of a group has the
  // coordinates of i in row-major order, and a link of `bytes_per_s` to each neighbour.
  std::vector<int64_t> torus;

  friend bool operator==(const NetworkLevel&, const NetworkLevel&) = default;
};

// `count` devices of one kind.
struct DeviceRun {
  int64_t count = 0;  // at least 1; they are consecutive
  int64_t kind = 0;   // index in ClusterSpec::kinds

  friend bool operator==(const DeviceRun&, const DeviceRun&) = default;
};

// A description of a cluster, as a file has it (cluster_file.h). Cluster::Create checks it.
struct ClusterSpec {
  std::string name;                  // for messages
  std::vector<DeviceKind> kinds;     // at least one
  std::vector<DeviceRun> devices;    // in order; empty: all are of the first kind
  std::vector<NetworkLevel> levels;  // from the inside out; empty: one device
  // Of the devices of a group of level 0, those that can compute at once, as they share the cores
  // of a host; 0: all.
  int64_t devices_at_once = 0;
  // By which algorithms and chunks are chosen; empty: by the planner's own measurements.
  std::vector<MeasuredCollective> collectives;

  friend bool operator==(const ClusterSpec&, const ClusterSpec&) = default;
};

// Limits of a description, so that none can take much memory or overflow a product.
inline constexpr int64_t kMaxClusterDevices = int64_t{1} << 17;
inline constexpr int64_t kMaxNetworkLevels = 8;       // of a cluster
inline constexpr int64_t kMaxDeviceKinds = 64;        // likewise
inline constexpr int64_t kMaxTorusDimensions = 6;     // of level 0
inline constexpr int64_t kMaxTorusExtent = 256;       // of each dimension
inline constexpr int64_t kMaxEfficiencyPoints = 256;  // of a kind of device
inline constexpr int64_t kMaxClusterNameBytes = 128;  // of each name in a description
inline constexpr double kMinBytesPerS = 1e3;          // of links, uplinks and memory
inline constexpr double kMaxBytesPerS = 1e16;         // likewise
inline constexpr double kMinFlopsPerS = 1e3;          // of a dtype
inline constexpr double kMaxFlopsPerS = 1e19;         // likewise
inline constexpr double kMaxFlops = 1e24;             // of one operation in an efficiency curve
inline constexpr double kMaxLatencyS = 10;            // of a level
inline constexpr double kMaxLaunchS = 1;              // of DeviceKind::launch_s
inline constexpr double kMaxStepS = 1000;             // of DeviceKind::step_s
inline constexpr int64_t kMaxMemoryBytes = int64_t{1} << 50;  // of a device or its host

// Errors of one part of a description, worded to follow the name of what they are about.
absl::Status CheckDeviceKind(const DeviceKind& kind);
// As CheckDeviceKind, for a level.
absl::Status CheckNetworkLevel(const NetworkLevel& level);

// Which part of a description an error is about.
struct ClusterPart {
  // The field of ClusterSpec that has the part; kCluster: the description as a whole.
  enum class Kind : uint8_t { kCluster, kDeviceKind, kLevel, kDevices, kCollective };
  Kind kind = Kind::kCluster;  // what `index` counts
  int64_t index = 0;  // of a device kind, a level, a run of devices or a measured collective
};

// A checked description, with the groups that follow from it.
class Cluster {
 public:
  // Errors name the level or kind at fault and what was expected; `at_fault` also says it as data.
  static absl::StatusOr<Cluster> Create(ClusterSpec spec, ClusterPart* at_fault = nullptr);

  // As it was given to Create.
  const ClusterSpec& spec() const { return spec_; }
  // In all: devices are numbered from 0.
  int64_t num_devices() const { return num_devices_; }
  // Levels of the network; 0 for a single device.
  int num_levels() const { return static_cast<int>(spec_.levels.size()); }
  // REQUIRES: 0 <= l < num_levels().
  const NetworkLevel& level(int l) const { return spec_.levels[l]; }

  // REQUIRES, here and below: devices are in [0, num_devices()), levels in [0, num_levels()).
  const DeviceKind& KindOf(int64_t device) const;

  // Groups of a level, numbered in the order of their devices.
  int64_t NumGroups(int l) const { return static_cast<int64_t>(begins_[l].size()) - 1; }
  // The group of level `l` that holds a device. Level -1: the device itself.
  int64_t GroupOf(int64_t device, int l) const;
  // Devices of a group are [GroupBegin(l, g), GroupBegin(l, g + 1)).
  int64_t GroupBegin(int l, int64_t group) const { return begins_[l][group]; }
  // Of the largest group of a level; of level -1: 1.
  int64_t LargestGroup(int l) const { return l < 0 ? 1 : largest_[l]; }

  // Which child of its group a device lies in, for each level from the inside out.
  std::vector<int64_t> Coordinates(int64_t device) const;
  // In the torus of level 0. REQUIRES: level 0 is a torus.
  std::vector<int64_t> TorusCoordinates(int64_t device) const;

  // Links on a shortest path between two devices of one torus. REQUIRES: level 0 is a torus.
  int64_t TorusLinks(int64_t a, int64_t b) const;

  // The innermost level at which a group holds both; -1 for a device and itself.
  int MeetingLevel(int64_t a, int64_t b) const;

  // Of one transfer with no other traffic. Infinite for a device and itself.
  double PathBytesPerS(int64_t from, int64_t to) const;
  // Of one transfer with no other traffic, from end to end. None for a device and itself.
  double PathLatencyS(int64_t from, int64_t to) const;
  // Of the paths whose ends meet at level `l`; in a torus, of the longest of them.
  double LatencyAcross(int l) const;

  // What each of `k` devices of one child of level `l` has if all of them send to other children
  // at once: the lowest rate of the levels up to `l`, the devices being spread evenly over the
  // smaller groups. Across a torus, each transfer has a link. REQUIRES: k >= 1.
  double BytesPerSOfEach(int l, int64_t k) const;
  // The same for the uplinks of level `l` alone.
  double UplinkBytesPerSOfEach(int l, int64_t k) const;

 private:
  explicit Cluster(ClusterSpec spec) : spec_(std::move(spec)) {}

  // The steps of Create. `part` says which part an error is about.
  absl::Status CheckKinds(ClusterPart* part) const;
  absl::Status PlaceGroups(ClusterPart* part);
  absl::Status PlaceKinds(ClusterPart* part);
  absl::Status CheckCollectives(ClusterPart* part) const;

  // Links of the longest path in a torus; 1 for a switch.
  int64_t DiameterOf(int l) const;

  ClusterSpec spec_;
  int64_t num_devices_ = 1;
  std::vector<std::vector<int64_t>> begins_;  // by level: where groups begin, then num_devices_
  std::vector<int64_t> largest_;              // by level: devices of the largest group
  std::vector<int64_t> run_ends_;             // of spec_.devices
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_CLUSTER_CLUSTER_MODEL_H_
