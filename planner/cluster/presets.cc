#include "planner/cluster/presets.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::planner {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr double kGb = 1e9;        // bytes
constexpr double kGbit = 1e9 / 8;  // bytes
constexpr double kTera = 1e12;

// Latencies of a step of a ring over NVLink, PCI Express and a network: the constants of NCCL for
// its LL128 protocol (NVIDIA, NCCL, src/graph/tuning.cc, the table of hardware latencies).
constexpr double kNvlinkLatencyS = 1.9e-6;
constexpr double kPcieLatencyS = 2.5e-6;
constexpr double kInfinibandLatencyS = 4.0e-6;

struct Rate {
  DType dtype;
  double flops_per_s;
};

// PCI Express with 16 lanes, in each direction: half of what NVIDIA's data sheets of the V100, the
// A100 and the H100 give for both directions (32, 64 and 128 GB/s).
constexpr double kPcie3BytesPerS = 16 * kGb;
constexpr double kPcie4BytesPerS = 32 * kGb;
constexpr double kPcie5BytesPerS = 64 * kGb;

// Of the host's memory, what a device of 8 has. NVIDIA, "DGX A100" (640 GB) and "DGX H100" data
// sheets: 2 TB; "DGX-1" data sheet, for the V100: 512 GB.
constexpr int64_t kDgxHostBytes = 2048 * kGiB / 8;
constexpr int64_t kDgx1HostBytes = 512 * kGiB / 8;

// `host_link_bytes_per_s`: 0 for one that works in the memory of its host.
DeviceKind Kind(std::string name, int64_t memory_bytes, double memory_bytes_per_s,
                double host_link_bytes_per_s, int64_t host_memory_bytes,
                const std::vector<Rate>& rates) {
  DeviceKind kind;
  kind.name = std::move(name);
  kind.memory_bytes = memory_bytes;
  kind.memory_bytes_per_s = memory_bytes_per_s;
  kind.host_link_bytes_per_s = host_link_bytes_per_s;
  kind.host_memory_bytes = host_memory_bytes;
  for (const Rate& rate : rates) {
    kind.peak_flops_per_s[static_cast<size_t>(rate.dtype)] = rate.flops_per_s;
  }
  return kind;
}

// NVIDIA, "A100 Tensor Core GPU" data sheet, A100 80GB SXM: dense rates; f32 and f64 without tensor
// cores, which compute f32 in TF32; PCI Express 4.0.
DeviceKind A100() {
  return Kind("A100-SXM4-80GB", 80 * kGiB, 2039 * kGb, kPcie4BytesPerS, kDgxHostBytes,
              {{DType::kF64, 9.7 * kTera},
               {DType::kF32, 19.5 * kTera},
               {DType::kF16, 312 * kTera},
               {DType::kBF16, 312 * kTera},
               {DType::kI8, 624 * kTera}});
}

// NVIDIA, "H100 Tensor Core GPU Architecture" white paper and data sheet, H100 SXM5: dense rates,
// f32 and f64 without tensor cores; 3.35 TB/s of HBM3; PCI Express 5.0.
DeviceKind H100() {
  return Kind("H100-SXM5-80GB", 80 * kGiB, 3350 * kGb, kPcie5BytesPerS, kDgxHostBytes,
              {{DType::kF64, 33.5 * kTera},
               {DType::kF32, 66.9 * kTera},
               {DType::kF16, 989.4 * kTera},
               {DType::kBF16, 989.4 * kTera},
               {DType::kI8, 1978.9 * kTera}});
}

// NVIDIA, "V100 Tensor Core GPU" data sheet, V100 SXM2 with 32 GB. It has no bf16. PCI Express 3.0.
DeviceKind V100() {
  return Kind(
      "V100-SXM2-32GB", 32 * kGiB, 900 * kGb, kPcie3BytesPerS, kDgx1HostBytes,
      {{DType::kF64, 7.8 * kTera}, {DType::kF32, 15.7 * kTera}, {DType::kF16, 125 * kTera}});
}

