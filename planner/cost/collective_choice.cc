#include "planner/cost/collective_choice.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

#include "absl/container/flat_hash_set.h"

#include "base/half.h"
#include "planner/cost/default_collectives_internal.h"

namespace penstock::planner {
namespace {

// Slower by less than this is the machine's noise.
constexpr double kTolerance = 1.08;

// Permutes are measured as what they are, a message in each direction; a broadcast as a gather.
CollectiveKind MeasuredKind(CollectiveKind kind) {
  if (kind == CollectiveKind::kPermute) return CollectiveKind::kAllToAll;
  if (kind == CollectiveKind::kBroadcast) return CollectiveKind::kAllGather;
  return kind;
}

bool IsReduction(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter;
}

// Of the smallest groups that are large enough, or else of the largest; null if there is none.
const MeasuredCollective* FindMeasured(absl::Span<const MeasuredCollective> all,
                                       CollectiveKind kind, GroupSpread spread, int group_size) {
  const MeasuredCollective* found = nullptr;
  for (const MeasuredCollective& measured : all) {
    if (measured.kind != kind || measured.spread != spread) continue;
    const bool fits_better = found != nullptr && (found->num_ranks < group_size
                                                      ? measured.num_ranks > found->num_ranks
                                                      : measured.num_ranks >= group_size &&
                                                            measured.num_ranks < found->num_ranks);
    if (found == nullptr || fits_better) found = &measured;
  }
  return found;
}

// The times of the size that is nearest in ratio. Past the geometric middle the next is nearer.
const CollectiveTimes& NearestTimes(const MeasuredCollective& measured, int64_t num_bytes) {
  const CollectiveTimes* found = &measured.times[0];
  for (const CollectiveTimes& row : measured.times) {
    const bool is_nearer =
        static_cast<double>(num_bytes) * static_cast<double>(num_bytes) >=
        static_cast<double>(found->num_bytes) * static_cast<double>(row.num_bytes);
    if (is_nearer) found = &row;
  }
  return *found;
}

}  // namespace

absl::Span<const MeasuredCollective> DefaultCollectives() {
  // The text is part of the build and tested: it parses.
  static const auto* const all = new std::vector<MeasuredCollective>(
      ParseMeasuredCollectives(kDefaultCollectives, "default_collectives.toml")
          .value_or(std::vector<MeasuredCollective>()));
  return *all;
}

CollectiveVariant ChooseCollective(CollectiveKind kind, int group_size, int num_hosts,
                                   int64_t num_bytes, absl::Span<const MeasuredCollective> measured,
                                   DType dtype) {
  const GroupSpread spread = num_hosts == 1            ? GroupSpread::kOneHost
                             : num_hosts == group_size ? GroupSpread::kOneRankEach
                                                       : GroupSpread::kSeveralEach;
  const MeasuredCollective* found = FindMeasured(measured, MeasuredKind(kind), spread, group_size);
  if (found == nullptr) {
    found = FindMeasured(DefaultCollectives(), MeasuredKind(kind), spread, group_size);
  }
  if (found == nullptr) return {};
  const CollectiveTimes& row = NearestTimes(*found, num_bytes);
  const bool avoids_ring = IsReduction(kind) && IsHalf(dtype) && group_size > 2;
  const auto time_of = [&](size_t variant) {
    const bool is_left_out =
        row.us[variant] == 0 ||
        (avoids_ring && found->algorithms[variant].algorithm == CollectiveAlgorithm::kRing);
    return is_left_out ? std::numeric_limits<double>::infinity() : row.us[variant];
  };
  double best = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < row.us.size(); ++i) best = std::min(best, time_of(i));
  if (std::isinf(best)) return {};  // only rings were measured
  size_t variant = 0;
  while (time_of(variant) > best * kTolerance) ++variant;
  return found->algorithms[variant];
}

void ChooseCollective(const std::vector<uint32_t>& hosts,
                      absl::Span<const MeasuredCollective> measured, CollectiveSpec* spec) {
  int64_t most = 0;
  const int n = static_cast<int>(spec->devices.size());
  for (int rank = 0; rank < n; ++rank) most = std::max(most, InputCount(*spec, rank));
  const absl::flat_hash_set<uint32_t> different(hosts.begin(), hosts.end());
  const CollectiveVariant choice =
      ChooseCollective(spec->kind, n, static_cast<int>(different.size()),
                       most * static_cast<int64_t>(ByteSize(spec->dtype)), measured, spec->dtype);
  spec->algorithm = choice.algorithm;
  spec->chunk_bytes = choice.chunk_bytes;
  // A run numbers its messages: data too long for that travel in longer chunks.
  const int64_t total = std::accumulate(spec->counts.begin(), spec->counts.end(), int64_t{0}) *
                        static_cast<int64_t>(ByteSize(spec->dtype));
  const int64_t max_chunks = std::max<int64_t>(kMaxCollectiveMessages / (2 * int64_t{n}) - 1, 1);
  while (total / spec->chunk_bytes >= max_chunks) spec->chunk_bytes *= 2;
  spec->hosts.clear();
  if (choice.algorithm != CollectiveAlgorithm::kHierarchical) return;
  // Numbered as they occur: groups that lie on their hosts alike have the same spec.
  std::vector<uint32_t> seen;
  for (const uint32_t host : hosts) {
    const auto known = std::find(seen.begin(), seen.end(), host);
    spec->hosts.push_back(static_cast<uint32_t>(known - seen.begin()));
    if (known == seen.end()) seen.push_back(host);
  }
}

}  // namespace penstock::planner
