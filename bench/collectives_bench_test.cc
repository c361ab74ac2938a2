#include "bench/collectives_bench.h"

#include <string>

#include "gtest/gtest.h"

namespace penstock::bench {
namespace {

TEST(CollectivesBench, MeasuresAndChecksEveryCase) {
  for (const int num_processes : {2, 3}) {
    CollectivesBenchOptions options;
    options.num_processes = num_processes;
    options.transports = "posix";
    for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                      CollectiveKind::kAllGather, CollectiveKind::kAllToAll}) {
      for (const auto algorithm : {CollectiveAlgorithm::kDirect, CollectiveAlgorithm::kRing,
                                   CollectiveAlgorithm::kHierarchical}) {
        for (const size_t num_bytes : {1200, 240000}) {
          options.cases.push_back({kind, num_bytes, algorithm, 64 << 10, false});
        }
      }
    }
    options.cases.push_back({.num_bytes = 1 << 20, .is_copy = true});
    options.max_rounds = 4;
    const auto result = MeasureCollectives(options);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->size(), options.cases.size());
    for (const double us : *result) EXPECT_GT(us, 0);
  }
}

TEST(CollectivesBench, NamesTransportsThatAreNone) {
  CollectivesBenchOptions options;
  options.transports = "nothing";
  const auto result = MeasureCollectives(options);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("over nothing"), std::string::npos) << result.status();
}

TEST(CollectivesBench, NamesHostsThatAreNone) {
  CollectivesBenchOptions options;
  options.hosts = {"no-such-namespace", "nor-this"};
  const auto result = MeasureCollectives(options);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("no-such-namespace"), std::string::npos)
      << result.status();
}

}  // namespace
}  // namespace penstock::bench