NetworkLevel Switch(std::string name, int64_t fan_out, double bytes_per_s, double latency_s,
                    int64_t uplinks) {
  NetworkLevel level;
  level.name = std::move(name);
  level.fan_out = {fan_out};
  level.bytes_per_s = bytes_per_s;
  level.latency_s = latency_s;
  level.uplinks = uplinks;
  return level;
}

ClusterSpec Spec(DeviceKind kind, std::vector<NetworkLevel> levels) {
  ClusterSpec spec;
  spec.kinds.push_back(std::move(kind));
  spec.levels = std::move(levels);
  return spec;
}

ClusterSpec DgxA100(int64_t nodes) {
  // NVIDIA, "DGX A100" data sheet: third-generation NVLink through NVSwitch, 600 GB/s of both
  // directions for each GPU; 8 single-port HDR InfiniBand adapters of 200 Gb/s for computation.
  return Spec(A100(), {Switch("node", 8, 300 * kGb, kNvlinkLatencyS, 1),
                       Switch("pod", nodes, 200 * kGbit, kInfinibandLatencyS, kUplinkPerDevice)});
}

ClusterSpec Selene(int64_t nodes) {
  // Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
  // Megatron-LM" (SC21), section 5: nodes with 8 A100 of 80 GB, NVLink and NVSwitch, and eight
  // 200 Gb/s HDR InfiniBand adapters for computation, in a fat tree that is not tapered.
  return DgxA100(nodes);
}

ClusterSpec HgxH100(int64_t nodes) {
  // NVIDIA, "DGX H100" data sheet, whose baseboard is the HGX H100 with 8 GPUs: fourth-generation
  // NVLink, 900 GB/s of both directions for each GPU; 8 NDR InfiniBand ports of 400 Gb/s.
  return Spec(H100(), {Switch("node", 8, 450 * kGb, kNvlinkLatencyS, 1),
                       Switch("pod", nodes, 400 * kGbit, kInfinibandLatencyS, kUplinkPerDevice)});
}

ClusterSpec H100NvlinkSwitch(int64_t nodes) {
  // NVIDIA, "H100 Tensor Core GPU Architecture" white paper, NVLink Switch System: up to 32 nodes
  // of 8, joined by 72 NVLinks of 25 GB/s in each direction for each node (2:1 tapered). The links
  // are one uplink here because NVSwitch spreads the packets of a transfer over them. A transfer
  // between nodes passes three switches instead of one; the latency is taken as twice that of one.
  return Spec(H100(), {Switch("node", 8, 450 * kGb, kNvlinkLatencyS, 1),
                       Switch("pod", nodes, 72 * 25 * kGb, 2 * kNvlinkLatencyS, 1)});
}

ClusterSpec V100Infiniband(int64_t nodes) {
  // NVIDIA, "V100 Tensor Core GPU" data sheet: 6 NVLinks, 300 GB/s of both directions for each GPU.
  // They form a hybrid cube mesh, which has this rate for rings; a single pair has less. The nodes
  // have one EDR InfiniBand adapter of 100 Gb/s (InfiniBand Trade Association, InfiniBand roadmap).
  return Spec(V100(), {Switch("node", 8, 150 * kGb, kNvlinkLatencyS, 1),
                       Switch("pod", nodes, 100 * kGbit, kInfinibandLatencyS, 1)});
}

