#include "cli/join_job.h"

#include <cstdio>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "cli/device_kinds.h"
#include "cli/node_log.h"
#include "cli/status_sockets.h"

#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {

namespace {

void KeepLog(const Environment& environment, const std::string& folder, int64_t rank) {
  const absl::Status kept = KeepOutput(LogPath(folder, HostName(), rank));
  if (kept.ok()) return;
  environment.err << "note: no log of this node is kept: " << ToStd(kept.message()) << std::endl;
}

}  // namespace

absl::Status JoinJob(const Environment& environment, actors::NodeOptions node,
                     std::string_view devices, bool is_quiet, const std::string& log_folder) {
  // What libraries print through stdio goes out line by line, so that a node that is killed has
  // told all that it had printed.
  (void)setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!log_folder.empty()) {
    if (node.rank >= 0) {
      KeepLog(environment, log_folder, node.rank);
    } else {
      node.on_joined = [&environment, log_folder, next = std::move(node.on_joined)](
                           const actors::NodeDescription& description) {
        KeepLog(environment, log_folder, description.rank);
        if (next) next(description);
      };
    }
  }
  const absl::StatusOr<DeviceList> list = DeviceList::Parse(devices);
  if (!list.ok()) {
    return absl::Status(list.status().code(),
                        StrCat("--device ", devices, ": ", ToStd(list.status().message())));
  }
  node.kernels = &environment.registries.kernels;
  ASSIGN_OR_RETURN(node.kernels_by_kind, KernelsOf(environment.registries, *list));
  ASSIGN_OR_RETURN(const DeviceSource source, FindNodeDevices(*list));
  node.create_device = source.create;
  node.communicators = source.communicators;
  node.no_communicators = source.no_communicators;
  node.max_memory_bytes = source.max_memory_bytes;
  node.policies = &environment.registries.policies;
  if (!is_quiet) {
    node.on_joined = [&err = environment.err, next = std::move(node.on_joined)](
                         const actors::NodeDescription& description) {
      if (next) next(description);
      err << StrCat("joined as ", ToString(description), "\n") << std::flush;
    };
    node.on_no_status_socket = [&err = environment.err](const absl::Status& status) {
      err << "note: `penstock stack` and `penstock top` will not find this node: "
          << ToStd(status.message()) << std::endl;
    };
  }
  // On its own host, `penstock run` answers itself.
  const bool is_beside_run = node.coordinator.starts_with("unix");
  if (!is_beside_run || !is_quiet) {
    const absl::StatusOr<std::string> socket = NewStatusSocket("node");
    if (socket.ok()) {
      node.status_socket = *socket;
    } else if (node.on_no_status_socket) {
      node.on_no_status_socket(socket.status());
    }
  }
  bool is_to_rejoin = false;
  if (node.on_rejoin) {
    node.on_rejoin = [&is_to_rejoin, next = std::move(node.on_rejoin)] {
      is_to_rejoin = true;
      next();
    };
  }
  RETURN_IF_ERROR(actors::RunNode(node));
  if (is_quiet) return absl::OkStatus();
  environment.err << (is_to_rejoin ? "the hosts are measured; joining again" : "the job is done")
                  << std::endl;
  return absl::OkStatus();
}

}  // namespace penstock::cli
