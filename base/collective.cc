#include "base/collective.h"

#include <numeric>

namespace penstock {
namespace {

int64_t Total(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

}  // namespace

std::string_view Name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kPermute:
      return "permute";
  }
  return "unknown";
}

std::string_view Name(CollectiveAlgorithm algorithm) {
  switch (algorithm) {
    case CollectiveAlgorithm::kDirect:
      return "direct";
    case CollectiveAlgorithm::kRing:
      return "ring";
    case CollectiveAlgorithm::kHierarchical:
      return "hierarchical";
  }
  return "unknown";
}

int64_t InputCount(const CollectiveSpec& spec, int rank) {
  const int n = static_cast<int>(spec.devices.size());
  switch (spec.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
      return Total(spec.counts);
    case CollectiveKind::kAllGather:
    case CollectiveKind::kPermute:
      return spec.counts[rank];
    case CollectiveKind::kAllToAll:
      return std::accumulate(spec.counts.begin() + rank * n, spec.counts.begin() + (rank + 1) * n,
                             int64_t{0});
    case CollectiveKind::kBroadcast:
      return spec.counts[0];
  }
  return 0;
}

int64_t OutputCount(const CollectiveSpec& spec, int rank) {
  const int n = static_cast<int>(spec.devices.size());
  switch (spec.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kAllGather:
      return Total(spec.counts);
    case CollectiveKind::kReduceScatter:
      return spec.counts[rank];
    case CollectiveKind::kAllToAll: {
      int64_t count = 0;
      for (int source = 0; source < n; ++source) count += spec.counts[source * n + rank];
      return count;
    }
    case CollectiveKind::kBroadcast:
      return spec.counts[0];
    case CollectiveKind::kPermute:
      for (int source = 0; source < n; ++source) {
        if (static_cast<int>(spec.peers[source]) == rank) return spec.counts[source];
      }
      return 0;
  }
  return 0;
}

}  // namespace penstock