ClusterSpec TpuV4(const std::vector<int64_t>& extents) {
  // Google Cloud, "TPU v4" documentation: 275 TFLOP/s of bf16 or int8 a chip, 32 GiB, 1200 GB/s.
  // Jouppi et al., "TPU v4: An Optically Reconfigurable Supercomputer for Machine Learning with
  // Hardware Support for Embeddings" (2023): 6 links of 50 GB/s a chip, in each direction. About a
  // microsecond for a link: Austin et al., "How to Scale Your Model" (2025). No source gives the
  // link of a v4 chip to its host; it is taken as PCI Express 3.0.
  NetworkLevel torus = Switch("slice", 1, 50 * kGb, 1e-6, 1);
  torus.torus = extents;
  for (const int64_t extent : extents) torus.fan_out[0] *= extent;
  return Spec(Kind("TPU-v4", 32 * kGiB, 1200 * kGb, kPcie3BytesPerS, 0,
                   {{DType::kBF16, 275 * kTera}, {DType::kI8, 275 * kTera}}),
              {std::move(torus)});
}

ClusterSpec Ascend910(int64_t nodes) {
  // Liao et al., "DaVinci: A Scalable Architecture for Neural Network Computing" (Hot Chips 2019):
  // Ascend 910 with 256 TFLOP/s of f16, 512 Top/s of int8, 1.2 TB/s of HBM and three HCCS ports of
  // 240 Gb/s. Huawei, "Atlas 800 Training Server (Model 9000)" technical white paper: 8 processors
  // of 32 GB, each with a 100GE RoCE port. Huawei Cloud, "Ascend HCCS-Interconnected NPU Affinity":
  // two groups of four are joined by HCCS inside, and by PCI Express (4.0 x16) between them. A step
  // between servers takes 60 us beside its bytes: Huawei, CANN HCCL, coll_alg_operator.cc, the
  // constant LATENCY, by which HCCL chooses among algorithms. No source gives the latency of HCCS
  // or of PCI Express between processors; assumed is that of NVLink and of NCCL's PCI Express.
  constexpr double kRoceLatencyS = 60e-6;
  return Spec(Kind("Ascend-910", 32 * kGiB, 1200 * kGb, kPcie4BytesPerS, 0,
                   {{DType::kF16, 256 * kTera}, {DType::kI8, 512 * kTera}}),
              {Switch("hccs", 4, 3 * 240 * kGbit, kNvlinkLatencyS, 1),
               Switch("node", 2, 31.5 * kGb, kPcieLatencyS, kUplinkPerDevice),
               Switch("pod", nodes, 100 * kGbit, kRoceLatencyS, kUplinkPerDevice)});
}

ClusterSpec CpuEthernet(int64_t nodes) {
  // Intel, "Xeon Platinum 8380" product specification: 40 cores at 2.3 GHz with two AVX-512 units
  // of fused multiply-add, which makes 64 f32 operations a cycle and core; 8 channels of DDR4-3200.
  // Between the two sockets of a host: what `penstock bench transport` measures over shared memory,
  // as in planner/cost/communication_cost.h. Between hosts: one 10GBASE Ethernet adapter (IEEE
  // 802.3ae) and the latency of TCP that `penstock bench collectives` measures between namespaces.
  return Spec(
      Kind("Xeon-8380", 256 * kGiB, 204.8 * kGb, 0, 0,
           {{DType::kF64, 2.944 * kTera}, {DType::kF32, 5.888 * kTera}}),
      {Switch("host", 2, 8 * kGb, 1e-6, 1), Switch("network", nodes, 10 * kGbit, 18e-6, 1)});
}

struct NodePreset {
  std::string_view name;
  std::string_view help;
  int64_t default_nodes;
  int64_t max_nodes;
  ClusterSpec (*make)(int64_t nodes);
};

constexpr int64_t kMaxNodes = kMaxClusterDevices / 8;

