#include "planner/cluster/cluster_file.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include <fmt/format.h>
#include <toml.hpp>

#include "base/dtype.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/cluster/measured_collective_internal.h"
#include "planner/cluster/toml_section_internal.h"

namespace penstock::planner {
namespace {

absl::Status ReadRates(const Entry& entry, DeviceKind* kind) {
  if (!entry.value->is_table()) return entry.Expected("a table such as {f32 = 19.5e12}");
  for (const auto& [name, value] : entry.value->as_table()) {
    const Entry rate = {entry.file, StrCat(entry.key, ".", name), &value};
    const std::optional<DType> dtype = ParseDType(name);
    if (!dtype) return rate.Error("not a dtype: expected a name such as f32 or bf16");
    ASSIGN_OR_RETURN(kind->peak_flops_per_s[static_cast<size_t>(*dtype)],
                     ReadNumber(rate, kMinFlopsPerS, kMaxFlopsPerS));
  }
  return absl::OkStatus();
}

using NumberPair = std::pair<double, double>;

// A list of pairs called such as "[flops, fraction]". `first` and `second`: least and most.
absl::StatusOr<std::vector<NumberPair>> ReadPairs(const Entry& entry, std::string_view called,
                                                  NumberPair first, NumberPair second) {
  const std::string expected = StrCat("a list of pairs ", called);
  if (!entry.value->is_array()) return entry.Expected(expected);
  std::vector<NumberPair> pairs;
  for (const toml::value& element : entry.value->as_array()) {
    const Entry pair = entry.Element(element);
    if (!element.is_array()) return pair.Expected(expected);
    const auto& parts = element.as_array();
    if (parts.size() != 2) {
      return pair.Error(StrCat("expected a pair ", called, ", not ", parts.size(), " values"));
    }
    NumberPair& read = pairs.emplace_back();
    ASSIGN_OR_RETURN(read.first, ReadNumber(entry.Element(parts[0]), first.first, first.second));
    ASSIGN_OR_RETURN(read.second, ReadNumber(entry.Element(parts[1]), second.first, second.second));
  }
  return pairs;
}

absl::StatusOr<DeviceKind> ReadKind(const Section& section) {
  RETURN_IF_ERROR(section.CheckKeys({"name", "memory_bytes", "memory_bytes_per_s",
                                     "peak_flops_per_s", "efficiency", "launch_s", "step_s",
                                     "host_link_bytes_per_s", "host_memory_bytes"}));
  DeviceKind kind;
  RETURN_IF_ERROR(section.Read("name", &kind.name));
  RETURN_IF_ERROR(section.Read("memory_bytes", int64_t{1}, kMaxMemoryBytes, &kind.memory_bytes));
  RETURN_IF_ERROR(
      section.Read("memory_bytes_per_s", kMinBytesPerS, kMaxBytesPerS, &kind.memory_bytes_per_s));
  ASSIGN_OR_RETURN(const Entry rates, section.Get("peak_flops_per_s"));
  RETURN_IF_ERROR(ReadRates(rates, &kind));
  if (section.Has("efficiency")) {
    ASSIGN_OR_RETURN(const Entry efficiency, section.Get("efficiency"));
    ASSIGN_OR_RETURN(const std::vector<NumberPair> points,
                     ReadPairs(efficiency, "[flops, fraction]", {1, kMaxFlops}, {1e-9, 1}));
    for (const auto& [flops, fraction] : points) kind.efficiency.push_back({flops, fraction});
  }
  if (section.Has("launch_s")) {
    RETURN_IF_ERROR(section.Read("launch_s", 0.0, kMaxLaunchS, &kind.launch_s));
  }
  if (section.Has("step_s")) {
    RETURN_IF_ERROR(section.Read("step_s", 0.0, kMaxStepS, &kind.step_s));
  }
  if (section.Has("host_link_bytes_per_s")) {
    RETURN_IF_ERROR(section.Read("host_link_bytes_per_s", kMinBytesPerS, kMaxBytesPerS,
                                 &kind.host_link_bytes_per_s));
  }
  if (section.Has("host_memory_bytes")) {
    RETURN_IF_ERROR(
        section.Read("host_memory_bytes", int64_t{1}, kMaxMemoryBytes, &kind.host_memory_bytes));
  }
  return kind;
}

constexpr std::string_view kNoSuchKind = "no [[kind]] is named \"";

// Adds what was measured to the kind that it names. `names`: the index of each kind.
absl::Status ReadKernel(const Section& section,
                        const absl::flat_hash_map<std::string, int64_t>& names,
                        std::vector<DeviceKind>* kinds) {
  RETURN_IF_ERROR(section.CheckKeys({"device", "op", "dtype", "bound", "slowdown"}));
  ASSIGN_OR_RETURN(const Entry device, section.Get("device"));
  ASSIGN_OR_RETURN(const std::string name, ReadString(device));
  const auto found = names.find(name);
  if (found == names.end()) return device.Error(StrCat(kNoSuchKind, name, "\""));
  MeasuredKernel& kernel = (*kinds)[found->second].kernels.emplace_back();
  RETURN_IF_ERROR(section.Read("op", &kernel.op));
  ASSIGN_OR_RETURN(const Entry type, section.Get("dtype"));
  ASSIGN_OR_RETURN(const std::string type_name, ReadString(type));
  const std::optional<DType> dtype = ParseDType(type_name);
  if (!dtype) return type.Error("not a dtype: expected a name such as f32 or bf16");
  kernel.dtype = *dtype;
  ASSIGN_OR_RETURN(const Entry bound, section.Get("bound"));
  ASSIGN_OR_RETURN(const std::string bound_name, ReadString(bound));
  const std::optional<RooflineBound> parsed = ParseRooflineBound(bound_name);
  if (!parsed) {
    return bound.Error(
        StrCat("unknown value \"", bound_name, "\"; expected \"compute\" or \"memory\""));
  }
  kernel.bound = *parsed;
  ASSIGN_OR_RETURN(const Entry slowdown, section.Get("slowdown"));
  ASSIGN_OR_RETURN(const std::vector<NumberPair> points,
                   ReadPairs(slowdown, "[us, factor]", {kMinRooflineUs, kMaxRooflineUs},
                             {kMinSlowdown, kMaxSlowdown}));
  for (const auto& [us, factor] : points) kernel.slowdown.push_back({us, factor});
  const absl::Status status = CheckMeasuredKernel(kernel);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      StrCat(section.Place(), ": [[kernel]]: ", ToStd(status.message())));
}

absl::StatusOr<NetworkLevel> ReadLevel(const Section& section) {
  RETURN_IF_ERROR(
      section.CheckKeys({"name", "fan_out", "bytes_per_s", "latency_s", "uplinks", "torus"}));
  NetworkLevel level;
  RETURN_IF_ERROR(section.Read("name", &level.name));
  RETURN_IF_ERROR(section.Read("bytes_per_s", kMinBytesPerS, kMaxBytesPerS, &level.bytes_per_s));
  RETURN_IF_ERROR(section.Read("latency_s", 0.0, kMaxLatencyS, &level.latency_s));
  if (section.Has("torus")) {
    ASSIGN_OR_RETURN(const Entry torus, section.Get("torus"));
    ASSIGN_OR_RETURN(level.torus, ReadIntegers(torus, kMaxTorusExtent));
  }
  if (section.Has("fan_out") || level.torus.empty()) {
    ASSIGN_OR_RETURN(const Entry fan_out, section.Get("fan_out"));
    ASSIGN_OR_RETURN(level.fan_out, ReadIntegers(fan_out, kMaxClusterDevices));
  } else {
    int64_t size = 1;
    for (const int64_t extent : level.torus) size = std::min(size * extent, kMaxClusterDevices + 1);
    level.fan_out = {size};
  }
  if (!section.Has("uplinks")) return level;
  ASSIGN_OR_RETURN(const Entry uplinks, section.Get("uplinks"));
  if (!uplinks.value->is_string()) {
    if (!uplinks.value->is_integer()) return uplinks.Expected("an integer or \"device\"");
    ASSIGN_OR_RETURN(level.uplinks, ReadInteger(uplinks, 1, kMaxClusterDevices));
    return level;
  }
  if (uplinks.value->as_string().str != "device") {
    return uplinks.Error(StrCat("unknown value \"", uplinks.value->as_string().str,
                                "\"; expected an integer or \"device\""));
  }
  level.uplinks = kUplinkPerDevice;
  return level;
}

// `names`: the index of each kind.
absl::StatusOr<DeviceRun> ReadRun(const Section& section,
                                  const absl::flat_hash_map<std::string, int64_t>& names) {
  RETURN_IF_ERROR(section.CheckKeys({"kind", "count"}));
  DeviceRun run;
  ASSIGN_OR_RETURN(const Entry kind, section.Get("kind"));
  ASSIGN_OR_RETURN(const std::string name, ReadString(kind));
  const auto found = names.find(name);
  if (found == names.end()) {
    return kind.Error(StrCat(kNoSuchKind, name, "\""));
  }
  run.kind = found->second;
  RETURN_IF_ERROR(section.Read("count", int64_t{1}, kMaxClusterDevices, &run.count));
  return run;
}

// A TOML string. Names have no control characters.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

// As many digits as it takes to read the number back.
std::string Digits(double number) { return fmt::format("{}", number); }

// 8, or [8, 4] for several.
std::string FormatIntegers(const std::vector<int64_t>& numbers) {
  return numbers.size() == 1 ? StrCat(numbers[0]) : StrCat("[", StrJoin(numbers, ", "), "]");
}

std::string FormatKind(const DeviceKind& kind) {
  std::vector<std::string> rates;
  for (int d = 0; d < kNumDTypes; ++d) {
    const double rate = kind.peak_flops_per_s[d];
    if (rate > 0) rates.push_back(StrCat(Name(static_cast<DType>(d)), " = ", Digits(rate)));
  }
  std::string text =
      StrCat("\n[[kind]]\nname = ", Quoted(kind.name), "\nmemory_bytes = ", kind.memory_bytes,
             "\nmemory_bytes_per_s = ", Digits(kind.memory_bytes_per_s), "\npeak_flops_per_s = {",
             StrJoin(rates, ", "), "}\n");
  if (kind.host_link_bytes_per_s > 0) {
    StrAppend(&text, "host_link_bytes_per_s = ", Digits(kind.host_link_bytes_per_s), "\n");
  }
  if (kind.launch_s > 0) StrAppend(&text, "launch_s = ", Digits(kind.launch_s), "\n");
  if (kind.step_s > 0) StrAppend(&text, "step_s = ", Digits(kind.step_s), "\n");
  if (kind.host_memory_bytes > 0) {
    StrAppend(&text, "host_memory_bytes = ", kind.host_memory_bytes, "\n");
  }
  if (kind.efficiency.empty()) return text;
  std::vector<std::string> points;
  for (const EfficiencyPoint& point : kind.efficiency) {
    points.push_back(StrCat("[", Digits(point.flops), ", ", Digits(point.fraction), "]"));
  }
  StrAppend(&text, "efficiency = [", StrJoin(points, ", "), "]\n");
  return text;
}

std::string FormatKernel(const DeviceKind& kind, const MeasuredKernel& kernel) {
  std::vector<std::string> points;
  for (const SlowdownPoint& point : kernel.slowdown) {
    points.push_back(StrCat("[", Digits(point.roofline_us), ", ", Digits(point.factor), "]"));
  }
  return StrCat("\n[[kernel]]\ndevice = ", Quoted(kind.name), "\nop = ", Quoted(kernel.op),
                "\ndtype = \"", Name(kernel.dtype), "\"\nbound = \"", Name(kernel.bound),
                "\"\nslowdown = [", StrJoin(points, ", "), "]\n");
}

std::string FormatLevel(const NetworkLevel& level) {
  std::string text = StrCat("\n[[level]]\nname = ", Quoted(level.name),
                            "\nfan_out = ", FormatIntegers(level.fan_out),
                            "\nbytes_per_s = ", Digits(level.bytes_per_s),
                            "\nlatency_s = ", Digits(level.latency_s), "\nuplinks = ");
  StrAppend(&text, level.uplinks == kUplinkPerDevice ? "\"device\"" : StrCat(level.uplinks), "\n");
  if (!level.torus.empty()) StrAppend(&text, "torus = ", FormatIntegers(level.torus), "\n");
  return text;
}

}  // namespace

