// Where the jobs of a user on this host tell what they do: files in a folder that only the user may
// enter, $XDG_RUNTIME_DIR/penstock or else /tmp/penstock-UID.
//
// Thread rule: pure functions, but for the files.

#ifndef PENSTOCK_CLI_STATUS_SOCKETS_H_
#define PENSTOCK_CLI_STATUS_SOCKETS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "actors/cluster/job_status.h"
#include "actors/cluster/status_client.h"

namespace penstock::cli {

// Makes the folder where it is not there. An error where it is of another user, or others may enter
// it.
absl::StatusOr<std::string> StatusFolder();

// A path for the socket of this process, with no file yet. `role` is "run" or "node".
absl::StatusOr<std::string> NewStatusSocket(std::string_view role);

// The sockets in the folder where somebody listens, in order; those that a process which was killed
// left behind are removed.
absl::StatusOr<std::vector<std::string>> FindStatusSockets();

// What a user may give: the path of a socket, "unix:PATH", the process id of `penstock run` or
// `penstock node` on this host, the address of a coordinator (with the key of PENSTOCK_KEY or
// `key_file`), or nothing, for the only job on this host. `client` asks in the last case which
// sockets are of the same job.
absl::StatusOr<actors::StatusAddress> FindJob(const std::string& text, const std::string& key_file,
                                              actors::StatusClient& client);

// What the commands say of ADDRESS.
inline constexpr char kJobAddressHelp[] =
    "ADDRESS is the process id of the job on this host, or of one of its nodes where the job runs "
    "on "
    "another host, the path of a status socket, or the address of a coordinator as in `penstock "
    "node "
    "--join`, with the job's key in PENSTOCK_KEY.";

// Asks the job. kDeadlineExceeded, which says whether its process is stopped: there is no answer in
// a few seconds, longer than a coordinator waits for nodes that do not answer. kAborted: a node
// answers that the coordinator does not.
absl::StatusOr<actors::JobStatus> AskJob(const actors::StatusAddress& address,
                                         actors::StatusClient& client);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_STATUS_SOCKETS_H_
