#include "actors/cluster/link_probe.h"

#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/compute_probe.h"
#include "actors/engine/error_origin.h"
#include "transport/transport.h"

namespace penstock::actors {
namespace {

// Each two ranks meet once, and nobody meets two in a round.
TEST(PartnerInTest, EachTwoMeetOnce) {
  for (uint32_t num_ranks = 2; num_ranks <= 17; ++num_ranks) {
    std::set<std::pair<uint32_t, uint32_t>> met;
    for (uint32_t round = 0; round < NumProbeRounds(num_ranks); ++round) {
      for (uint32_t rank = 0; rank < num_ranks; ++rank) {
        const std::optional<uint32_t> partner = PartnerIn(round, rank, num_ranks);
        if (!partner.has_value()) {
          EXPECT_EQ(num_ranks % 2, 1u);
          continue;
        }
        ASSERT_LT(*partner, num_ranks);
        ASSERT_NE(*partner, rank);
        EXPECT_EQ(PartnerIn(round, *partner, num_ranks), rank);
        if (rank < *partner) {
          EXPECT_TRUE(met.emplace(rank, *partner).second);
        }
      }
    }
    EXPECT_EQ(met.size(), size_t{num_ranks} * (num_ranks - 1) / 2);
  }
}

// Nodes of one process, each with a thread, over a transport within it.
class LinkProbeTest : public ::testing::Test {
 protected:
  using Figures = absl::StatusOr<std::vector<LinkFigures>>;

  // `absent` has no thread: it never answers.
  std::vector<Figures> Run(uint32_t num_ranks, const LinkProbeOptions& options, int absent = -1) {
    const std::unique_ptr<transport::Transport> transport = transport::CreateInprocTransport(
        {.num_devices = num_ranks, .generation = 1, .num_channels = 1});
    std::vector<Figures> figures(num_ranks, absl::UnknownError("absent"));
    std::vector<ByteExchange::Stopper> stoppers(num_ranks);
    std::vector<std::unique_ptr<ByteExchange>> exchanges;
    std::vector<transport::Endpoint*> endpoints;
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      endpoints.push_back(transport->OpenEndpoint(rank).value());
      exchanges.push_back(
          std::make_unique<ByteExchange>(*transport, *endpoints[rank], stoppers[rank]));
    }
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      if (static_cast<int>(rank) == absent) continue;
      threads.emplace_back([&, rank] {
        LinkProbe probe(*exchanges[rank], *transport, *endpoints[rank], stoppers[rank], options);
        figures[rank] = probe.Run(rank, num_ranks);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return figures;
  }
};

TEST_F(LinkProbeTest, TheLowerRankMeasuresEachLink) {
  for (const uint32_t num_ranks : {2u, 5u}) {
    const std::vector<Figures> figures =
        Run(num_ranks, {.max_bytes = size_t{1} << 20, .long_enough = absl::Microseconds(200)});
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      ASSERT_TRUE(figures[rank].ok()) << figures[rank].status();
      std::set<uint32_t> peers;
      for (const LinkFigures& link : *figures[rank]) {
        peers.insert(link.peer);
        EXPECT_GT(link.peer, rank);
        EXPECT_GT(link.bytes_per_s, 1e6);
        EXPECT_GT(link.latency_s, 0);
        EXPECT_LT(link.latency_s, 1);
      }
      EXPECT_EQ(peers.size(), num_ranks - 1 - rank);
    }
  }
}

TEST_F(LinkProbeTest, ANodeThatIsSilentEndsItInTime) {
  const std::vector<Figures> figures =
      Run(3, {.max_bytes = 1024, .timeout = absl::Milliseconds(300)}, /*absent=*/1);
  for (const uint32_t rank : {0u, 2u}) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(figures[rank].status())) << figures[rank].status();
  }
  // Node 0 may wait for node 2, which waits for node 1.
  EXPECT_GT(OriginOf(figures[0].status()).peer, 0);
  EXPECT_EQ(OriginOf(figures[2].status()).peer, 1);
}

// Loosely: under a sanitizer, beside other programs.
TEST(MeasureComputeRateTest, IsARate) { EXPECT_GT(MeasureComputeRate(1), 1e6); }

}  // namespace
}  // namespace penstock::actors
