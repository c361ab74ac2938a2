#include "planner/cost/communication_cost.h"

#include <numeric>
#include <vector>

#include "gtest/gtest.h"

#include "base/shape.h"

namespace penstock::planner {
namespace {

constexpr CollectiveKind kCommunicationCostKinds[] = {
    CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter, CollectiveKind::kAllGather,
    CollectiveKind::kAllToAll,  CollectiveKind::kBroadcast,     CollectiveKind::kPermute};
constexpr CollectiveAlgorithm kAlgorithms[] = {CollectiveAlgorithm::kDirect,
                                               CollectiveAlgorithm::kRing};

// 2 us a message, a byte a microsecond.
constexpr LinkRates kSlow = {.latency_s = 2e-6, .bytes_per_s = 1e6};

// `count` f32 elements in all (of an all_to_all or a permute: that a rank brings), in even pieces.
CollectiveSpec Spec(CollectiveKind kind, CollectiveAlgorithm algorithm, int group_size,
                    int64_t count) {
  CollectiveSpec spec;
  spec.kind = kind;
  spec.algorithm = algorithm;
  spec.devices.resize(group_size);
  std::iota(spec.devices.begin(), spec.devices.end(), 0);
  switch (kind) {
    case CollectiveKind::kBroadcast:
      spec.counts = {count};
      break;
    case CollectiveKind::kPermute:
      spec.counts.assign(group_size, count);
      for (int rank = 0; rank < group_size; ++rank) spec.peers.push_back((rank + 1) % group_size);
      break;
    case CollectiveKind::kAllToAll:
      for (int rank = 0; rank < group_size * group_size; ++rank) {
        spec.counts.push_back(PartOf(count, rank % group_size, group_size).size());
      }
      break;
    default:
      for (int rank = 0; rank < group_size; ++rank) {
        spec.counts.push_back(PartOf(count, rank, group_size).size());
      }
  }
  return spec;
}

double Microseconds(const CollectiveSpec& spec) { return 1e6 * CollectiveSeconds(spec, kSlow); }

TEST(CommunicationCostTest, AMessageIsALatencyAndItsBytes) {
  EXPECT_DOUBLE_EQ(TransferSeconds(0, kSlow), 2e-6);
  EXPECT_DOUBLE_EQ(TransferSeconds(100, kSlow), 102e-6);
}

TEST(CommunicationCostTest, CollectivesAreTheMessagesOfTheirSlowestRank) {
  using enum CollectiveKind;
  using enum CollectiveAlgorithm;
  // Four pieces of 100 bytes.
  EXPECT_DOUBLE_EQ(Microseconds(Spec(kAllGather, kDirect, 4, 100)), 3 * 102);
  EXPECT_DOUBLE_EQ(Microseconds(Spec(kAllGather, kRing, 4, 100)), 3 * 102);
  EXPECT_DOUBLE_EQ(Microseconds(Spec(kReduceScatter, kDirect, 4, 100)), 3 * 102);
  EXPECT_DOUBLE_EQ(Microseconds(Spec(kAllReduce, kDirect, 4, 100)), 6 * 102);
  EXPECT_DOUBLE_EQ(Microseconds(Spec(kAllReduce, kRing, 4, 100)), 6 * 102);
  EXPECT_DOUBLE_EQ(Microseconds(Spec(kAllToAll, kDirect, 4, 100)), 3 * 102);
  EXPECT_DOUBLE_EQ(Microseconds(Spec(kBroadcast, kDirect, 4, 25)), 3 * 102);
  EXPECT_DOUBLE_EQ(Microseconds(Spec(kPermute, kDirect, 4, 25)), 102);
  // Pieces of 40, 0 and 0 bytes: one rank sends its piece twice; along a ring it goes twice.
  CollectiveSpec uneven = Spec(kAllGather, kDirect, 3, 0);
  uneven.counts = {10, 0, 0};
  EXPECT_DOUBLE_EQ(Microseconds(uneven), 2 * 42);
  uneven.algorithm = kRing;
  EXPECT_DOUBLE_EQ(Microseconds(uneven), 2 * 42);
  // A permute to itself and a group of one send nothing.
  CollectiveSpec still = Spec(kPermute, kDirect, 2, 25);
  still.peers = {0, 1};
  EXPECT_EQ(Microseconds(still), 0);
  for (const CollectiveKind kind : kCommunicationCostKinds) {
    if (kind == kPermute) continue;
    EXPECT_EQ(Microseconds(Spec(kind, kDirect, 1, 100)), 0);
  }
}

// Chunk behind chunk, all ranks of a chain are busy at once.
TEST(CommunicationCostTest, AChainTakesAMessageAndAChunkForEachRankBetween) {
  CollectiveSpec spec = Spec(CollectiveKind::kBroadcast, CollectiveAlgorithm::kRing, 4, 1000);
  spec.chunk_bytes = 400;
  EXPECT_DOUBLE_EQ(Microseconds(spec), (10 * 2 + 4000) + 2 * (2 + 400));
  spec.chunk_bytes = 1 << 20;
  EXPECT_DOUBLE_EQ(Microseconds(spec), 3 * (2 + 4000));
}

TEST(CommunicationCostTest, EveryChunkIsAMessage) {
  CollectiveSpec spec = Spec(CollectiveKind::kAllGather, CollectiveAlgorithm::kDirect, 2, 2 * 250);
  spec.chunk_bytes = 400;
  EXPECT_DOUBLE_EQ(Microseconds(spec), 3 * 2 + 1000);
}

TEST(CommunicationCostTest, MoreBytesAndLargerGroupsTakeLonger) {
  for (const CollectiveKind kind : kCommunicationCostKinds) {
    for (const CollectiveAlgorithm algorithm : kAlgorithms) {
      for (int group_size = 2; group_size <= 16; ++group_size) {
        for (int64_t count = 16; count <= 1 << 24; count *= 4) {
          const double here = CollectiveSeconds(Spec(kind, algorithm, group_size, count), {});
          EXPECT_GT(here, 0);
          EXPECT_GT(CollectiveSeconds(Spec(kind, algorithm, group_size, 2 * count), {}), here)
              << Name(kind) << " " << Name(algorithm) << " of " << group_size << ", " << count;
          const double larger = CollectiveSeconds(Spec(kind, algorithm, 2 * group_size, count), {});
          if (kind == CollectiveKind::kPermute) {
            EXPECT_EQ(larger, here);
          } else {
            EXPECT_GT(larger, here)
                << Name(kind) << " " << Name(algorithm) << " of " << group_size << ", " << count;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace penstock::planner
