// What the nodes of a cluster have measured of themselves and of the links between them.
//
// Thread rule: values.

#ifndef PENSTOCK_ACTORS_CLUSTER_CLUSTER_FIGURES_H_
#define PENSTOCK_ACTORS_CLUSTER_CLUSTER_FIGURES_H_

#include <cstdint>
#include <vector>

namespace penstock::actors {

// How fast the hosts of a cluster compute and exchange data, as measured.
struct ClusterFigures {
  // Between two ranks.
  struct Link {
    uint32_t a = 0;          // the lower rank
    uint32_t b = 0;          // the higher one
    double bytes_per_s = 0;  // of long messages
    double latency_s = 0;    // of short ones
  };

  std::vector<double>
      flops_per_s;          // of each rank's host; to compare with the others (compute_probe.h)
  std::vector<Link> links;  // of each two ranks
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_CLUSTER_FIGURES_H_
