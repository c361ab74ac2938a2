#include "actors/cluster/agent_tree.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/launcher_internal.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<TreeHost> Hosts(size_t count) {
  std::vector<TreeHost> hosts;
  for (size_t i = 0; i < count; ++i) hosts.push_back({StrCat("n", i), 1 + uint32_t(i % 3)});
  return hosts;
}

TEST(TreeHostsTest, AreReadAsTheyWereWritten) {
  const std::vector<TreeHost> hosts = {{"me@node1", 2}, {"fe80::1%eth0", 1}, {"n3", 4096}};
  EXPECT_EQ(ToText(hosts), "me@node1/2,fe80::1%eth0/1,n3/4096");
  const auto read = ParseTreeHosts(ToText(hosts));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ToText(*read), ToText(hosts));
  EXPECT_TRUE(ParseTreeHosts("")->empty());
  for (const std::string text :
       {"n1", "n1/", "/1", "n1/0", "n1/-1", "n1/x", "-oX=y/1", "n1/1,,n2/1"}) {
    EXPECT_EQ(ParseTreeHosts(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(SplitHostsTest, PartsAreEven) {
  const std::vector<TreeHost> hosts = Hosts(7);
  std::vector<size_t> sizes;
  for (const auto& part : SplitHosts(hosts, 3)) sizes.push_back(part.size());
  EXPECT_THAT(sizes, ElementsAre(3, 2, 2));
  EXPECT_EQ(SplitHosts(hosts, 100).size(), 7u);
  EXPECT_TRUE(SplitHosts({}, 3).empty());
}

// Of a tree from here down: the ranks of each host, in the order in which agents come to them.
struct Walk {
  std::vector<std::string> ranks;  // "n1:2-3"
  size_t most_children = 0;
  size_t depth = 0;
};
void Descend(absl::Span<const TreeHost> hosts, uint32_t fanout, uint32_t first_rank, size_t depth,
             Walk* walk) {
  const auto parts = SplitHosts(hosts, fanout);
  walk->most_children = std::max(walk->most_children, parts.size());
  walk->depth = std::max(walk->depth, parts.empty() ? depth : depth + 1);
  for (const auto& part : parts) {
    const uint32_t own = part.front().num_ranks;
    walk->ranks.push_back(StrCat(part.front().host, ":", first_rank, "-", first_rank + own - 1));
    Descend(part.subspan(1), fanout, first_rank + own, depth + 1, walk);
    first_rank += NumRanks(part);
  }
}

TEST(SplitHostsTest, ATreeHasEachHostOnceWithTheRanksInOrder) {
  for (const size_t count : {1, 2, 3, 7, 64, 1000}) {
    for (const uint32_t fanout : {1, 2, 3, 32, 4096}) {
      const std::vector<TreeHost> hosts = Hosts(count);
      std::vector<std::string> expected;
      uint32_t rank = 0;
      for (const TreeHost& host : hosts) {
        expected.push_back(StrCat(host.host, ":", rank, "-", rank + host.num_ranks - 1));
        rank += host.num_ranks;
      }
      Walk walk;
      Descend(hosts, fanout, 0, 0, &walk);
      EXPECT_EQ(walk.ranks, expected) << count << " hosts, fanout " << fanout;
      EXPECT_LE(walk.most_children, fanout);
      if (fanout == 32) {
        EXPECT_LE(walk.depth, 3u) << count;
      }
    }
  }
}

TEST(CommandOfPartTest, TheFirstHostIsToldOfTheOthers) {
  TreeOptions options;
  options.through = {"/usr/bin/ssh", "-o", "ProxyCommand=a 'b' c", "--"};
  options.fanout = 2;
  options.node_command = {"/opt/penstock", "node", "--join", "10.0.0.1:7"};
  options.pinning = "neighbours";
  options.key = std::string(64, 'a');
  const std::vector<TreeHost> hosts = {{"n0", 1}, {"n1", 2}, {"n2", 3}};
  LaunchCommand command = CommandOfPart(options, hosts, 5);
  EXPECT_EQ(command.rank, 5u);
  EXPECT_EQ(command.agent_ranks, 6u);
  EXPECT_EQ(command.remote_host, "n0");
  EXPECT_EQ(command.input, options.key + "\n");
  ASSERT_EQ(command.arguments.size(), 6u);
  EXPECT_EQ(command.arguments[4], "n0");
  const std::string script = command.arguments.back();
  EXPECT_THAT(script, HasSubstr("--rank 5 --slots 1 --pin neighbours --below n1/2,n2/3 --fanout 2 "
                                "--through=/usr/bin/ssh --through=-o "));
  EXPECT_THAT(script, HasSubstr("--through=-- --key-file -"));
  EXPECT_THAT(script, Not(HasSubstr(options.key)));
  EXPECT_TRUE(command.environment.empty());

  // A host with one node and nothing below needs no agent.
  options.key_file = "/keys/job";
  command = CommandOfPart(options, absl::MakeConstSpan(hosts).first(1), 5);
  EXPECT_EQ(command.agent_ranks, 0u);
  EXPECT_EQ(command.input, "");
  EXPECT_THAT(command.arguments.back(), HasSubstr("--rank 5 --key-file /keys/job"));
  EXPECT_THAT(command.arguments.back(), Not(HasSubstr("--slots")));
}

}  // namespace
}  // namespace penstock::actors
