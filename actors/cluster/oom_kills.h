// Whether the kernel's out-of-memory killer may have ended a process of this host.
//
// Thread rule: pure functions, but that they read /proc.

#ifndef PENSTOCK_ACTORS_CLUSTER_OOM_KILLS_H_
#define PENSTOCK_ACTORS_CLUSTER_OOM_KILLS_H_

#include <cstdint>
#include <string>

namespace penstock::actors {

// Processes that the kernel has killed for lack of memory, of the host or of a control group, since
// the host started; 0 where the kernel does not tell.
int64_t OutOfMemoryKills();

// Whether a process, which has ended with `wait_status`, was probably killed by it. `kills_before`:
// OutOfMemoryKills() when the process started.
bool IsProbablyOutOfMemory(int wait_status, int64_t kills_before);

// ", probably ...", after "was killed by signal 9".
inline constexpr char kProbablyOutOfMemory[] =
    ", probably for lack of memory: the kernel's out-of-memory killer has acted since it started";

// A shell command that runs `command`, and ends with its status. If signal 9 has ended it while
// OutOfMemoryKills has grown, it prints OutOfMemoryLine on the standard error, as a line of its
// own.
std::string WatchedForMemory(const std::string& command);
std::string OutOfMemoryLine();

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_OOM_KILLS_H_
