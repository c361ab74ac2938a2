// The processes of a job on this host, for the commands that take --procs.
//
// Thread rule: one thread.

#ifndef PENSTOCK_CLI_PROCESSES_H_
#define PENSTOCK_CLI_PROCESSES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/environment.h"

#include "actors/cluster/cluster.h"
#include "actors/trace/critical_path.h"

namespace penstock::cli {

// Starts `count` nodes of this program, pinned to cores, or where `listen` is an address waits for
// as many to join there. They will run a plan of `num_devices` devices, with so many of them each
// as `devices` says, or without it as equal a number as can be. Each node that joins is reported;
// what nodes print comes out with "[rank host] " before each line. `on_listening` is told the
// address once nodes can join there.
absl::StatusOr<std::unique_ptr<actors::Cluster>> StartProcesses(
    const Environment& environment, int64_t count, int64_t num_devices, const std::string& listen,
    std::vector<uint32_t> devices = {},
    std::function<void(const std::string& address)> on_listening = nullptr);

// What a user should know of how `nodes`, by rank, lie on their hosts, a line each. `host_devices`
// are the devices of each host that the collectives were chosen for; empty: not known.
std::string PlacementNotes(const std::vector<actors::NodeDescription>& nodes,
                           const std::vector<uint32_t>& host_devices);

// "4 devices share 2 cores: ...", where the devices of a host have fewer cores than threads; empty
// otherwise. `nodes` by rank; without any, all devices are in this process.
std::string CrowdingNote(const std::vector<actors::NodeDescription>& nodes, int64_t num_devices,
                         int64_t threads_per_device);

// Which devices of the job share cores: those of a process, or of all processes of a host that has
// fewer cores than they use together. Arguments as above.
actors::SharedCores CoresOfDevices(const std::vector<actors::NodeDescription>& nodes,
                                   int64_t num_devices, int64_t threads_per_device);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_PROCESSES_H_
