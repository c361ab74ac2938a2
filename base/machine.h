// Properties of this machine: host name, usable cores, memory.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_BASE_MACHINE_H_
#define PENSTOCK_BASE_MACHINE_H_

#include <cstdint>
#include <string>

namespace penstock {

std::string HostName();

// Cores that this process may use: those of its affinity mask, or fewer where its control group
// or a parent of it limits their share of time (base/process_cores.h). At least 1.
int UsableCores();

// All cores of the machine that are online. At least 1.
int MachineCores();

// All of its memory; the largest number where the system does not say.
uint64_t MachineMemoryBytes();

// Memory of this process that is resident; 0 where the system does not say.
uint64_t ResidentBytes();

}  // namespace penstock

#endif  // PENSTOCK_BASE_MACHINE_H_
