#include "cli/job_cluster.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/failure_report.h"
#include "cli/files.h"
#include "cli/host_layout.h"
#include "cli/job_policy.h"
#include "cli/processes.h"

#include "actors/checkpoint/checkpoint_folder.h"
#include "actors/cluster/socket_address.h"
#include "base/counted.h"
#include "base/cpu_topology.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

bool HasCheckpoint(const Job& job) {
  if (job.checkpoint.path.empty()) return false;
  const absl::StatusOr<std::vector<int64_t>> steps =
      actors::CheckpointFolder::Steps(job.checkpoint.path);
  return steps.ok() && !steps->empty();
}

// `is_certain`: there is a checkpoint.
std::string HintOf(const Environment& environment, const Job& job, bool is_certain) {
  std::error_code error;
  return ResumeHint(std::filesystem::absolute(job.checkpoint.path).string(), is_certain,
                    std::filesystem::current_path(error).string(), HostName(),
                    {.program = environment.called_as,
                     .arguments = environment.arguments,
                     .starter = environment.launch.starter,
                     .needs_variables = environment.launch.needs_variables});
}

}  // namespace

std::string ResumeHintNow(const Environment& environment, const Job& job) {
  return HasCheckpoint(job) ? HintOf(environment, job, /*is_certain=*/true) : "";
}

std::string ResumeHintOf(const Environment& environment, const Job& job) {
  return job.checkpoint.path.empty() ? "" : HintOf(environment, job, HasCheckpoint(job));
}

absl::StatusOr<std::unique_ptr<actors::Cluster>> StartJobCluster(
    const Environment& environment, std::ostream& notes, const RunOptions& options, const Job& job,
    const planner::Plan& plan, JobClusterParts parts) {
  const auto num_devices = static_cast<int64_t>(plan.devices.size());
  int64_t count = job.cluster.processes;
  if (count > num_devices) {
    notes << "note: the job has " << Counted(num_devices, "device") << ", so it starts "
          << num_devices << " of the " << count << " processes of cluster.processes" << std::endl;
    count = num_devices;
  }
  const std::vector<actors::NodePlace>& places = environment.launch.places;
  const bool is_elsewhere = !places.empty() && !places[0].through.empty();
  if (count == 1 && !options.listen.has_value() && !is_elsewhere) return nullptr;
  ASSIGN_OR_RETURN(std::vector<uint32_t> devices, ProcessDevicesOf(job, count, num_devices));
  // Where devices share cores, a stage that waits leaves its cores to the others: the devices of
  // one stage, which compute at the same time, have different ones.
  const bool stages_share_cores =
      plan.stages.size() > 1 && num_devices * plan.threads_per_device > UsableCores();
  ASSIGN_OR_RETURN(
      std::unique_ptr<actors::Cluster> cluster,
      StartProcesses(environment,
                     {.count = count,
                      .num_devices = num_devices,
                      .devices = std::move(devices),
                      .device_list = std::move(parts.devices),
                      .policy_library = PolicyLibraryOf(job, plan),
                      .listen = options.listen.value_or(""),
                      .key_file = parts.key_file,
                      .pin = !stages_share_cores || count == num_devices,
                      .core_sharing = stages_share_cores ? CpuTopology::Sharing::kRoundRobin
                                                         : CpuTopology::Sharing::kNeighbours,
                      .node_timeout_s = job.cluster.node_timeout,
                      .log_folder = options.log_folder,
                      .output = std::move(parts.output),
                      .resume_hint = ResumeHintOf(environment, job),
                      .status_answers = std::move(parts.status_answers),
                      .on_collectives = std::move(parts.on_collectives),
                      .on_listening =
                          [interrupts = parts.interrupts](const std::string& address) {
                            interrupts->RemoveAtExit(actors::FileOf(address));
                          },
                      .start = parts.start}));
  HostDevices hosts;  // that the plan is for, if that is known
  if (options.plan.empty() && !HasSuffix(options.file, ".plan")) {
    ASSIGN_OR_RETURN(hosts, HostDevicesOf(job, num_devices));
  }
  notes << PlacementNotes(cluster->nodes(), hosts) << std::flush;
  // Members print by themselves; where one fails, the error says where its log is.
  const bool is_of_members =
      std::any_of(places.begin(), places.end(), [](const auto& place) { return place.is_awaited; });
  if (!options.log_folder.empty() && !is_of_members) {
    notes << "logs: each process keeps what it prints in " << options.log_folder
          << "/HOST.RANK.log on its host" << std::endl;
  }
  return cluster;
}

}  // namespace penstock::cli
