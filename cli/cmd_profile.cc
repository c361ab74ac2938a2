// penstock profile: measures this machine into a file that predictions read (--cluster).

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "CLI/CLI.hpp"
#include "cli/environment.h"
#include "cli/files.h"
#include "cli/job.h"
#include "cli/json.h"
#include "cli/option_checks.h"
#include "cli/progress.h"
#include "nlohmann/json.hpp"

#include "base/counted.h"
#include "base/device.h"
#include "base/format.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "bench/gpu_profile.h"
#include "bench/profile.h"
#include "kernels/gpu.h"
#include "planner/cluster/cluster_file.h"
#include "planner/cluster/presets.h"

namespace penstock::cli {
namespace {

struct ProfileOptions {
  std::string device = "cpu";
  std::string cluster;
  std::optional<int64_t> devices;
  std::string output;
  bool is_json = false;
};

// Describes GPUs of this machine by what is measured on the first one. The links between them are
// not measured: they are those within a node of the preset hgx-h100.
absl::StatusOr<planner::Cluster> MeasureGpus(const Environment& environment,
                                             const ProfileOptions& options) {
  const kernels::GpuSystem system = kernels::FindGpus();
  RETURN_IF_ERROR(system.status);
  const auto num_gpus = static_cast<int64_t>(system.gpus.size());
  const int64_t num_devices = options.devices.value_or(num_gpus);
  if (num_devices > num_gpus) {
    return absl::InvalidArgumentError(
        StrCat("--devices ", num_devices, ": this machine has ", Counted(num_gpus, "GPU")));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, kernels::CreateCudaDevice(0));
  ASSIGN_OR_RETURN(planner::DeviceKind kind,
                   bench::MeasureDeviceKind(*device, environment.registries.cuda_kernels, {}));
  kind.name = system.gpus[0].name;
  kind.memory_bytes = static_cast<int64_t>(system.gpus[0].memory_bytes);
  // One node of the preset, with as many GPUs as are asked for.
  ASSIGN_OR_RETURN(const planner::Cluster preset, planner::FindClusterPreset("hgx-h100:1"));
  planner::ClusterSpec spec = preset.spec();
  spec.name = HostName();
  spec.levels.resize(1);
  spec.levels[0].fan_out = {num_devices};
  const auto host_bytes = std::min<uint64_t>(MachineMemoryBytes(), planner::kMaxMemoryBytes);
  kind.host_memory_bytes = static_cast<int64_t>(host_bytes) / num_devices;
  spec.kinds = {std::move(kind)};
  return planner::Cluster::Create(std::move(spec));
}

absl::Status ProfileGpus(const Environment& environment, const ProfileOptions& options) {
  if (!options.cluster.empty()) {
    return absl::InvalidArgumentError("--cluster: use --devices with --device cuda");
  }
  RETURN_IF_ERROR(CheckWritable(options.output));
  const SteadyClock clock;
  const int64_t begin_ns = clock.NowNs();
  ASSIGN_OR_RETURN(const planner::Cluster cluster, MeasureGpus(environment, options));
  RETURN_IF_ERROR(WriteTextFile(options.output, planner::FormatCluster(cluster)));
  const double seconds = 1e-9 * static_cast<double>(clock.NowNs() - begin_ns);
  if (options.is_json) {
    const nlohmann::json json = {
        {"devices", cluster.num_devices()}, {"links", cluster.num_levels()}, {"seconds", seconds}};
    environment.out << DumpJson(json) << "\n";
    return absl::OkStatus();
  }
  const planner::DeviceKind& gpu = cluster.spec().kinds[0];
  environment.out << Counted(cluster.num_devices(), "device") << ": " << gpu.name << "\n"
                  << "products   ";
  const char* separator = "";
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    const double rate = gpu.peak_flops_per_s[static_cast<size_t>(dtype)];
    if (rate == 0) continue;
    environment.out << separator << FormatCount(rate) << " flops/s in " << Name(dtype);
    separator = ", ";
  }
  environment.out << "\nmemory     " << FormatBytes(static_cast<uint64_t>(gpu.memory_bytes_per_s))
                  << "/s\n"
                  << "host link  " << FormatBytes(static_cast<uint64_t>(gpu.host_link_bytes_per_s))
                  << "/s\n"
                  << "launches   " << FormatSeconds(gpu.launch_s) << " each\n"
                  << "links      "
                  << (cluster.num_devices() > 1
                          ? "not measured: those between the GPUs of an HGX H100 (preset "
                            "hgx-h100); edit [[level]] for others"
                          : "none")
                  << "\n"
                  << "written to " << options.output << " in " << FormatSeconds(seconds) << "\n";
  return absl::OkStatus();
}

absl::Status Profile(const Environment& environment, const ProfileOptions& options) {
  if (options.device == "cuda") return ProfileGpus(environment, options);
  RETURN_IF_ERROR(CheckWritable(options.output));
  const SteadyClock clock;
  const int64_t begin_ns = clock.NowNs();
  bench::ProfileOptions profile;
  profile.num_cores = UsableCores();
  profile.num_devices = profile.num_cores;
  if (!options.cluster.empty()) {
    ASSIGN_OR_RETURN(const Job job, ReadJob(options.cluster, {}));
    profile.num_devices = job.cluster.devices.value_or(profile.num_devices);
  }
  profile.num_devices = options.devices.value_or(profile.num_devices);
  environment.err << "profile: measures for one to five minutes; what else runs on this machine "
                     "distorts the figures\n"
                  << std::flush;
  PartProgress progress(environment.err, environment.err_is_terminal);
  profile.on_progress = [&progress](int done, int all, std::string_view next) {
    progress.Update(done, all, next);
  };
  const absl::StatusOr<planner::Cluster> measured = bench::MeasureMachine(profile);
  progress.Clear();
  RETURN_IF_ERROR(measured.status());
  const planner::Cluster& cluster = *measured;
  RETURN_IF_ERROR(WriteTextFile(options.output, planner::FormatCluster(cluster)));
  const double seconds = 1e-9 * static_cast<double>(clock.NowNs() - begin_ns);
  const planner::DeviceKind& core = cluster.spec().kinds[0];
  const planner::NetworkLevel& host = cluster.level(0);
  if (options.is_json) {
    const nlohmann::json json = {
        {"devices", cluster.num_devices()}, {"links", cluster.num_levels()}, {"seconds", seconds}};
    environment.out << DumpJson(json) << "\n";
    return absl::OkStatus();
  }
  const auto rate = [&](DType dtype) {
    return FormatCount(core.peak_flops_per_s[static_cast<size_t>(dtype)]);
  };
  environment.out << Counted(cluster.num_devices(), "device") << ", of which "
                  << cluster.spec().devices_at_once << " at once\n"
                  << "products   " << rate(DType::kF32) << " flops/s in f32, " << rate(DType::kF64)
                  << " in f64\n"
                  << "memory     " << FormatBytes(static_cast<uint64_t>(core.memory_bytes_per_s))
                  << "/s\n"
                  << "links      " << FormatSeconds(host.latency_s) << ", "
                  << FormatBytes(static_cast<uint64_t>(host.bytes_per_s)) << "/s\n"
                  << "written to " << options.output << " in " << FormatSeconds(seconds) << "\n";
  return absl::OkStatus();
}

}  // namespace

void AddProfileCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<ProfileOptions>();
  CLI::App* command = app.add_subcommand(
      "profile", "Measure this machine and write a file for `penstock plan --cluster`.");
  command->add_option("--device", options->device, "Measure \"cpu\" or \"cuda\" devices (cpu)")
      ->option_text("KIND")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command
      ->add_option(
          "--cluster", options->cluster,
          "File (.toml) whose key devices in section [cluster] gives the number of devices")
      ->option_text("FILE");
  command
      ->add_option(
          "--devices", options->devices,
          "Number of devices: CPU devices of one thread, where it overrides --cluster (one "
          "per core), or GPUs (all)")
      ->option_text("N")
      ->check(AtLeast(1));
  command
      ->add_option("-o,--output", options->output,
                   "Write the description to this file (.toml; required)")
      ->option_text("FILE")
      ->required();
  command->add_flag("--json", options->is_json,
                    "Print one JSON object: {\"devices\", \"links\", \"seconds\"}");
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return Profile(environment, *options); };
  });
}

}  // namespace penstock::cli
