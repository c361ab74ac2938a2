// Has signals and a time limit end a start of processes, and says who was missing.
//
//   InterruptibleStart start(interrupts, "while the hosts were probed", places);
//   auto cluster = actors::Cluster::Start({.start = start.cluster_start(), ...});
//   start.SetCluster(**cluster);  // until the steps run, it is what they end
//
// Thread rule: one thread. The interrupts, and the cluster after SetCluster, outlive it.

#ifndef PENSTOCK_CLI_INTERRUPTIBLE_START_H_
#define PENSTOCK_CLI_INTERRUPTIBLE_START_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/interrupts.h"

#include "actors/cluster/cluster.h"
#include "actors/cluster/cluster_start.h"
#include "actors/cluster/node_place.h"

namespace penstock::cli {

class InterruptibleStart {
 public:
  // `places`: of the job's ranks. `ranks_of_node`: so many ranks of the job that each node which is
  // started stands for.
  InterruptibleStart(Interrupts& interrupts, std::string where,
                     std::vector<actors::NodePlace> places, uint32_t ranks_of_node = 1);
  ~InterruptibleStart() { interrupts_.SetStart(std::nullopt); }
  InterruptibleStart(const InterruptibleStart&) = delete;
  InterruptibleStart& operator=(const InterruptibleStart&) = delete;

  // For ClusterOptions.
  actors::ClusterStart* cluster_start() { return &start_; }

  // All nodes have joined: from now on this is killed instead, so that its calls return
  // kCancelled.
  void SetCluster(actors::Cluster& cluster);

  // `status`, or in place of what an interrupt has caused, that.
  absl::Status WithInterrupt(absl::Status status) const;

 private:
  Interrupts& interrupts_;
  const std::string where_;
  actors::ClusterStart start_;
};

// "node2 (ranks 2-3) and node3 (rank 4)": where the ranks are, as far as their hosts are known.
std::string DescribeRanks(const std::vector<actors::NodePlace>& places,
                          const std::vector<uint32_t>& ranks);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_INTERRUPTIBLE_START_H_
