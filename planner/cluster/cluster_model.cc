#include "planner/cluster/cluster_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"

#include "base/counted.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::planner {
namespace {

absl::Status Invalid(std::string message) { return absl::InvalidArgumentError(std::move(message)); }

absl::Status CheckRange(std::string_view what, double value, double least, double most) {
  // Written so that NaN fails.
  if (value >= least && value <= most) return absl::OkStatus();
  return Invalid(
      StrCat(what, " = ", value, " is out of range: expected a number from ", least, " to ", most));
}

absl::Status CheckRange(std::string_view what, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return Invalid(StrCat(what, " = ", value, " is out of range: expected ", least, " to ", most));
}

absl::Status CheckName(std::string_view name) {
  if (name.empty()) return Invalid("name is empty: expected a name");
  if (name.size() > static_cast<size_t>(kMaxClusterNameBytes)) {
    return Invalid(
        StrCat("name has ", name.size(), " bytes: expected at most ", kMaxClusterNameBytes));
  }
  const bool is_printable = std::all_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
  });
  return is_printable ? absl::OkStatus() : Invalid("name has control characters");
}

// `status` with what it is about in front, such as "level 1 (pod)".
absl::Status About(std::string_view what, int64_t index, std::string_view name,
                   const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      StrCat(what, " ", index, name.empty() ? "" : " (", name,
                             name.empty() ? "" : ")", ": ", ToStd(status.message())));
}

}  // namespace

double EfficiencyAt(const DeviceKind& kind, double flops) {
  const std::vector<EfficiencyPoint>& curve = kind.efficiency;
  if (curve.empty()) return kDefaultEfficiency;
  const auto above = std::find_if(curve.begin(), curve.end(),
                                  [flops](const EfficiencyPoint& p) { return p.flops >= flops; });
  if (above == curve.begin()) return curve.front().fraction;
  if (above == curve.end()) return curve.back().fraction;
  const EfficiencyPoint& below = *(above - 1);
  const double part = std::log(flops / below.flops) / std::log(above->flops / below.flops);
  return below.fraction + part * (above->fraction - below.fraction);
}

Roofline RooflineOf(const DeviceKind& kind, DType dtype, double flops, double bytes) {
  double peak = kind.peak_flops_per_s[static_cast<size_t>(dtype)];
  if (peak == 0) {
    peak = *std::max_element(kind.peak_flops_per_s.begin(), kind.peak_flops_per_s.end());
  }
  const double compute_s = flops > 0 && peak > 0 ? flops / peak : 0;
  const double memory_s = bytes / kind.memory_bytes_per_s;
  if (compute_s > memory_s) return {compute_s, RooflineBound::kCompute};
  return {memory_s, RooflineBound::kMemory};
}

double HostCopySeconds(const DeviceKind& kind, double num_bytes) {
  return HasHostLink(kind) ? num_bytes / kind.host_link_bytes_per_s
                           : 2 * num_bytes / kind.memory_bytes_per_s;
}

