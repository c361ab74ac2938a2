#include "bench/transport_bench.h"

#include <string>

#include "gtest/gtest.h"

namespace penstock::bench {
namespace {

TEST(TransportBench, MeasuresEverySize) {
  for (const std::string transports : {"posix", "tcp"}) {
    TransportBenchOptions options;
    options.transports = transports;
    options.sizes = {8, 100000};
    options.max_rounds = 20;
    const auto rows = MeasureTransport(options);
    ASSERT_TRUE(rows.ok()) << rows.status();
    ASSERT_EQ(rows->size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      const TransportBenchRow& row = (*rows)[i];
      EXPECT_EQ(row.num_bytes, options.sizes[i]);
      EXPECT_GT(row.ours.one_way_us, 0);
      EXPECT_GT(row.ours.bytes_per_s, 0);
      EXPECT_EQ(row.perftest.one_way_us > 0, HasPerftest());
      EXPECT_EQ(row.perftest.bytes_per_s > 0, HasPerftest());
      EXPECT_EQ(row.plain_perftest.one_way_us > 0, HasPerftest());
      EXPECT_EQ(row.plain_perftest.bytes_per_s > 0, HasPerftest());
    }
  }
}

TEST(TransportBench, AnIdleProcessSleeps) {
  TransportBenchOptions options;
  options.transports = "posix";
  const auto share = MeasureIdleTransport(options);
  ASSERT_TRUE(share.ok()) << share.status();
  EXPECT_GE(*share, 0);
  EXPECT_LT(*share, 0.5);
}

TEST(TransportBench, NamesTransportsThatAreNone) {
  TransportBenchOptions options;
  options.transports = "nothing";
  options.sizes = {8};
  const auto rows = MeasureTransport(options);
  ASSERT_FALSE(rows.ok());
  EXPECT_NE(rows.status().message().find("over nothing"), std::string::npos) << rows.status();
}

}  // namespace
}  // namespace penstock::bench
