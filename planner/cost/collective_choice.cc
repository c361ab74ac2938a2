#include "planner/cost/collective_choice.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <numeric>

#include "absl/container/flat_hash_set.h"

namespace penstock::planner {
namespace {

using enum CollectiveKind;

// The ways of the table's columns; of those that are equally good the first is taken.
constexpr CollectiveChoice kWays[] = {
    {CollectiveAlgorithm::kDirect, 256 << 10},       {CollectiveAlgorithm::kDirect, 1 << 20},
    {CollectiveAlgorithm::kRing, 256 << 10},         {CollectiveAlgorithm::kRing, 1 << 20},
    {CollectiveAlgorithm::kHierarchical, 256 << 10}, {CollectiveAlgorithm::kHierarchical, 1 << 20},
};
constexpr size_t kNumWays = std::size(kWays);

// Slower by less than this is the machine's noise.
constexpr double kTolerance = 1.08;

// How a group lies on its hosts. Only where several ranks share each of several hosts can a
// collective be hierarchical.
enum Spread : uint8_t { kOneHost, kOneRankEach, kSeveralEach };

struct Row {
  CollectiveKind kind;
  Spread spread;
  int group_size;
  int64_t num_bytes;  // what a rank brings
  // 0: not measured, or the same as in shorter chunks, a piece being no longer.
  std::array<double, kNumWays> us;
};

// On one host: the least of two runs (of four, where two processes have 4 MiB or more), between
// processes of one host with two cores, of
//   penstock bench collectives --filter '/(direct|ring)/'
// On several: the least of two runs (of one, up to 16 KiB), between network namespaces of that host
// with links of 8 Gbit/s (bench/hosts); processes of one namespace share memory, those of several
// have tcp.
constexpr Row kRows[] = {
    {kAllReduce, kOneHost, 2, 64 << 10, {19, 0, 19, 0}},
    {kAllReduce, kOneHost, 2, 256 << 10, {34, 0, 34, 0}},
    {kAllReduce, kOneHost, 2, 1024 << 10, {115, 114, 115, 113}},
    {kAllReduce, kOneHost, 2, 4096 << 10, {417, 318, 387, 314}},
    {kAllReduce, kOneHost, 2, 16384 << 10, {1537, 1368, 1466, 1597}},
    {kAllReduce, kOneHost, 2, 65536 << 10, {10119, 9756, 10630, 10379}},
    {kAllReduce, kOneHost, 4, 64 << 10, {48, 0, 65, 0}},
    {kAllReduce, kOneHost, 4, 256 << 10, {87, 0, 123, 0}},
    {kAllReduce, kOneHost, 4, 1024 << 10, {289, 0, 356, 0}},
    {kAllReduce, kOneHost, 4, 4096 << 10, {991, 965, 1258, 1240}},
    {kAllReduce, kOneHost, 4, 16384 << 10, {4825, 4410, 5936, 5503}},
    {kAllReduce, kOneHost, 4, 65536 << 10, {27016, 28093, 32959, 35242}},
    {kReduceScatter, kOneHost, 2, 64 << 10, {8.2, 0, 8.2, 0}},
    {kReduceScatter, kOneHost, 2, 256 << 10, {13, 0, 13, 0}},
    {kReduceScatter, kOneHost, 2, 1024 << 10, {32, 32, 34, 32}},
    {kReduceScatter, kOneHost, 2, 4096 << 10, {234, 229, 231, 228}},
    {kReduceScatter, kOneHost, 2, 16384 << 10, {1018, 981, 1014, 994}},
    {kReduceScatter, kOneHost, 2, 65536 << 10, {7659, 7526, 7652, 9799}},
    {kReduceScatter, kOneHost, 4, 64 << 10, {25, 0, 52, 0}},
    {kReduceScatter, kOneHost, 4, 256 << 10, {39, 0, 101, 0}},
    {kReduceScatter, kOneHost, 4, 1024 << 10, {120, 0, 395, 0}},
    {kReduceScatter, kOneHost, 4, 4096 << 10, {479, 468, 1521, 1729}},
    {kReduceScatter, kOneHost, 4, 16384 << 10, {2891, 2618, 7245, 8962}},
    {kReduceScatter, kOneHost, 4, 65536 << 10, {15932, 18197, 31166, 35725}},
    {kAllGather, kOneHost, 2, 64 << 10, {8.5, 0, 8.6, 0}},
    {kAllGather, kOneHost, 2, 256 << 10, {18, 0, 18, 0}},
    {kAllGather, kOneHost, 2, 1024 << 10, {130, 127, 129, 128}},
    {kAllGather, kOneHost, 2, 4096 << 10, {679, 580, 652, 566}},
    {kAllGather, kOneHost, 2, 16384 << 10, {3468, 3577, 3488, 3423}},
    {kAllGather, kOneHost, 2, 65536 << 10, {53770, 21889, 21494, 21539}},
    {kAllGather, kOneHost, 4, 64 << 10, {30, 0, 63, 0}},
    {kAllGather, kOneHost, 4, 256 << 10, {127, 0, 220, 0}},
    {kAllGather, kOneHost, 4, 1024 << 10, {555, 546, 726, 800}},
    {kAllGather, kOneHost, 4, 4096 << 10, {2582, 2371, 3525, 3197}},
    {kAllGather, kOneHost, 4, 16384 << 10, {17293, 17509, 22810, 21772}},
    {kAllGather, kOneHost, 4, 65536 << 10, {82855, 89684, 90970, 100586}},
    {kAllToAll, kOneHost, 2, 64 << 10, {7.2, 0, 0, 0}},
    {kAllToAll, kOneHost, 2, 256 << 10, {12, 0, 0, 0}},
    {kAllToAll, kOneHost, 2, 1024 << 10, {49, 47, 0, 0}},
    {kAllToAll, kOneHost, 2, 4096 << 10, {320, 311, 0, 0}},
    {kAllToAll, kOneHost, 2, 16384 << 10, {1425, 1353, 0, 0}},
    {kAllToAll, kOneHost, 2, 65536 << 10, {10476, 10446, 0, 0}},
    {kAllToAll, kOneHost, 4, 64 << 10, {20, 0, 0, 0}},
    {kAllToAll, kOneHost, 4, 256 << 10, {31, 0, 0, 0}},
    {kAllToAll, kOneHost, 4, 1024 << 10, {175, 0, 0, 0}},
    {kAllToAll, kOneHost, 4, 4096 << 10, {682, 674, 0, 0}},
    {kAllToAll, kOneHost, 4, 16384 << 10, {4049, 3836, 0, 0}},
    {kAllToAll, kOneHost, 4, 65536 << 10, {20734, 20274, 0, 0}},
    {kAllReduce, kOneRankEach, 2, 1 << 10, {20, 0, 36}},
    {kAllReduce, kOneRankEach, 2, 16 << 10, {41, 0, 73}},
    {kAllReduce, kOneRankEach, 2, 64 << 10, {75, 0, 75}},
    {kAllReduce, kOneRankEach, 2, 1024 << 10, {1269, 1122, 1269, 1115}},
    {kAllReduce, kOneRankEach, 2, 16384 << 10, {17987, 19039, 19471, 21111}},
    {kAllReduce, kOneRankEach, 4, 1 << 10, {97, 0, 173}},
    {kAllReduce, kOneRankEach, 4, 16 << 10, {188, 0, 195}},
    {kAllReduce, kOneRankEach, 4, 64 << 10, {375, 0, 433}},
    {kAllReduce, kOneRankEach, 4, 1024 << 10, {2554, 0, 2971}},
    {kAllReduce, kOneRankEach, 4, 16384 << 10, {42738, 46898, 52869, 56869}},
    {kAllReduce, kSeveralEach, 4, 1 << 10, {68, 0, 116, 0, 85}},
    {kAllReduce, kSeveralEach, 4, 16 << 10, {148, 0, 132, 0, 95}},
    {kAllReduce, kSeveralEach, 4, 64 << 10, {282, 0, 254, 0, 180}},
    {kAllReduce, kSeveralEach, 4, 1024 << 10, {2468, 0, 2103, 0, 1354}},
    {kAllReduce, kSeveralEach, 4, 16384 << 10, {37178, 41593, 37133, 36507, 20787, 23957}},
    {kReduceScatter, kOneRankEach, 2, 1 << 10, {19, 0, 20}},
    {kReduceScatter, kOneRankEach, 2, 16 << 10, {37, 0, 37}},
    {kReduceScatter, kOneRankEach, 2, 64 << 10, {42, 0, 42}},
    {kReduceScatter, kOneRankEach, 2, 1024 << 10, {570, 550, 592, 562}},
    {kReduceScatter, kOneRankEach, 2, 16384 << 10, {11937, 9627, 8868, 9880}},
    {kReduceScatter, kOneRankEach, 4, 1 << 10, {85, 0, 104}},
    {kReduceScatter, kOneRankEach, 4, 16 << 10, {91, 0, 136}},
    {kReduceScatter, kOneRankEach, 4, 64 << 10, {190, 0, 235}},
    {kReduceScatter, kOneRankEach, 4, 1024 << 10, {1321, 0, 1619}},
    {kReduceScatter, kOneRankEach, 4, 16384 << 10, {25251, 24090, 27531, 29177}},
    {kReduceScatter, kSeveralEach, 4, 1 << 10, {67, 0, 71, 0, 44}},
    {kReduceScatter, kSeveralEach, 4, 16 << 10, {73, 0, 82, 0, 49}},
    {kReduceScatter, kSeveralEach, 4, 64 << 10, {151, 0, 153, 0, 100}},
    {kReduceScatter, kSeveralEach, 4, 1024 << 10, {1174, 0, 1197, 0, 684}},
    {kReduceScatter, kSeveralEach, 4, 16384 << 10, {19133, 21461, 21226, 21619, 12397, 14804}},
    {kAllGather, kOneRankEach, 2, 1 << 10, {20, 0, 21}},
    {kAllGather, kOneRankEach, 2, 16 << 10, {38, 0, 38}},
    {kAllGather, kOneRankEach, 2, 64 << 10, {78, 0, 81}},
    {kAllGather, kOneRankEach, 2, 1024 << 10, {1205, 1124, 1207, 1111}},
    {kAllGather, kOneRankEach, 2, 16384 << 10, {27354, 31428, 27235, 31687}},
    {kAllGather, kOneRankEach, 4, 1 << 10, {86, 0, 104}},
    {kAllGather, kOneRankEach, 4, 16 << 10, {181, 0, 233}},
    {kAllGather, kOneRankEach, 4, 64 << 10, {380, 0, 449}},
    {kAllGather, kOneRankEach, 4, 1024 << 10, {5510, 5195, 6037, 5958}},
    {kAllGather, kOneRankEach, 4, 16384 << 10, {91318, 99043, 114522, 122979}},
    {kAllGather, kSeveralEach, 4, 1 << 10, {68, 0, 70, 0, 59}},
    {kAllGather, kSeveralEach, 4, 16 << 10, {142, 0, 145, 0, 96}},
    {kAllGather, kSeveralEach, 4, 64 << 10, {284, 0, 327, 0, 180}},
    {kAllGather, kSeveralEach, 4, 1024 << 10, {5093, 4986, 4502, 4557, 2658, 2689}},
    {kAllGather, kSeveralEach, 4, 16384 << 10, {81998, 92757, 84071, 82830, 47523, 53220}},
    {kAllToAll, kOneRankEach, 2, 1 << 10, {19}},
    {kAllToAll, kOneRankEach, 2, 16 << 10, {36}},
    {kAllToAll, kOneRankEach, 2, 64 << 10, {40}},
    {kAllToAll, kOneRankEach, 2, 1024 << 10, {559, 551}},
    {kAllToAll, kOneRankEach, 2, 16384 << 10, {13709, 13721}},
    {kAllToAll, kOneRankEach, 4, 1 << 10, {84}},
    {kAllToAll, kOneRankEach, 4, 16 << 10, {89}},
    {kAllToAll, kOneRankEach, 4, 64 << 10, {187}},
    {kAllToAll, kOneRankEach, 4, 1024 << 10, {1281}},
    {kAllToAll, kOneRankEach, 4, 16384 << 10, {23722, 26017}},
    {kAllToAll, kSeveralEach, 4, 1 << 10, {67}},
    {kAllToAll, kSeveralEach, 4, 16 << 10, {71}},
    {kAllToAll, kSeveralEach, 4, 64 << 10, {145}},
    {kAllToAll, kSeveralEach, 4, 1024 << 10, {1157}},
    {kAllToAll, kSeveralEach, 4, 16384 << 10, {20924, 22840}},
};

// Permutes are measured as what they are, a message each way; a broadcast as a gather.
CollectiveKind MeasuredKind(CollectiveKind kind) {
  if (kind == kPermute) return kAllToAll;
  if (kind == kBroadcast) return kAllGather;
  return kind;
}

// The row whose size is nearest in ratio, of the smallest groups that are large enough, or else of
// the largest.
const Row& FindRow(CollectiveKind kind, Spread spread, int group_size, int64_t num_bytes) {
  const Row* found = nullptr;
  for (const Row& row : kRows) {
    if (row.kind != kind || row.spread != spread) continue;
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

CollectiveChoice ChooseCollective(CollectiveKind kind, int group_size, int num_hosts,
                                  int64_t num_bytes) {
  const Spread spread = num_hosts == 1            ? kOneHost
                        : num_hosts == group_size ? kOneRankEach
                                                  : kSeveralEach;
  const Row& row = FindRow(MeasuredKind(kind), spread, group_size, num_bytes);
  double best = row.us[0];
  for (const double us : row.us) {
    if (us > 0) best = std::min(best, us);
  }
  size_t way = 0;
  while (row.us[way] == 0 || row.us[way] > best * kTolerance) ++way;
  return kWays[way];
}

void ChooseCollective(const std::vector<uint32_t>& hosts, CollectiveSpec* spec) {
  int64_t most = 0;
  const int n = static_cast<int>(spec->devices.size());
  for (int rank = 0; rank < n; ++rank) most = std::max(most, InputCount(*spec, rank));
  const absl::flat_hash_set<uint32_t> different(hosts.begin(), hosts.end());
  const CollectiveChoice choice =
      ChooseCollective(spec->kind, n, static_cast<int>(different.size()),
                       most * static_cast<int64_t>(ByteSize(spec->dtype)));
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