absl::StatusOr<Cluster> ParseCluster(std::string_view text, std::string_view file) {
  if (text.size() > kMaxClusterFileBytes) {
    return absl::InvalidArgumentError(StrCat(file, ": the file has ", text.size(),
                                             " bytes: expected at most ", kMaxClusterFileBytes));
  }
  ASSIGN_OR_RETURN(const toml::value root, ParseToml(text, std::string(file)));
  const Section whole(file, "", root);
  RETURN_IF_ERROR(whole.CheckKeys(
      {"name", "devices_at_once", "kind", "kernel", "devices", "level", "collective"}));
  ClusterSpec spec;
  RETURN_IF_ERROR(whole.Read("name", &spec.name));
  if (whole.Has("devices_at_once")) {
    RETURN_IF_ERROR(
        whole.Read("devices_at_once", int64_t{1}, kMaxClusterDevices, &spec.devices_at_once));
  }

  ASSIGN_OR_RETURN(const std::vector<const toml::value*> kinds,
                   whole.Tables("kind", kMaxDeviceKinds));
  absl::flat_hash_map<std::string, int64_t> names;
  for (const toml::value* table : kinds) {
    ASSIGN_OR_RETURN(DeviceKind kind, ReadKind(Section(file, "kind", *table)));
    names.emplace(kind.name, static_cast<int64_t>(spec.kinds.size()));
    spec.kinds.push_back(std::move(kind));
  }
  ASSIGN_OR_RETURN(const std::vector<const toml::value*> kernels,
                   whole.Tables("kernel", kMaxDeviceKinds * kMaxMeasuredKernels));
  for (const toml::value* table : kernels) {
    RETURN_IF_ERROR(ReadKernel(Section(file, "kernel", *table), names, &spec.kinds));
  }
  ASSIGN_OR_RETURN(const std::vector<const toml::value*> runs,
                   whole.Tables("devices", kMaxClusterDevices));
  for (const toml::value* table : runs) {
    ASSIGN_OR_RETURN(spec.devices.emplace_back(), ReadRun(Section(file, "devices", *table), names));
  }
  if (spec.kinds.size() > 1 && runs.empty()) {
    return absl::InvalidArgumentError(
        StrCat(Section(file, "kind", *kinds[1]).Place(), ": there are ", kinds.size(),
               " kinds, but no [[devices]] say which devices have which"));
  }
  ASSIGN_OR_RETURN(const std::vector<const toml::value*> levels,
                   whole.Tables("level", kMaxNetworkLevels));
  for (const toml::value* table : levels) {
    ASSIGN_OR_RETURN(spec.levels.emplace_back(), ReadLevel(Section(file, "level", *table)));
  }

  ASSIGN_OR_RETURN(const std::vector<const toml::value*> collectives,
                   whole.Tables("collective", kMaxMeasuredCollectives));
  for (const toml::value* table : collectives) {
    ASSIGN_OR_RETURN(spec.collectives.emplace_back(),
                     ReadMeasuredCollective(Section(file, "collective", *table)));
  }

  ClusterPart part;
  absl::StatusOr<Cluster> cluster = Cluster::Create(std::move(spec), &part);
  if (cluster.ok()) return cluster;
  const toml::value* at_fault = &root;
  if (part.kind == ClusterPart::Kind::kDeviceKind) at_fault = kinds[part.index];
  if (part.kind == ClusterPart::Kind::kLevel) at_fault = levels[part.index];
  if (part.kind == ClusterPart::Kind::kDevices) at_fault = runs[part.index];
  if (part.kind == ClusterPart::Kind::kCollective) at_fault = collectives[part.index];
  return absl::InvalidArgumentError(
      StrCat(PlaceOf(file, at_fault->location()), ": ", ToStd(cluster.status().message())));
}

std::string FormatCluster(const Cluster& cluster) {
  const ClusterSpec& spec = cluster.spec();
  std::string text = StrCat("name = ", Quoted(spec.name), "\n");
  if (spec.devices_at_once > 0) {
    StrAppend(&text, "devices_at_once = ", spec.devices_at_once, "\n");
  }
  for (const DeviceKind& kind : spec.kinds) StrAppend(&text, FormatKind(kind));
  for (const DeviceKind& kind : spec.kinds) {
    for (const MeasuredKernel& kernel : kind.kernels) {
      StrAppend(&text, FormatKernel(kind, kernel));
    }
  }
  for (const DeviceRun& run : spec.devices) {
    StrAppend(&text, "\n[[devices]]\nkind = ", Quoted(spec.kinds[run.kind].name),
              "\ncount = ", run.count, "\n");
  }
  for (const NetworkLevel& level : spec.levels) StrAppend(&text, FormatLevel(level));
  for (const MeasuredCollective& measured : spec.collectives) {
    StrAppend(&text, FormatMeasuredCollective(measured));
  }
  return text;
}

}  // namespace penstock::planner
