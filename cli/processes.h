// The processes of a job on this host, for the commands that take --procs.
//
// Thread rule: one thread.

#ifndef PENSTOCK_CLI_PROCESSES_H_
#define PENSTOCK_CLI_PROCESSES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/device_list.h"
#include "cli/environment.h"
#include "cli/job_key_option.h"
#include "cli/node_output.h"

#include "actors/cluster/cluster.h"
#include "actors/trace/critical_path.h"
#include "base/cpu_topology.h"

namespace penstock::cli {

// EX_UNAVAILABLE of sysexits.h: not all processes joined in time.
inline constexpr int kNoRendezvousStatus = 69;

struct ProcessOptions {
  int64_t count = 1;
  int64_t num_devices = 0;             // of the plan that will run; 0: not known
  std::vector<uint32_t> devices = {};  // of each process; empty: numbers as equal as can be
  DeviceList device_list = {};         // their kinds
  // Loaded by nodes as with --plugin; empty: none.
  std::string policy_library = {};
  // Where others start the nodes: the address where they join, and the file with the job's key.
  std::string listen = {};
  const JobKeyFile* key_file = nullptr;
  // Nodes that are started here run on cores of their own, or share one; see ClusterOptions.
  bool pin = true;
  CpuTopology::Sharing core_sharing = CpuTopology::Sharing::kNeighbours;
  // A node that does not answer for so long is lost.
  double node_timeout_s = 3.3;
  // Where nodes that are started here keep what they print, each on its host; empty: nowhere.
  std::string log_folder = {};
  // Takes what they print; null: it is printed, and not kept.
  std::shared_ptr<NodeOutput> output = {};
  // What nodes say where this process is lost (ClusterOptions).
  std::string resume_hint = {};
  // Answers what the job does; null: nobody does.
  std::shared_ptr<actors::StatusAnswers> status_answers = {};
  // See ClusterOptions.
  std::function<void(const absl::StatusOr<std::string>& communicators,
                     const std::string& why_not_messages)>
      on_collectives = {};
  // Told the address once nodes can join there.
  std::function<void(const std::string& address)> on_listening = {};
  // Ends the start from another thread; null: nobody does.
  actors::ClusterStart* start = nullptr;
};

// Prints to the environment, on a thread of its own.
std::shared_ptr<NodeOutput> PrintNodeOutput(const Environment& environment);

// Starts nodes of this program, or waits for nodes to join. Each that joins is reported; what nodes
// print comes out with "[rank host] " before each line. The command's exit status is 69
// (kNoRendezvousStatus) if some do not join in time.
absl::StatusOr<std::unique_ptr<actors::Cluster>> StartProcesses(const Environment& environment,
                                                                ProcessOptions processes);

// What a user should know of how `nodes`, by rank, lie on their hosts, a line each. `host_devices`
// are the devices of each host that the collectives were chosen for; empty: not known.
std::string PlacementNotes(const std::vector<actors::NodeDescription>& nodes,
                           const std::vector<uint32_t>& host_devices);

// "4 devices share 2 cores: ...", where devices have more threads than the cores that they share;
// empty otherwise. `nodes` by rank; without any, all devices are in this process.
std::string OversubscriptionNote(const std::vector<actors::NodeDescription>& nodes,
                                 int64_t num_devices, int64_t threads_per_device);

// Which devices of the job share cores: those of a process, or of all processes that use the same
// cores (actors/cluster/core_groups.h). Arguments as above.
actors::SharedCores CoresOfDevices(const std::vector<actors::NodeDescription>& nodes,
                                   int64_t num_devices, int64_t threads_per_device);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_PROCESSES_H_
