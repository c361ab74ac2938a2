// What communication is predicted to take: a latency for every message and a time for every byte
// (the alpha-beta model; Thakur, Rabenseifner & Gropp, "Optimization of collective communication
// operations in MPICH", 2005).
//
// Every pair of devices has the same link, on whatever hosts they are; so a hierarchical collective
// takes what a direct one does. Sums that a reduction forms are part of the rate.
//
// Example: a direct all_reduce of 4 MiB between 4 devices. Each is sent 3 pieces of 1 MiB, folds
// them into its own and is sent 3 results: 6 times (a latency for each chunk of a piece + 1 MiB at
// the link's rate).
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_COST_COMMUNICATION_COST_H_
#define PENSTOCK_PLANNER_COST_COMMUNICATION_COST_H_

#include <cstdint>

#include "base/collective.h"

namespace penstock::planner {

// The defaults are what `penstock bench transport` measures between two processes of one host over
// shared memory: 8 bytes one way take 0.8 to 1 us, and 64 MiB pass at 7.3 to 8.3 GB/s. What fits a
// cache is faster.
struct LinkRates {
  double latency_s = 1e-6;   // of a message, however small
  double bytes_per_s = 8e9;  // that a process sends or receives
};

// A message from one device to another.
double TransferSeconds(uint64_t num_bytes, const LinkRates& rates);

// Until the slowest member of the group has its result. REQUIRES: the spec is complete.
double CollectiveSeconds(const CollectiveSpec& spec, const LinkRates& rates);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_COST_COMMUNICATION_COST_H_