absl::Status CheckDeviceKind(const DeviceKind& kind) {
  RETURN_IF_ERROR(CheckName(kind.name));
  RETURN_IF_ERROR(CheckRange("memory_bytes", kind.memory_bytes, int64_t{1}, kMaxMemoryBytes));
  RETURN_IF_ERROR(
      CheckRange("memory_bytes_per_s", kind.memory_bytes_per_s, kMinBytesPerS, kMaxBytesPerS));
  RETURN_IF_ERROR(CheckRange("launch_s", kind.launch_s, 0.0, kMaxLaunchS));
  RETURN_IF_ERROR(CheckRange("step_s", kind.step_s, 0.0, kMaxStepS));
  if (kind.host_link_bytes_per_s != 0) {
    RETURN_IF_ERROR(CheckRange("host_link_bytes_per_s", kind.host_link_bytes_per_s, kMinBytesPerS,
                               kMaxBytesPerS));
  }
  if (kind.host_memory_bytes != 0) {
    RETURN_IF_ERROR(
        CheckRange("host_memory_bytes", kind.host_memory_bytes, int64_t{1}, kMaxMemoryBytes));
    if (kind.host_link_bytes_per_s == 0) {
      return Invalid("host_memory_bytes is given without host_link_bytes_per_s: expected both");
    }
  }
  bool has_rate = false;
  for (int d = 0; d < kNumDTypes; ++d) {
    const double rate = kind.peak_flops_per_s[d];
    if (rate == 0) continue;
    has_rate = true;
    RETURN_IF_ERROR(CheckRange(StrCat("peak_flops_per_s.", Name(static_cast<DType>(d))), rate,
                               kMinFlopsPerS, kMaxFlopsPerS));
  }
  if (!has_rate) return Invalid("peak_flops_per_s has no rate: expected one for at least a dtype");
  if (kind.efficiency.size() > static_cast<size_t>(kMaxEfficiencyPoints)) {
    return Invalid(StrCat("efficiency has ", kind.efficiency.size(), " points: expected at most ",
                          kMaxEfficiencyPoints));
  }
  double last = 0;
  for (const EfficiencyPoint& point : kind.efficiency) {
    RETURN_IF_ERROR(CheckRange("the flops of efficiency", point.flops, 1.0, kMaxFlops));
    if (!(point.fraction > 0 && point.fraction <= 1)) {
      return Invalid(StrCat("the fraction of efficiency = ", point.fraction,
                            " is out of range: expected more than 0 and at most 1"));
    }
    if (point.flops <= last) {
      return Invalid(StrCat("efficiency is not in order: ", point.flops, " flops after ", last));
    }
    last = point.flops;
  }
  if (kind.kernels.size() > static_cast<size_t>(kMaxMeasuredKernels)) {
    return Invalid(StrCat(kind.kernels.size(), " operators were measured: expected at most ",
                          kMaxMeasuredKernels));
  }
  std::set<std::tuple<std::string_view, DType, RooflineBound>> measured;
  for (const MeasuredKernel& kernel : kind.kernels) {
    const std::string name =
        StrCat(kernel.op, " in ", Name(kernel.dtype), ", bound by ", Name(kernel.bound));
    const absl::Status status = CheckMeasuredKernel(kernel);
    if (!status.ok()) return Invalid(StrCat(name, ": ", ToStd(status.message())));
    if (!measured.emplace(kernel.op, kernel.dtype, kernel.bound).second) {
      return Invalid(StrCat(name, " was measured twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNetworkLevel(const NetworkLevel& level) {
  RETURN_IF_ERROR(CheckName(level.name));
  if (level.fan_out.empty()) return Invalid("fan_out is empty: expected a number of children");
  if (level.fan_out.size() > static_cast<size_t>(kMaxClusterDevices)) {
    return Invalid(StrCat("fan_out has ", level.fan_out.size(), " groups: expected at most ",
                          kMaxClusterDevices));
  }
  for (const int64_t children : level.fan_out) {
    RETURN_IF_ERROR(CheckRange("fan_out", children, int64_t{1}, kMaxClusterDevices));
  }
  RETURN_IF_ERROR(CheckRange("bytes_per_s", level.bytes_per_s, kMinBytesPerS, kMaxBytesPerS));
  RETURN_IF_ERROR(CheckRange("latency_s", level.latency_s, 0.0, kMaxLatencyS));
  if (level.uplinks != kUplinkPerDevice) {
    RETURN_IF_ERROR(CheckRange("uplinks", level.uplinks, int64_t{1}, kMaxClusterDevices));
  }
  if (level.torus.empty()) return absl::OkStatus();
  if (level.torus.size() > static_cast<size_t>(kMaxTorusDimensions)) {
    return Invalid(StrCat("torus has ", level.torus.size(), " dimensions: expected at most ",
                          kMaxTorusDimensions));
  }
  int64_t size = 1;
  for (const int64_t extent : level.torus) {
    RETURN_IF_ERROR(CheckRange("torus", extent, int64_t{1}, kMaxTorusExtent));
    size *= extent;
    if (size > kMaxClusterDevices) {
      return Invalid(StrCat("torus [", StrJoin(level.torus, ", "), "] has more than ",
                            kMaxClusterDevices, " devices"));
    }
  }
  for (const int64_t children : level.fan_out) {
    if (children != size) {
      return Invalid(StrCat("torus [", StrJoin(level.torus, ", "), "] has ",
                            Counted(size, "device"), ", but fan_out is ", children));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Cluster> Cluster::Create(ClusterSpec spec, ClusterPart* at_fault) {
  ClusterPart ignored;
  ClusterPart& part = at_fault == nullptr ? ignored : *at_fault;
  part = {};
  RETURN_IF_ERROR(CheckName(spec.name));
  RETURN_IF_ERROR(
      CheckRange("devices_at_once", spec.devices_at_once, int64_t{0}, kMaxClusterDevices));
  Cluster cluster(std::move(spec));
  RETURN_IF_ERROR(cluster.CheckKinds(&part));
  RETURN_IF_ERROR(cluster.PlaceGroups(&part));
  RETURN_IF_ERROR(cluster.PlaceKinds(&part));
  RETURN_IF_ERROR(cluster.CheckCollectives(&part));
  return cluster;
}

absl::Status Cluster::CheckKinds(ClusterPart* part) const {
  const std::vector<DeviceKind>& kinds = spec_.kinds;
  if (kinds.empty()) return Invalid("the cluster has no device kind: expected one at least");
  if (kinds.size() > static_cast<size_t>(kMaxDeviceKinds)) {
    return Invalid(StrCat("the cluster has ", kinds.size(), " device kinds: expected at most ",
                          kMaxDeviceKinds));
  }
  absl::flat_hash_set<std::string_view> names;
  for (size_t k = 0; k < kinds.size(); ++k) {
    *part = {ClusterPart::Kind::kDeviceKind, static_cast<int64_t>(k)};
    RETURN_IF_ERROR(About("device kind", part->index, kinds[k].name, CheckDeviceKind(kinds[k])));
    if (!names.insert(kinds[k].name).second) {
      return Invalid(StrCat("two device kinds are named ", kinds[k].name));
    }
  }
  return absl::OkStatus();
}

absl::Status Cluster::PlaceGroups(ClusterPart* part) {
  const std::vector<NetworkLevel>& levels = spec_.levels;
  *part = {};
  if (levels.size() > static_cast<size_t>(kMaxNetworkLevels)) {
    return Invalid(
        StrCat("the cluster has ", levels.size(), " levels: expected at most ", kMaxNetworkLevels));
  }
  for (int l = 0; l < num_levels(); ++l) {
    *part = {ClusterPart::Kind::kLevel, l};
    RETURN_IF_ERROR(About("level", l, levels[l].name, CheckNetworkLevel(levels[l])));
    if (l > 0 && !levels[l].torus.empty()) {
      return About("level", l, levels[l].name, Invalid("only level 0 can be a torus"));
    }
  }

  // Children of every group, from the outside in.
  std::vector<std::vector<int64_t>> children(num_levels());
  int64_t num_groups = 1;
  for (int l = num_levels() - 1; l >= 0; --l) {
    *part = {ClusterPart::Kind::kLevel, l};
    const std::vector<int64_t>& fan_out = levels[l].fan_out;
    if (fan_out.size() != 1 && static_cast<int64_t>(fan_out.size()) != num_groups) {
      return About("level", l, levels[l].name,
                   Invalid(StrCat("fan_out has ", fan_out.size(), " numbers for ",
                                  Counted(num_groups, "group"),
                                  ": expected one for all groups or one for each")));
    }
    children[l] = fan_out.size() == 1 ? std::vector<int64_t>(num_groups, fan_out[0]) : fan_out;
    int64_t total = 0;
    for (const int64_t count : children[l]) {
      total += count;
      if (total > kMaxClusterDevices) {
        return About("level", l, levels[l].name,
                     Invalid(StrCat("the groups have more than ", kMaxClusterDevices,
                                    " children together")));
      }
    }
    num_groups = total;
  }
  num_devices_ = num_groups;

  // Where groups begin, from the inside out.
  begins_.resize(num_levels());
  largest_.assign(num_levels(), 1);
  for (int l = 0; l < num_levels(); ++l) {
    std::vector<int64_t>& begins = begins_[l];
    begins = {0};
    int64_t child = 0;
    for (const int64_t count : children[l]) {
      child += count;
      const int64_t end = l == 0 ? child : begins_[l - 1][child];
      largest_[l] = std::max(largest_[l], end - begins.back());
      begins.push_back(end);
    }
  }
  return absl::OkStatus();
}

absl::Status Cluster::CheckCollectives(ClusterPart* part) const {
  const std::vector<MeasuredCollective>& all = spec_.collectives;
  if (all.size() > static_cast<size_t>(kMaxMeasuredCollectives)) {
    return Invalid(StrCat("the cluster has ", all.size(),
                          " measured collectives: expected at most ", kMaxMeasuredCollectives));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    *part = {ClusterPart::Kind::kCollective, static_cast<int64_t>(i)};
    RETURN_IF_ERROR(About("measured collective", part->index, Name(all[i].kind),
                          CheckMeasuredCollective(all[i])));
  }
  return absl::OkStatus();
}

absl::Status Cluster::PlaceKinds(ClusterPart* part) {
  int64_t total = 0;
  for (size_t r = 0; r < spec_.devices.size(); ++r) {
    const DeviceRun& run = spec_.devices[r];
    *part = {ClusterPart::Kind::kDevices, static_cast<int64_t>(r)};
    if (run.kind < 0 || run.kind >= static_cast<int64_t>(spec_.kinds.size())) {
      return Invalid(StrCat("devices name kind ", run.kind, " of ", spec_.kinds.size()));
    }
    RETURN_IF_ERROR(CheckRange("count", run.count, int64_t{1}, kMaxClusterDevices));
    total += run.count;
    if (total > num_devices_) {
      return Invalid(StrCat("the counts add up to more than the ", Counted(num_devices_, "device"),
                            " of the levels"));
    }
    run_ends_.push_back(total);
  }
  if (total == num_devices_ || spec_.devices.empty()) return absl::OkStatus();
  return Invalid(StrCat("the counts add up to ", total, ", but the levels have ",
                        Counted(num_devices_, "device")));
}

const DeviceKind& Cluster::KindOf(int64_t device) const {
  if (run_ends_.empty()) return spec_.kinds[0];
  const auto run = std::upper_bound(run_ends_.begin(), run_ends_.end(), device);
  return spec_.kinds[spec_.devices[run - run_ends_.begin()].kind];
}

int64_t Cluster::GroupOf(int64_t device, int l) const {
  if (l < 0) return device;
  const std::vector<int64_t>& begins = begins_[l];
  // Most clusters have equal groups.
  const auto group = static_cast<size_t>(device / begins[1]);
  if (group + 1 < begins.size() && begins[group] <= device && device < begins[group + 1]) {
    return static_cast<int64_t>(group);
  }
  return std::upper_bound(begins.begin(), begins.end(), device) - begins.begin() - 1;
}

std::vector<int64_t> Cluster::Coordinates(int64_t device) const {
  std::vector<int64_t> coordinates;
  for (int l = 0; l < num_levels(); ++l) {
    const int64_t first = begins_[l][GroupOf(device, l)];
    coordinates.push_back(GroupOf(device, l - 1) - GroupOf(first, l - 1));
  }
  return coordinates;
}

std::vector<int64_t> Cluster::TorusCoordinates(int64_t device) const {
  const std::vector<int64_t>& torus = spec_.levels[0].torus;
  int64_t rest = device - begins_[0][GroupOf(device, 0)];
  std::vector<int64_t> coordinates(torus.size());
  for (size_t d = torus.size(); d-- > 0;) {
    coordinates[d] = rest % torus[d];
    rest /= torus[d];
  }
  return coordinates;
}

int64_t Cluster::TorusLinks(int64_t a, int64_t b) const {
  const std::vector<int64_t>& torus = spec_.levels[0].torus;
  const std::vector<int64_t> from = TorusCoordinates(a);
  const std::vector<int64_t> to = TorusCoordinates(b);
  int64_t links = 0;
  for (size_t d = 0; d < torus.size(); ++d) {
    const int64_t distance = std::abs(from[d] - to[d]);
    links += std::min(distance, torus[d] - distance);
  }
  return links;
}

int64_t Cluster::DiameterOf(int l) const {
  if (spec_.levels[l].torus.empty()) return 1;
  int64_t links = 0;
  for (const int64_t extent : spec_.levels[l].torus) links += extent / 2;
  return std::max<int64_t>(links, 1);
}

double Cluster::LatencyAcross(int l) const {
  double latency = 0;
  for (int inner = 0; inner <= l; ++inner) {
    latency =
        std::max(latency, static_cast<double>(DiameterOf(inner)) * spec_.levels[inner].latency_s);
  }
  return latency;
}

int Cluster::MeetingLevel(int64_t a, int64_t b) const {
  int l = -1;
  while (GroupOf(a, l) != GroupOf(b, l)) ++l;
  return l;
}

double Cluster::PathBytesPerS(int64_t from, int64_t to) const {
  const int meeting = MeetingLevel(from, to);
  if (meeting < 0) return std::numeric_limits<double>::infinity();
  return BytesPerSOfEach(meeting, 1);
}

double Cluster::PathLatencyS(int64_t from, int64_t to) const {
  const int meeting = MeetingLevel(from, to);
  if (meeting < 0) return 0;
  if (meeting == 0 && !spec_.levels[0].torus.empty()) {
    return static_cast<double>(TorusLinks(from, to)) * spec_.levels[0].latency_s;
  }
  return LatencyAcross(meeting);
}

double Cluster::UplinkBytesPerSOfEach(int l, int64_t k) const {
  const NetworkLevel& level = spec_.levels[l];
  if (level.uplinks == kUplinkPerDevice || !level.torus.empty()) return level.bytes_per_s;
  return level.bytes_per_s / static_cast<double>((k + level.uplinks - 1) / level.uplinks);
}

double Cluster::BytesPerSOfEach(int l, int64_t k) const {
  double rate = std::numeric_limits<double>::infinity();
  for (int inner = 0; inner <= l; ++inner) {
    // Of k devices in a child of level l, those in a child of level `inner`.
    const int64_t larger = LargestGroup(l - 1);
    const int64_t here = std::max<int64_t>(1, (k * LargestGroup(inner - 1) + larger - 1) / larger);
    rate = std::min(rate, UplinkBytesPerSOfEach(inner, here));
  }
  return rate;
}

}  // namespace penstock::planner
