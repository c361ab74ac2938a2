// The hosts that a job is launched on, from what users and schedulers say of them.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_LAUNCH_HOSTS_H_
#define PENSTOCK_CLI_LAUNCH_HOSTS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock::cli {

inline constexpr int64_t kMaxSlots = 65536;  // of all hosts together

struct HostSlots {
  std::string host;
  int64_t slots = 1;  // processes that it runs
  friend bool operator==(const HostSlots&, const HostSlots&) = default;
};

// "a,b:4,gpu[01-16]:2": hosts separated by commas, each with its slots, 1 where none are given.
// Ranges are those of Slurm's node lists. An IPv6 address stands in brackets. A host may come
// again, and has the slots of all its entries. Errors name the entry.
absl::StatusOr<std::vector<HostSlots>> ParseHosts(std::string_view text);

// A line a host, as OpenMPI and DeepSpeed have them: "HOST", "HOST slots=4", "HOST:4". As OpenMPI
// has it, slots may be called slot, cpu, cpus or count, spaces may surround '=', and "username=me"
// stands for me@HOST; max_slots and its other spellings are ignored, and so is what follows '#'.
// Errors begin with file:line:column.
absl::StatusOr<std::vector<HostSlots>> ParseHostFile(const std::string& file,
                                                     std::string_view text);

// The names that a Slurm node list stands for: "n[1-3,7],m0" is n1, n2, n3, n7, m0. Leading zeros
// are kept. At most kMaxSlots.
absl::StatusOr<std::vector<std::string>> ExpandNodeList(std::string_view text);

// SLURM_TASKS_PER_NODE: "2(x3),1" is 2, 2, 2, 1.
absl::StatusOr<std::vector<int64_t>> ParseTasksPerNode(std::string_view text);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_LAUNCH_HOSTS_H_
