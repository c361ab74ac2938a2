#include "planner/collective_choice.h"

#include "gtest/gtest.h"

namespace penstock::planner {
namespace {

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                     CollectiveKind::kAllGather, CollectiveKind::kAllToAll,
                                     CollectiveKind::kBroadcast, CollectiveKind::kPermute};

TEST(CollectiveChoiceTest, EveryCollectiveHasAChoiceThatHolds) {
  for (const CollectiveKind kind : kKinds) {
    for (const int group_size : {1, 2, 3, 4, 8, 1000}) {
      for (int64_t num_bytes = 0; num_bytes < int64_t{1} << 40; num_bytes = num_bytes * 3 + 1) {
        const CollectiveChoice choice = ChooseCollective(kind, group_size, num_bytes);
        EXPECT_GE(choice.chunk_bytes, 64 << 10);
        EXPECT_LE(choice.chunk_bytes, 4 << 20);
        EXPECT_EQ(choice, ChooseCollective(kind, group_size, num_bytes));
      }
    }
  }
}

TEST(CollectiveChoiceTest, LittleGoesDirectlyInOneChunk) {
  for (const CollectiveKind kind : kKinds) {
    for (const int group_size : {2, 4}) {
      const CollectiveChoice choice = ChooseCollective(kind, group_size, 32 << 10);
      EXPECT_EQ(choice.algorithm, CollectiveAlgorithm::kDirect);
      EXPECT_GE(choice.chunk_bytes, 32 << 10);
    }
  }
}

TEST(CollectiveChoiceTest, MuchGoesInLongerChunks) {
  EXPECT_GT(ChooseCollective(CollectiveKind::kAllReduce, 2, 16 << 20).chunk_bytes,
            ChooseCollective(CollectiveKind::kAllReduce, 2, 64 << 10).chunk_bytes);
}

TEST(CollectiveChoiceTest, SpecsAreChosenForByTheLargestRank) {
  CollectiveSpec spec;
  spec.kind = CollectiveKind::kAllGather;
  spec.devices = {3, 5};
  spec.counts = {7, 4 << 20};
  const CollectiveChoice choice = ChooseCollective(spec.kind, 2, 16 << 20);
  ChooseCollective(&spec);
  EXPECT_EQ(spec.algorithm, choice.algorithm);
  EXPECT_EQ(spec.chunk_bytes, choice.chunk_bytes);
  spec.counts = {0, 0};
  ChooseCollective(&spec);
  EXPECT_EQ(spec.chunk_bytes, ChooseCollective(spec.kind, 2, 0).chunk_bytes);
}

}  // namespace
}  // namespace penstock::planner
