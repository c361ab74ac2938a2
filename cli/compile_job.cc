#include "cli/compile_job.h"

#include <utility>

#include "cli/device_kinds.h"
#include "cli/host_layout.h"
#include "cli/job_machine.h"

#include "base/status_macros.h"

namespace penstock::cli {
namespace {

// The hosts for which collectives are chosen: the job's, or the innermost groups of its cluster.
HostDevices HostsToPlanFor(const Job& job, const JobGraph& graph) {
  const bool has_hosts =
      job.locations.contains("cluster.hosts") || job.locations.contains("cluster.host");
  if (has_hosts || job.cluster.file.empty() || !graph.machine.has_value()) {
    return HostDevicesOf(job, graph.num_devices).value_or(HostDevices());
  }
  const planner::Cluster& cluster = graph.machine->cluster;
  HostDevices hosts;
  for (int64_t device = 0; device < graph.num_devices; ++device) {
    const bool is_new = device == 0 || cluster.num_levels() == 0 ||
                        cluster.GroupOf(device, 0) != cluster.GroupOf(device - 1, 0);
    if (is_new) hosts.push_back(0);
    ++hosts.back();
  }
  return hosts;
}

}  // namespace

CompileSettings SettingsOf(const Job& job, const JobGraph& graph) {
  return {.policy = graph.policy,
          .policies = graph.policies,
          .strategy = graph.strategy,
          .devices = DeviceListOf(job, graph.num_devices).value_or(DeviceList()),
          .num_threads = ThreadsOf(job, graph.num_devices),
          .chunks_per_group = graph.chunks_per_group,
          .placement = graph.placement,
          .optimizer_on_host = graph.optimizer_on_host,
          .device_groups = graph.device_groups,
          .split_weight_gradients = job.parallel.split_backward,
          .fuse_epilogues = job.parallel.fuse_epilogues,
          .host_devices = HostsToPlanFor(job, graph),
          .program = graph.settings,
          .machine = graph.machine,
          .precision = graph.model.precision,
          .sums_in_f32 = graph.model.sums_in_f32,
          .residuals_in_f32 = graph.model.residuals_in_f32};
}

absl::StatusOr<planner::FoldedPlan> CompileFoldedGraph(const Registries& registries,
                                                       graph::Graph graph,
                                                       const CompileSettings& settings) {
  planner::CompileOptions options;
  options.policy = settings.policy;
  options.policies = &settings.policies;
  ASSIGN_OR_RETURN(options.kernels_of,
                   TraitsOf(registries, settings.devices, static_cast<int>(settings.num_threads)));
  if (settings.fuse_epilogues.value_or(settings.devices.Has("cuda"))) {
    options.fuses_epilogues = [&settings](uint32_t first, uint32_t count) {
      return settings.fuse_epilogues.has_value() ||
             settings.devices.Count("cuda", first, count) > 0;
    };
  }
  options.threads_per_device = static_cast<uint32_t>(settings.num_threads);
  options.strategy = settings.strategy;
  options.settings = settings.program;
  options.host_devices = settings.host_devices;
  options.chunks_per_group = settings.chunks_per_group;
  options.placement = settings.placement;
  options.optimizer_on_host = settings.optimizer_on_host;
  options.device_groups = settings.device_groups;
  options.split_weight_gradients = settings.split_weight_gradients;
  options.passes = settings.passes;
  options.precision = settings.precision;
  options.sums_in_f32 = settings.sums_in_f32;
  options.residuals_in_f32 = settings.residuals_in_f32;
  if (settings.machine.has_value()) options.machine = &*settings.machine;
  options.estimate = settings.estimate;
  return planner::CompileFolded(registries.ops, std::move(graph), options);
}

absl::StatusOr<planner::Plan> CompileGraph(const Registries& registries, graph::Graph graph,
                                           const CompileSettings& settings) {
  ASSIGN_OR_RETURN(const planner::FoldedPlan folded,
                   CompileFoldedGraph(registries, std::move(graph), settings));
  return planner::ExpandPlan(folded);
}

}  // namespace penstock::cli
