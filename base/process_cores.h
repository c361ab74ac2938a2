// The cores that processes of one host may use, each by itself and together.
//
// A process may use the processors of its affinity mask, and as much time of them as the quotas of
// its control group and of that group's parents allow. Masks may overlap, and a quota counts once
// for all processes in its group, so what processes may use together is less than the sum of what
// each may use.
//
// Example: processes A and B may use processors 0 and 1, and C may use processors 2 and 3, where B
// and C are in a group with a quota of one core. A and B can use 2 cores together, B and C 1, and
// all three 3: A those two, and B or C what the quota allows.
//
// Thread rule: values and pure functions; CoresOfThisProcess reads files (a millisecond).

#ifndef PENSTOCK_BASE_PROCESS_CORES_H_
#define PENSTOCK_BASE_PROCESS_CORES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace penstock {

// A limit of the time that the processes of a control group may use together.
struct CoreQuota {
  std::string group;     // the same for all processes of the host that are in it, and for no other
  double num_cores = 0;  // cores' worth of time
  friend bool operator==(const CoreQuota&, const CoreQuota&) = default;
};

// What one process may use: only these processors, and no more time than each of the quotas.
struct ProcessCores {
  std::vector<uint32_t> processors;  // of the affinity mask, ascending
  std::vector<CoreQuota> quotas;     // of the process's group and of its parents, innermost first
  friend bool operator==(const ProcessCores&, const ProcessCores&) = default;
};

// Of the calling thread's affinity mask and the process's control groups, v1 or v2.
ProcessCores CoresOfThisProcess();

// The cores that the processes, all of one host, can use at once. A part of a core counts as one.
// At least 1.
int CountCores(absl::Span<const ProcessCores> processes);

// Which of the processes, all of one host, compete for cores: those whose masks overlap, and those
// in a group whose quota is smaller than what their masks have together. Returns the number of each
// process's set; sets are numbered from 0 in the order of their first processes.
std::vector<uint32_t> FindCoreSharers(absl::Span<const ProcessCores> processes);

}  // namespace penstock

#endif  // PENSTOCK_BASE_PROCESS_CORES_H_
