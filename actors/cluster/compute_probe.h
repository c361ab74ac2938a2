// How fast this host computes just now, to find hosts that are slower than the others: not the rate
// of any kernel, but one that suffers from what makes a host slow, such as a clock that is held
// down, other work on its cores, or a limit of processor time.
//
// Thread rule: any thread, which blocks for 0.4 s.

#ifndef PENSTOCK_ACTORS_CLUSTER_COMPUTE_PROBE_H_
#define PENSTOCK_ACTORS_CLUSTER_COMPUTE_PROBE_H_

namespace penstock::actors {

// Floating-point operations a second of so many threads together.
double MeasureComputeRate(int num_threads);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_COMPUTE_PROBE_H_
