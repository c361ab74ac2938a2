#include "bench/launch_bench.h"

#include <sys/resource.h>

#include <cstdio>

#include "gtest/gtest.h"

namespace penstock::bench {
namespace {

// A job of 4,096 nodes is to start in 20 s, and one of 64 on this host in 5 s. Other tests share
// the cores here, so these bounds are four times as wide: they catch what grows with the square.
constexpr double kSlack = 4;

// Nearly as many at once as may wait for their handshakes.
TEST(LaunchBenchTest, ManyAgentsJoin) {
  LaunchBenchOptions options;
  options.num_agents = 600;
  options.num_at_once = 200;
  for (const char* listen : {"127.0.0.1:0", ""}) {
    options.listen = listen;
    const absl::StatusOr<LaunchFigures> figures = MeasureAgents(options);
    ASSERT_TRUE(figures.ok()) << figures.status();
    EXPECT_GT(figures->join_s, 0);
    EXPECT_LT(figures->join_s, kSlack * 20 * options.num_agents / 4096);
    EXPECT_GT(figures->coordinator_cpu_us, 0);
    EXPECT_LT(figures->memory_bytes, 1 << 20);
  }
}

TEST(LaunchBenchTest, FourThousandAgentsJoin) {
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  LaunchBenchOptions options;
  // A descriptor for each end of each connection, and some.
  if (files.rlim_max < 3 * options.num_agents) {
    GTEST_SKIP() << "a process may have " << files.rlim_max << " files open here (ulimit -Hn)";
  }
  const absl::StatusOr<LaunchFigures> figures = MeasureAgents(options);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_LT(figures->join_s, kSlack * 20);
  printf("%u agents joined in %.1f s\n", options.num_agents, figures->join_s);
}

TEST(LaunchBenchTest, NodesOfThisHostJoin) {
  for (const char* listen : {"127.0.0.1:0", ""}) {
    const absl::StatusOr<double> seconds = MeasureNodes(64, {PENSTOCK_FAULTY_NODE}, listen);
    ASSERT_TRUE(seconds.ok()) << seconds.status();
    EXPECT_GT(*seconds, 0);
    EXPECT_LT(*seconds, kSlack * 5);
    printf("64 nodes joined%s in %.1f s\n", listen[0] != 0 ? " over TLS" : "", *seconds);
  }
}

}  // namespace
}  // namespace penstock::bench
