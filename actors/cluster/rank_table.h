// The ranks of a job and the nodes that have them. A node joins with the rank that it asks for, or
// with the first free one. A rank that is reserved for a process that the coordinator started is
// given only to a node that asks for it. The rank of a lost node is not given again.
//
// Thread rule: external synchronisation.

#ifndef PENSTOCK_ACTORS_CLUSTER_RANK_TABLE_H_
#define PENSTOCK_ACTORS_CLUSTER_RANK_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "actors/cluster/node_description.h"

namespace penstock::actors {

class RankTable {
 public:
  // For a plan with `num_devices`; 0: not known yet. `process_devices`: see DevicesOfRank.
  RankTable(uint32_t num_ranks, uint32_t num_devices, std::vector<uint32_t> process_devices = {});

  uint32_t size() const { return static_cast<uint32_t>(entries_.size()); }

  // For the process `pid` on `host`, which messages call so when the node has joined, too.
  void Reserve(uint32_t rank, int pid, const std::string& host);
  // Returns the rank of a node that asks for rank `wanted`, or for any with -1. kResourceExhausted
  // says why it gets none. `node`'s rank and devices are set here.
  absl::StatusOr<uint32_t> Join(int wanted, NodeDescription node);
  void MarkLost(uint32_t rank) { entries_[rank].is_lost = true; }

  bool has_joined(uint32_t rank) const { return entries_[rank].has_joined; }
  bool is_lost(uint32_t rank) const { return entries_[rank].is_lost; }
  bool have_all_joined() const;
  // The ranks that no node has joined with yet.
  std::vector<uint32_t> missing() const;

  const NodeDescription& node(uint32_t rank) const { return entries_[rank].node; }
  // By rank.
  std::vector<NodeDescription> nodes() const;
  std::string NameOf(uint32_t rank) const { return actors::NameOf(entries_[rank].node); }

 private:
  struct Entry {
    NodeDescription node;
    bool has_joined = false;
    bool is_lost = false;
    bool is_reserved = false;

    bool is_free() const { return !has_joined && !is_lost; }
  };

  std::string WhyNoRank(int wanted) const;

  const uint32_t num_devices_;
  const std::vector<uint32_t> process_devices_;
  std::vector<Entry> entries_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_RANK_TABLE_H_
