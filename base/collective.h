// A collective as data: what it does, between whom, by which algorithm. Written by the planner,
// executed by transport/, carried by plans.
//
// Elements, not bytes, are counted. `counts` splits the data by rank:
//   all_reduce      every rank holds sum(counts) elements; rank r reduces the r-th piece
//   reduce_scatter  every rank holds sum(counts) elements; rank r ends with piece r (counts[r])
//   all_gather      rank r holds counts[r] elements; every rank ends with the concatenation
//   all_to_all      counts[s * n + d]: what rank s sends to rank d; a rank's input is the
//                   concatenation over d, its output the concatenation over s
//   broadcast       rank `root` holds counts[0] elements; every rank ends with them
//   permute         counts[r] elements of rank r go to rank peers[r] (a permutation)
// Pieces may be empty.
//
// An all_gather or reduce_scatter may move several tensors at once, such as the gradients of
// several layers: every rank then brings and ends with a piece of memory for each, so that none of
// them is copied to lie beside the others. `tensors` says how many elements of a rank's piece are
// of each. Example: ranks 0 and 1 gather a of 3 + 2 elements and b of 4 + 4: counts {7, 6}, tensors
// {{3, 2}, {4, 4}}; rank 0 brings 3 elements of a and 4 of b, and ends with 5 and 8.
//
// The association of a reduction is part of the algorithm, so that a plan gives the same bits on
// every transport:
//   kDirect  the terms are folded in rank order, whoever folds them: ((t0 + t1) + t2) + ...
//   kRing    piece p is folded along the ring: t(p+1) + t(p+2), ... and last t(p) (ranks mod n)
//   kHierarchical  the terms of each host are folded in rank order, then those results in the order
//            of the hosts, a host coming where its first rank does: (t0 + t1) + (t2 + t3) + ...
//
// So are the roundings. Terms of 16 bits are folded in f32: kDirect rounds the result once, and
// kHierarchical the result of each host, then that of all. kRing rounds after each term, because
// its partial results travel in the type of the terms.
//
// A plan's hosts need not be the real ones: a hierarchical collective is slower then, with the same
// bits.
//
// Thread rule: a value.

#ifndef PENSTOCK_BASE_COLLECTIVE_H_
#define PENSTOCK_BASE_COLLECTIVE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace penstock {

// What a collective does with the data of its members; see the comment at the top.
enum class CollectiveKind : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kPermute,
};

// Who exchanges pieces with whom, and so in which order terms are combined; see there, too.
enum class CollectiveAlgorithm : uint8_t { kDirect, kRing, kHierarchical };

// How terms are combined; the same list as a sharding's partial values.
enum class ReduceOp : uint8_t { kSum, kMax, kMin, kProd };

std::string_view Name(CollectiveKind kind);            // "all_reduce", ...
std::string_view Name(CollectiveAlgorithm algorithm);  // "direct", "ring", "hierarchical"

// A collective of a plan. That it is sound is checked by transport::CheckCollective.
struct CollectiveSpec {
  CollectiveKind kind = CollectiveKind::kAllReduce;  // what it does
  // Of the exchange, and of the reduction's association.
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kDirect;
  ReduceOp reduce = ReduceOp::kSum;  // all_reduce and reduce_scatter only
  DType dtype = DType::kF32;         // of all elements
  uint32_t channel = 0;              // unique in a plan; the channel of its tags
  std::vector<uint32_t> devices;     // logical devices of the group; a member's rank is its index
  std::vector<int64_t> counts;  // of elements by rank, as the comment at the top says for each kind
  std::vector<uint32_t> peers;  // permute only
  uint32_t root = 0;            // broadcast only
  int64_t chunk_bytes = 256 << 10;  // a piece travels in chunks of at most this size
  std::vector<uint32_t> hosts;      // kHierarchical only: the host of each rank, any numbers
  // Of several tensors: of each the elements by rank, which add up to `counts`. Empty: of one.
  std::vector<std::vector<int64_t>> tensors = {};

  friend bool operator==(const CollectiveSpec&, const CollectiveSpec&) = default;
};

// Messages that one run of a collective can number.
inline constexpr int64_t kMaxCollectiveMessages = int64_t{1} << 20;

// Elements that rank `rank` brings.
int64_t InputCount(const CollectiveSpec& spec, int rank);
// Elements that rank `rank` ends with.
int64_t OutputCount(const CollectiveSpec& spec, int rank);

// Pieces of memory that a rank brings, and as many that it ends with: at least 1.
inline size_t NumTensors(const CollectiveSpec& spec) {
  return spec.tensors.empty() ? 1 : spec.tensors.size();
}

// Whether the counts of its tensors, if it has several, are those of an all_gather or
// reduce_scatter, none negative, and add up to its own. REQUIRES: those are sound.
bool TensorsAddUp(const CollectiveSpec& spec);

// Elements of one of its tensors that a rank brings. REQUIRES: TensorsAddUp(spec);
// tensor < NumTensors(spec).
int64_t InputCount(const CollectiveSpec& spec, int rank, size_t tensor);
// Elements of one of its tensors that a rank ends with. REQUIRES: as InputCount.
int64_t OutputCount(const CollectiveSpec& spec, int rank, size_t tensor);

}  // namespace penstock

#endif  // PENSTOCK_BASE_COLLECTIVE_H_