constexpr NodePreset kNodePresets[] = {
    {"dgx-a100", "DGX A100 nodes of 8, with 8 x 200 Gb/s InfiniBand a node", 1, kMaxNodes, DgxA100},
    {"selene", "Selene: DGX A100 nodes of 8, as in the Megatron-LM paper of 2021", 384, kMaxNodes,
     Selene},
    {"hgx-h100", "HGX H100 nodes of 8, with 8 x 400 Gb/s InfiniBand a node", 1, kMaxNodes, HgxH100},
    {"h100-nvlink-switch", "H100 nodes of 8, joined by the NVLink Switch System; 32 at most", 32,
     32, H100NvlinkSwitch},
    {"v100-ib100", "V100 nodes of 8, with one 100 Gb/s InfiniBand adapter a node", 1, kMaxNodes,
     V100Infiniband},
    {"ascend-910", "Ascend 910 nodes of 8, with 8 x 100 Gb/s RoCE a node", 1, kMaxNodes, Ascend910},
    {"cpu-ethernet", "Hosts with two CPU sockets and 10 Gb/s Ethernet", 1, kMaxNodes, CpuEthernet},
};

constexpr std::string_view kTpuName = "tpu-v4";
constexpr std::string_view kTpuHelp = "TPU v4 chips in a 3-D torus";
constexpr int64_t kTpuPodChips = 4096;

absl::Status UnknownPreset(std::string_view name) {
  std::vector<std::string> known;
  for (const ClusterPreset& preset : ClusterPresets()) {
    known.push_back(StrCat(preset.name, ":", preset.size));
  }
  return absl::InvalidArgumentError(
      StrCat("unknown cluster preset '", name, "'; expected ", StrJoin(known, ", ")));
}

absl::Status WrongSize(std::string_view name, std::string_view size, std::string_view expected) {
  return absl::InvalidArgumentError(
      StrCat("cluster preset ", name, ": size '", size, "' is wrong: expected ", expected));
}

absl::StatusOr<Cluster> CreateNamed(std::string_view text, ClusterSpec spec) {
  spec.name = std::string(text);
  return Cluster::Create(std::move(spec));
}

absl::StatusOr<Cluster> FindTpu(std::string_view text, std::string_view size) {
  std::vector<int64_t> extents;
  int64_t chips = 1;
  bool is_valid = true;
  for (const absl::string_view part : absl::StrSplit(ToAbsl(size), 'x')) {
    int64_t extent = 0;
    is_valid = absl::SimpleAtoi(part, &extent) && extent >= 1 && extent <= kMaxTorusExtent &&
               chips * extent <= kTpuPodChips;
    if (!is_valid) break;
    chips *= extent;
    extents.push_back(extent);
  }
  if (!is_valid || extents.size() != 3) {
    return WrongSize(kTpuName, size,
                     StrCat("three extents of at most ", kMaxTorusExtent,
                            ", such as 4x4x8, and at most ", kTpuPodChips, " chips"));
  }
  return CreateNamed(text, TpuV4(extents));
}

}  // namespace

const std::vector<ClusterPreset>& ClusterPresets() {
  // A function-local constant: immutable, built on first use, shared by all readers.
  static const auto* const presets = [] {
    auto* const list = new std::vector<ClusterPreset>;
    for (const NodePreset& preset : kNodePresets) {
      list->push_back({preset.name, "NODES", preset.help});
    }
    list->push_back({kTpuName, "XxYxZ", kTpuHelp});
    return list;
  }();
  return *presets;
}

absl::StatusOr<Cluster> FindClusterPreset(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const bool has_size = colon != std::string_view::npos;
  const std::string_view size = has_size ? text.substr(colon + 1) : std::string_view();
  if (name == kTpuName) {
    return FindTpu(text, has_size ? size : "4x4x4");
  }
  for (const NodePreset& preset : kNodePresets) {
    if (preset.name != name) continue;
    int64_t nodes = preset.default_nodes;
    if (has_size &&
        (!absl::SimpleAtoi(ToAbsl(size), &nodes) || nodes < 1 || nodes > preset.max_nodes)) {
      return WrongSize(name, size, StrCat("1 to ", preset.max_nodes, " nodes"));
    }
    return CreateNamed(text, preset.make(nodes));
  }
  return UnknownPreset(name);
}

}  // namespace penstock::planner
