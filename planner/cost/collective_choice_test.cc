#include "planner/cost/collective_choice.h"

#include <algorithm>

#include "gtest/gtest.h"

#include "transport/collective.h"

namespace penstock::planner {
namespace {

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                     CollectiveKind::kAllGather, CollectiveKind::kAllToAll,
                                     CollectiveKind::kBroadcast, CollectiveKind::kPermute};

TEST(CollectiveChoiceTest, EveryCollectiveHasAChoiceThatHolds) {
  for (const CollectiveKind kind : kKinds) {
    for (const int group_size : {1, 2, 3, 4, 8, 1000}) {
      for (const int num_hosts : {1, group_size / 2, group_size}) {
        if (num_hosts == 0) continue;
        for (int64_t num_bytes = 0; num_bytes < int64_t{1} << 40; num_bytes = num_bytes * 3 + 1) {
          const CollectiveVariant choice = ChooseCollective(kind, group_size, num_hosts, num_bytes);
          EXPECT_GE(choice.chunk_bytes, 64 << 10);
          EXPECT_LE(choice.chunk_bytes, 4 << 20);
          EXPECT_EQ(choice, ChooseCollective(kind, group_size, num_hosts, num_bytes));
          if (choice.algorithm == CollectiveAlgorithm::kHierarchical) {
            EXPECT_GT(num_hosts, 1);
            EXPECT_LT(num_hosts, group_size);
          }
        }
      }
    }
  }
}

TEST(CollectiveChoiceTest, LittleGoesDirectlyInOneChunk) {
  for (const CollectiveKind kind : kKinds) {
    for (const int group_size : {2, 4}) {
      const CollectiveVariant choice = ChooseCollective(kind, group_size, 1, 32 << 10);
      EXPECT_EQ(choice.algorithm, CollectiveAlgorithm::kDirect);
      EXPECT_GE(choice.chunk_bytes, 32 << 10);
    }
  }
}

TEST(CollectiveChoiceTest, MuchGoesInLongerChunks) {
  EXPECT_GT(ChooseCollective(CollectiveKind::kAllReduce, 2, 1, 16 << 20).chunk_bytes,
            ChooseCollective(CollectiveKind::kAllReduce, 2, 1, 64 << 10).chunk_bytes);
}

TEST(CollectiveChoiceTest, SpecsAreChosenForByTheLargestRank) {
  CollectiveSpec spec;
  spec.kind = CollectiveKind::kAllGather;
  spec.devices = {3, 5};
  spec.counts = {7, 4 << 20};
  const CollectiveVariant choice = ChooseCollective(spec.kind, 2, 1, 16 << 20);
  ChooseCollective({0, 0}, {}, &spec);
  EXPECT_EQ(spec.algorithm, choice.algorithm);
  EXPECT_EQ(spec.chunk_bytes, choice.chunk_bytes);
  spec.counts = {0, 0};
  ChooseCollective({0, 0}, {}, &spec);
  EXPECT_EQ(spec.chunk_bytes, ChooseCollective(spec.kind, 2, 1, 0).chunk_bytes);
}

TEST(CollectiveChoiceTest, SumsOverSharedHostsAreHierarchical) {
  CollectiveSpec spec;
  spec.kind = CollectiveKind::kAllReduce;
  spec.devices = {0, 1, 2, 3};
  spec.counts.assign(4, 1 << 20);
  ChooseCollective({3, 3, 4, 4}, {}, &spec);
  EXPECT_EQ(spec.algorithm, CollectiveAlgorithm::kHierarchical);
  EXPECT_EQ(spec.hosts, (std::vector<uint32_t>{0, 0, 1, 1}));
  spec.counts.assign(4, 1);
  ChooseCollective({3, 3, 4, 4}, {}, &spec);
  EXPECT_EQ(spec.algorithm, CollectiveAlgorithm::kDirect) << "a number has no bytes to save";
  spec.counts.assign(4, 1 << 20);
  ChooseCollective({3, 3, 3, 3}, {}, &spec);
  EXPECT_NE(spec.algorithm, CollectiveAlgorithm::kHierarchical);
  EXPECT_TRUE(spec.hosts.empty());
}

// As the parameters of a model that fits no machine: what then fails is the check of memory.
TEST(CollectiveChoiceTest, DataOfAnyLengthHaveChunksThatCanBeNumbered) {
  for (const int n : {2, 4, 64}) {
    CollectiveSpec spec;
    spec.kind = CollectiveKind::kAllReduce;
    for (int rank = 0; rank < n; ++rank) spec.devices.push_back(static_cast<uint32_t>(rank));
    spec.counts.assign(static_cast<size_t>(n), (int64_t{1} << 38) / n);
    ChooseCollective(std::vector<uint32_t>(static_cast<size_t>(n), 0), {}, &spec);
    EXPECT_TRUE(transport::CheckCollective(spec, static_cast<uint32_t>(n)).ok()) << n;
  }
}

// What is built in covers every kind and spread, so that all has a choice.
TEST(CollectiveChoiceTest, BuiltInMeasurementsAreComplete) {
  const absl::Span<const MeasuredCollective> all = DefaultCollectives();
  EXPECT_EQ(all.size(), 20u);
  for (const MeasuredCollective& measured : all) {
    EXPECT_TRUE(CheckMeasuredCollective(measured).ok()) << Name(measured.kind);
  }
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                    CollectiveKind::kAllGather, CollectiveKind::kAllToAll}) {
    for (const GroupSpread spread :
         {GroupSpread::kOneHost, GroupSpread::kOneRankEach, GroupSpread::kSeveralEach}) {
      EXPECT_TRUE(std::any_of(all.begin(), all.end(),
                              [&](const MeasuredCollective& measured) {
                                return measured.kind == kind && measured.spread == spread;
                              }))
          << Name(kind) << ", " << Name(spread);
    }
  }
}

