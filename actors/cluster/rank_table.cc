#include "actors/cluster/rank_table.h"

#include <algorithm>
#include <utility>

#include "actors/cluster/device_range.h"
#include "base/strings.h"

namespace penstock::actors {

RankTable::RankTable(uint32_t num_ranks, uint32_t num_devices,
                     std::vector<uint32_t> process_devices)
    : num_devices_(num_devices), process_devices_(std::move(process_devices)), entries_(num_ranks) {
  for (uint32_t rank = 0; rank < num_ranks; ++rank) entries_[rank].node.rank = rank;
}

void RankTable::Reserve(uint32_t rank, int pid, const std::string& host) {
  Entry& entry = entries_[rank];
  entry.is_reserved = true;
  entry.node.pid = pid;
  entry.node.host = host;
}

absl::StatusOr<uint32_t> RankTable::Join(int wanted, NodeDescription node) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [wanted](const Entry& entry) {
    return entry.is_free() &&
           (wanted == static_cast<int>(entry.node.rank) || (wanted < 0 && !entry.is_reserved));
  });
  if (found == entries_.end()) return absl::ResourceExhaustedError(WhyNoRank(wanted));
  const DeviceRange devices =
      DevicesOfRank(found->node.rank, size(), num_devices_, process_devices_);
  node.rank = found->node.rank;
  node.first_device = devices.first;
  node.num_devices = devices.count;
  if (found->is_reserved && found->node.host != node.host) node.given_host = found->node.host;
  found->node = std::move(node);
  found->has_joined = true;
  return found->node.rank;
}

std::string RankTable::WhyNoRank(int wanted) const {
  if (wanted >= static_cast<int>(entries_.size())) {
    return StrCat("rank ", wanted, " is out of range: the job has ranks 0 to ",
                  entries_.size() - 1);
  }
  std::vector<std::string> free;
  for (const Entry& entry : entries_) {
    if (entry.is_free() && !entry.is_reserved) free.push_back(StrCat(entry.node.rank));
  }
  const std::string all_joined =
      entries_.size() == 1 ? std::string("the only node of the job has joined")
                           : StrCat("all ", entries_.size(), " nodes of the job have joined");
  if (wanted < 0) return all_joined;
  return StrCat("rank ", wanted, " is taken by ", NameOf(static_cast<uint32_t>(wanted)), "; ",
                free.empty() ? all_joined
                             : StrCat("ranks that are free: ", StrJoin(free, ", "),
                                      " (without --rank a node takes the first)"));
}

bool RankTable::have_all_joined() const {
  return std::all_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return entry.has_joined; });
}

std::vector<uint32_t> RankTable::missing() const {
  std::vector<uint32_t> ranks;
  for (const Entry& entry : entries_) {
    if (!entry.has_joined) ranks.push_back(entry.node.rank);
  }
  return ranks;
}

std::vector<NodeDescription> RankTable::nodes() const {
  std::vector<NodeDescription> nodes;
  for (const Entry& entry : entries_) nodes.push_back(entry.node);
  return nodes;
}

}  // namespace penstock::actors
