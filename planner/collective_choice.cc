#include "planner/collective_choice.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>

namespace penstock::planner {
namespace {

// The ways of the table's columns; of those that are equally good the first is taken.
constexpr CollectiveChoice kWays[] = {
    {CollectiveAlgorithm::kDirect, 256 << 10},
    {CollectiveAlgorithm::kDirect, 1 << 20},
    {CollectiveAlgorithm::kRing, 256 << 10},
    {CollectiveAlgorithm::kRing, 1 << 20},
};
constexpr size_t kNumWays = std::size(kWays);

// Slower by less than this is the machine's noise.
constexpr double kTolerance = 1.08;

struct Row {
  CollectiveKind kind;
  int group_size;
  int64_t num_bytes;                // what a rank brings
  std::array<double, kNumWays> us;  // 0: the same as in shorter chunks, a piece being no longer
};

// The least of two runs (of four, where two processes have 4 MiB or more), between processes of one
// host with two cores, of
//   penstock bench collectives --filter '/(direct|ring)/'
constexpr Row kRows[] = {
    {CollectiveKind::kAllReduce, 2, 64 << 10, {19, 0, 19, 0}},
    {CollectiveKind::kAllReduce, 2, 256 << 10, {34, 0, 34, 0}},
    {CollectiveKind::kAllReduce, 2, 1024 << 10, {115, 114, 115, 113}},
    {CollectiveKind::kAllReduce, 2, 4096 << 10, {417, 318, 387, 314}},
    {CollectiveKind::kAllReduce, 2, 16384 << 10, {1537, 1368, 1466, 1597}},
    {CollectiveKind::kAllReduce, 2, 65536 << 10, {10119, 9756, 10630, 10379}},
    {CollectiveKind::kAllReduce, 4, 64 << 10, {48, 0, 65, 0}},
    {CollectiveKind::kAllReduce, 4, 256 << 10, {87, 0, 123, 0}},
    {CollectiveKind::kAllReduce, 4, 1024 << 10, {289, 0, 356, 0}},
    {CollectiveKind::kAllReduce, 4, 4096 << 10, {991, 965, 1258, 1240}},
    {CollectiveKind::kAllReduce, 4, 16384 << 10, {4825, 4410, 5936, 5503}},
    {CollectiveKind::kAllReduce, 4, 65536 << 10, {27016, 28093, 32959, 35242}},
    {CollectiveKind::kReduceScatter, 2, 64 << 10, {8.2, 0, 8.2, 0}},
    {CollectiveKind::kReduceScatter, 2, 256 << 10, {13, 0, 13, 0}},
    {CollectiveKind::kReduceScatter, 2, 1024 << 10, {32, 32, 34, 32}},
    {CollectiveKind::kReduceScatter, 2, 4096 << 10, {234, 229, 231, 228}},
    {CollectiveKind::kReduceScatter, 2, 16384 << 10, {1018, 981, 1014, 994}},
    {CollectiveKind::kReduceScatter, 2, 65536 << 10, {7659, 7526, 7652, 9799}},
    {CollectiveKind::kReduceScatter, 4, 64 << 10, {25, 0, 52, 0}},
    {CollectiveKind::kReduceScatter, 4, 256 << 10, {39, 0, 101, 0}},
    {CollectiveKind::kReduceScatter, 4, 1024 << 10, {120, 0, 395, 0}},
    {CollectiveKind::kReduceScatter, 4, 4096 << 10, {479, 468, 1521, 1729}},
    {CollectiveKind::kReduceScatter, 4, 16384 << 10, {2891, 2618, 7245, 8962}},
    {CollectiveKind::kReduceScatter, 4, 65536 << 10, {15932, 18197, 31166, 35725}},
    {CollectiveKind::kAllGather, 2, 64 << 10, {8.5, 0, 8.6, 0}},
    {CollectiveKind::kAllGather, 2, 256 << 10, {18, 0, 18, 0}},
    {CollectiveKind::kAllGather, 2, 1024 << 10, {130, 127, 129, 128}},
    {CollectiveKind::kAllGather, 2, 4096 << 10, {679, 580, 652, 566}},
    {CollectiveKind::kAllGather, 2, 16384 << 10, {3468, 3577, 3488, 3423}},
    {CollectiveKind::kAllGather, 2, 65536 << 10, {53770, 21889, 21494, 21539}},
    {CollectiveKind::kAllGather, 4, 64 << 10, {30, 0, 63, 0}},
    {CollectiveKind::kAllGather, 4, 256 << 10, {127, 0, 220, 0}},
    {CollectiveKind::kAllGather, 4, 1024 << 10, {555, 546, 726, 800}},
    {CollectiveKind::kAllGather, 4, 4096 << 10, {2582, 2371, 3525, 3197}},
    {CollectiveKind::kAllGather, 4, 16384 << 10, {17293, 17509, 22810, 21772}},
    {CollectiveKind::kAllGather, 4, 65536 << 10, {82855, 89684, 90970, 100586}},
    {CollectiveKind::kAllToAll, 2, 64 << 10, {7.2, 0, 0, 0}},
    {CollectiveKind::kAllToAll, 2, 256 << 10, {12, 0, 0, 0}},
    {CollectiveKind::kAllToAll, 2, 1024 << 10, {49, 47, 0, 0}},
    {CollectiveKind::kAllToAll, 2, 4096 << 10, {320, 311, 0, 0}},
    {CollectiveKind::kAllToAll, 2, 16384 << 10, {1425, 1353, 0, 0}},
    {CollectiveKind::kAllToAll, 2, 65536 << 10, {10476, 10446, 0, 0}},
    {CollectiveKind::kAllToAll, 4, 64 << 10, {20, 0, 0, 0}},
    {CollectiveKind::kAllToAll, 4, 256 << 10, {31, 0, 0, 0}},
    {CollectiveKind::kAllToAll, 4, 1024 << 10, {175, 0, 0, 0}},
    {CollectiveKind::kAllToAll, 4, 4096 << 10, {682, 674, 0, 0}},
    {CollectiveKind::kAllToAll, 4, 16384 << 10, {4049, 3836, 0, 0}},
    {CollectiveKind::kAllToAll, 4, 65536 << 10, {20734, 20274, 0, 0}},
};

// Permutes are measured as what they are, a message each way; a broadcast as a gather.
CollectiveKind MeasuredKind(CollectiveKind kind) {
  if (kind == CollectiveKind::kPermute) return CollectiveKind::kAllToAll;
  if (kind == CollectiveKind::kBroadcast) return CollectiveKind::kAllGather;
  return kind;
}

// The row whose size is nearest in ratio, of the smallest groups that are large enough, or else of
// the largest.
const Row& FindRow(CollectiveKind kind, int group_size, int64_t num_bytes) {
  const Row* found = nullptr;
  for (const Row& row : kRows) {
    if (row.kind != kind) continue;
    const bool is_first = found == nullptr;
    const bool fits_better =
        !is_first && found->group_size < group_size && row.group_size > found->group_size;
    // Rows of a group are in the order of size: past the geometric middle the next is nearer.
    const bool is_nearer =
        !is_first && row.group_size == found->group_size &&
        static_cast<double>(num_bytes) * static_cast<double>(num_bytes) >=
            static_cast<double>(found->num_bytes) * static_cast<double>(row.num_bytes);
    if (is_first || fits_better || is_nearer) found = &row;
  }
  return *found;
}

}  // namespace

CollectiveChoice ChooseCollective(CollectiveKind kind, int group_size, int64_t num_bytes) {
  const Row& row = FindRow(MeasuredKind(kind), group_size, num_bytes);
  double best = row.us[0];
  for (const double us : row.us) {
    if (us > 0) best = std::min(best, us);
  }
  size_t way = 0;
  while (row.us[way] == 0 || row.us[way] > best * kTolerance) ++way;
  return kWays[way];
}

void ChooseCollective(CollectiveSpec* spec) {
  int64_t most = 0;
  const int n = static_cast<int>(spec->devices.size());
  for (int rank = 0; rank < n; ++rank) most = std::max(most, InputCount(*spec, rank));
  const CollectiveChoice choice =
      ChooseCollective(spec->kind, n, most * static_cast<int64_t>(ByteSize(spec->dtype)));
  spec->algorithm = choice.algorithm;
  spec->chunk_bytes = choice.chunk_bytes;
}

}  // namespace penstock::planner
