// penstock profile: measures this machine into a file that predictions read (--cluster).

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
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
#include "bench/profile.h"
#include "planner/cluster/cluster_file.h"

namespace penstock::cli {
namespace {

struct Options {
  std::string cluster;
  std::optional<int64_t> devices;
  std::string output;
  bool is_json = false;
};

absl::Status Profile(const Environment& environment, const Options& options) {
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
  ASSIGN_OR_RETURN(const planner::Cluster cluster, bench::MeasureMachine(profile));
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
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "profile", "Measure this machine and write a file for `penstock plan --cluster`.");
  command
      ->add_option(
          "--cluster", options->cluster,
          "File (.toml) whose key devices in section [cluster] gives the number of devices")
      ->option_text("FILE");
  command
      ->add_option("--devices", options->devices,
                   "Number of devices, with one thread each; overrides --cluster (one per core)")
      ->option_text("N")
      ->check(AtLeast(1));
  command->add_option("-o,--output", options->output, "Write the description to this file (.toml)")
      ->option_text("FILE")
      ->required();
  command->add_flag("--json", options->is_json,
                    "Print one JSON object: {\"devices\", \"links\", \"seconds\"}");
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return Profile(environment, *options); };
  });
}

}  // namespace penstock::cli
