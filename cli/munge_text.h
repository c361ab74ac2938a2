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

// Makes a line of a text.
using KeySeal = std::function<absl::StatusOr<std::string>(const std::string& text)>;

// A line that can be opened within an hour. kNotFound where there is no `munge`.
absl::StatusOr<std::string> SealWithMunge(const std::string& text);

bool IsSealedWithMunge(std::string_view line);
// The text of a line that a process of this user has made. Processes of a host may open the same
// one. An error says why it cannot be opened.
absl::StatusOr<std::string> OpenWithMunge(const std::string& line);

// SealWithMunge, inside an allocation of Slurm where a text that it seals can be opened again; null
// elsewhere.
KeySeal SealOfAllocation();
// How the job's key travels to nodes at these places: through srun and mpirun as SealOfAllocation
// has it. Null: as it is, through ssh, or not at all.
KeySeal KeySealFor(const std::vector<actors::NodePlace>& places);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_MUNGE_TEXT_H_
