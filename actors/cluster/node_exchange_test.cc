// What a node does with its part in an exchange that is not as it should be.

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/node_exchange_internal.h"

namespace penstock::actors {
namespace {

using ::testing::HasSubstr;

class NodeExchangeTest : public ::testing::Test {
 protected:
  using Part = NodeExchange::Part;
  using Peer = NodeExchange::Peer;

  NodeExchangeTest() {
    planner::Plan plan;
    plan.states.resize(1);
    plan.states[0].name = "w";
    plan.states[0].type = {DType::kF32, {4, 4}};
    plan.states[0].placements = {{0, 0, {DType::kF32, {2, 4}, {4, 4}, {2, 0}, {0, 0}}}};
    absl::StatusOr<KeptTiles> kept =
        KeptTiles::Copy(plan, {0}, 0, 1, [](const auto& placement, std::byte* bytes) {
          memset(bytes, 1, placement.tile.num_bytes());
          return absl::OkStatus();
        });
    EXPECT_TRUE(kept.ok()) << kept.status();
    kept_ = *std::move(kept);
  }

  // As node 1 of 4, without peers.
  std::string Run(const std::vector<Peer>& peers, const KeptTiles* kept) {
    NodeExchange exchange(nullptr);
    transport::UcxOptions options;
    options.first_device = 1;
    options.peers = {{}};
    const absl::StatusOr<std::string> address = exchange.Open(
        options, [](const auto&) { return absl::InternalError("a transport was made"); });
    EXPECT_TRUE(address.ok()) << address.status();
    return exchange.Run(peers, kept, nullptr, {}).ToString();
  }

  KeptTiles kept_;
  const Box box_{{2, 1}, {2, 2}};
};

TEST_F(NodeExchangeTest, SendsOnlyWhatIsKept) {
  EXPECT_THAT(Run({{1, "", {{0, 0, box_}}, {}}}, nullptr), HasSubstr("tile 0 of state 0"));
  EXPECT_THAT(Run({{1, "", {{1, 0, box_}}, {}}}, &kept_), HasSubstr("tile 0 of state 1"));
  EXPECT_THAT(Run({{1, "", {{0, 1, box_}}, {}}}, &kept_), HasSubstr("tile 1 of state 0"));
  EXPECT_THAT(Run({{1, "", {{0, 0, {{1, 1}, {2, 2}}}}, {}}}, &kept_),
              HasSubstr("begins before its tile"));
  EXPECT_THAT(Run({{1, "", {{0, 0, {{2, 1}, {2, 4}}}}, {}}}, &kept_), HasSubstr("does not lie in"));
}

TEST_F(NodeExchangeTest, CopiesOnlyAsMuchAsThereIs) {
  EXPECT_THAT(Run({{1, "", {{0, 0, box_}}, {}}}, &kept_),
              HasSubstr("16 bytes are to be copied to 0"));
}

TEST_F(NodeExchangeTest, ReceivesOnlyIntoASession) {
  EXPECT_THAT(Run({{1, "", {{0, 0, box_}}, {{0, 0, box_}}}}, &kept_),
              HasSubstr("there is no such session"));
}

TEST_F(NodeExchangeTest, HasThePeersThatItWasOpenedFor) {
  EXPECT_THAT(Run({{2, "address", {{0, 0, box_}}, {}}}, &kept_), HasSubstr("without peers"));
  EXPECT_THAT(Run({{1, "", {}, {}}, {1, "", {}, {}}}, &kept_), HasSubstr("named twice"));
}

TEST_F(NodeExchangeTest, RunsOnce) {
  NodeExchange exchange(nullptr);
  transport::UcxOptions options;
  options.peers = {{}};
  EXPECT_TRUE(exchange.Open(options, nullptr).ok());
  EXPECT_TRUE(exchange.Run({}, nullptr, nullptr, {}).ok());
  EXPECT_FALSE(exchange.Run({}, nullptr, nullptr, {}).ok());
}

}  // namespace
}  // namespace penstock::actors
