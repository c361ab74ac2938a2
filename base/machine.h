// What this machine is.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_BASE_MACHINE_H_
#define PENSTOCK_BASE_MACHINE_H_

#include <cstdint>
#include <string>

namespace penstock {

std::string HostName();

// All of its memory; the largest number where the system does not say.
uint64_t MachineMemoryBytes();

}  // namespace penstock

#endif  // PENSTOCK_BASE_MACHINE_H_
