#include "base/collective.h"

#include <algorithm>
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

bool TensorsAddUp(const CollectiveSpec& spec) {
  if (spec.tensors.empty()) return true;
  if (spec.kind != CollectiveKind::kAllGather && spec.kind != CollectiveKind::kReduceScatter) {
    return false;
  }
  std::vector<int64_t> rest = spec.counts;
  for (const std::vector<int64_t>& counts : spec.tensors) {
    if (counts.size() != rest.size()) return false;
    for (size_t rank = 0; rank < rest.size(); ++rank) {
      if (counts[rank] < 0 || counts[rank] > rest[rank]) return false;
      rest[rank] -= counts[rank];
    }
  }
  return std::all_of(rest.begin(), rest.end(), [](int64_t count) { return count == 0; });
}

int64_t InputCount(const CollectiveSpec& spec, int rank, size_t tensor) {
  if (spec.tensors.empty()) return InputCount(spec, rank);
  const std::vector<int64_t>& counts = spec.tensors[tensor];
  return spec.kind == CollectiveKind::kAllGather ? counts[rank] : Total(counts);
}

int64_t OutputCount(const CollectiveSpec& spec, int rank, size_t tensor) {
  if (spec.tensors.empty()) return OutputCount(spec, rank);
  const std::vector<int64_t>& counts = spec.tensors[tensor];
  return spec.kind == CollectiveKind::kAllGather ? Total(counts) : counts[rank];
}

}  // namespace penstock