// A machine's own measurements decide what they are of; the rest is built in.
TEST(CollectiveChoiceTest, MeasurementsOfTheClusterComeFirst) {
  MeasuredCollective measured;
  measured.num_ranks = 4;
  measured.algorithms = {{CollectiveAlgorithm::kDirect, 64 << 10},
                         {CollectiveAlgorithm::kRing, 2 << 20}};
  measured.times = {{64 << 10, {10, 20}}, {16 << 20, {900, 500}}};
  const std::vector<MeasuredCollective> all = {measured};
  const auto choose = [&](CollectiveKind kind, int num_hosts, int64_t num_bytes) {
    return ChooseCollective(kind, 4, num_hosts, num_bytes, all);
  };
  EXPECT_EQ(choose(CollectiveKind::kAllReduce, 1, 100 << 10), measured.algorithms[0]);
  EXPECT_EQ(choose(CollectiveKind::kAllReduce, 1, 12 << 20), measured.algorithms[1]);
  for (const int64_t num_bytes : {1 << 10, 1 << 20, 64 << 20}) {
    EXPECT_EQ(choose(CollectiveKind::kAllReduce, 2, num_bytes),
              ChooseCollective(CollectiveKind::kAllReduce, 4, 2, num_bytes));
    EXPECT_EQ(choose(CollectiveKind::kAllGather, 1, num_bytes),
              ChooseCollective(CollectiveKind::kAllGather, 4, 1, num_bytes));
  }
}

// A ring rounds after each term.
TEST(CollectiveChoiceTest, SumsOf16BitsOfMoreThanTwoRanksTakeNoRing) {
  std::vector<MeasuredCollective> all(1);
  MeasuredCollective& measured = all[0];
  measured.num_ranks = 4;
  measured.spread = GroupSpread::kSeveralEach;
  measured.algorithms = {{CollectiveAlgorithm::kDirect, 64 << 10},
                         {CollectiveAlgorithm::kRing, 2 << 20},
                         {CollectiveAlgorithm::kHierarchical, 1 << 20}};
  measured.times = {{64 << 10, {20, 10, 30}}, {16 << 20, {900, 500, 600}}};
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter}) {
    measured.kind = kind;
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      EXPECT_EQ(ChooseCollective(kind, 4, 2, 64 << 10, all, dtype), measured.algorithms[0]);
      EXPECT_EQ(ChooseCollective(kind, 4, 2, 16 << 20, all, dtype), measured.algorithms[2]);
    }
    EXPECT_EQ(ChooseCollective(kind, 4, 2, 16 << 20, all), measured.algorithms[1]);
    EXPECT_EQ(ChooseCollective(kind, 4, 2, 16 << 20, all, DType::kI32), measured.algorithms[1]);
    CollectiveSpec spec;
    spec.kind = kind;
    spec.dtype = DType::kBF16;
    spec.devices = {0, 1, 2, 3};
    spec.counts.assign(4, 2 << 20);
    ChooseCollective({0, 0, 1, 1}, all, &spec);
    EXPECT_EQ(spec.algorithm, CollectiveAlgorithm::kHierarchical);
  }
  measured.kind = CollectiveKind::kAllGather;  // which rounds nothing
  EXPECT_EQ(ChooseCollective(measured.kind, 4, 2, 16 << 20, all, DType::kBF16),
            measured.algorithms[1]);
  measured.kind = CollectiveKind::kAllReduce;
  measured.spread = GroupSpread::kOneHost;
  measured.num_ranks = 2;
  EXPECT_EQ(ChooseCollective(measured.kind, 2, 1, 16 << 20, all, DType::kBF16),
            measured.algorithms[1])
      << "two terms are rounded once in a ring";
  measured.num_ranks = 4;
  measured.algorithms = {{CollectiveAlgorithm::kRing, 2 << 20}};
  measured.times = {{16 << 20, {500}}};
  EXPECT_EQ(ChooseCollective(measured.kind, 4, 1, 16 << 20, all, DType::kBF16).algorithm,
            CollectiveAlgorithm::kDirect)
      << "a cluster of which rings alone were measured";
}

}  // namespace
}  // namespace penstock::planner
