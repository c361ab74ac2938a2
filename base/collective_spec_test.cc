#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/collective.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;

CollectiveSpec Spec(CollectiveKind kind, std::vector<int64_t> counts) {
  CollectiveSpec spec;
  spec.kind = kind;
  spec.devices = {4, 2, 9};
  spec.counts = std::move(counts);
  return spec;
}

std::vector<int64_t> InputCounts(const CollectiveSpec& spec) {
  return {InputCount(spec, 0), InputCount(spec, 1), InputCount(spec, 2)};
}

std::vector<int64_t> OutputCounts(const CollectiveSpec& spec) {
  return {OutputCount(spec, 0), OutputCount(spec, 1), OutputCount(spec, 2)};
}

TEST(CollectiveCountsTest, AllReduce) {
  const CollectiveSpec spec = Spec(CollectiveKind::kAllReduce, {3, 0, 5});
  EXPECT_THAT(InputCounts(spec), ElementsAre(8, 8, 8));
  EXPECT_THAT(OutputCounts(spec), ElementsAre(8, 8, 8));
}

TEST(CollectiveCountsTest, ReduceScatter) {
  const CollectiveSpec spec = Spec(CollectiveKind::kReduceScatter, {3, 0, 5});
  EXPECT_THAT(InputCounts(spec), ElementsAre(8, 8, 8));
  EXPECT_THAT(OutputCounts(spec), ElementsAre(3, 0, 5));
}

TEST(CollectiveCountsTest, AllGather) {
  const CollectiveSpec spec = Spec(CollectiveKind::kAllGather, {3, 0, 5});
  EXPECT_THAT(InputCounts(spec), ElementsAre(3, 0, 5));
  EXPECT_THAT(OutputCounts(spec), ElementsAre(8, 8, 8));
}

TEST(CollectiveCountsTest, AllToAll) {
  const CollectiveSpec spec = Spec(CollectiveKind::kAllToAll, {1, 2, 3,      // from rank 0
                                                               10, 20, 30,   // from rank 1
                                                               0, 0, 100});  // from rank 2
  EXPECT_THAT(InputCounts(spec), ElementsAre(6, 60, 100));
  EXPECT_THAT(OutputCounts(spec), ElementsAre(11, 22, 133));
}

TEST(CollectiveCountsTest, Broadcast) {
  CollectiveSpec spec = Spec(CollectiveKind::kBroadcast, {7});
  spec.root = 1;
  EXPECT_EQ(InputCount(spec, 1), 7);
  EXPECT_THAT(OutputCounts(spec), ElementsAre(7, 7, 7));
}

TEST(CollectiveCountsTest, Permute) {
  CollectiveSpec spec = Spec(CollectiveKind::kPermute, {3, 0, 5});
  spec.peers = {2, 0, 1};
  EXPECT_THAT(InputCounts(spec), ElementsAre(3, 0, 5));
  EXPECT_THAT(OutputCounts(spec), ElementsAre(0, 5, 3));
}

TEST(CollectiveNamesTest, Names) {
  EXPECT_EQ(Name(CollectiveKind::kReduceScatter), "reduce_scatter");
  EXPECT_EQ(Name(CollectiveKind::kPermute), "permute");
  EXPECT_EQ(Name(CollectiveAlgorithm::kDirect), "direct");
  EXPECT_EQ(Name(CollectiveAlgorithm::kRing), "ring");
  EXPECT_EQ(Name(CollectiveAlgorithm::kHierarchical), "hierarchical");
}

}  // namespace
}  // namespace penstock
