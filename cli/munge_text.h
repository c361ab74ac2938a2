// Text that crosses the network of a cluster as a credential of munge: encrypted with the key that
// the munge daemons of its hosts share, and opened for the same user alone. Slurm needs munge, so
// its hosts have it.
//
// Thread rule: any thread, which blocks for a call of the program `munge` or `unmunge`.

#ifndef PENSTOCK_CLI_MUNGE_TEXT_H_
#define PENSTOCK_CLI_MUNGE_TEXT_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "actors/cluster/node_place.h"

namespace penstock::cli {

// A line that each host can open once, within an hour. kNotFound where there is no `munge`.
absl::StatusOr<std::string> SealWithMunge(const std::string& text);

bool IsSealedWithMunge(std::string_view line);
absl::StatusOr<std::string> OpenWithMunge(const std::string& line);

// How the job's key travels to nodes at these places: sealed through srun and mpirun, inside an
// allocation of Slurm where munge works. Null: as it is, through ssh, or not at all.
std::function<absl::StatusOr<std::string>(const std::string& key)> KeySealFor(
    const std::vector<actors::NodePlace>& places);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_MUNGE_TEXT_H_
