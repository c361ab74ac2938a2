#include "cli/launch_hosts.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(LaunchHostsTest, HostsHaveSlots) {
  const auto hosts = ParseHosts("a,b:4,[::1]:2,user@10.0.0.1,a:2");
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  EXPECT_THAT(*hosts, ElementsAre(HostSlots{"a", 3}, HostSlots{"b", 4}, HostSlots{"::1", 2},
                                  HostSlots{"user@10.0.0.1", 1}));
}

TEST(LaunchHostsTest, RangesStandForHosts) {
  const auto hosts = ParseHosts("gpu[08-10,2]:2,m[1-2]x[0-1]");
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  EXPECT_THAT(*hosts,
              ElementsAre(HostSlots{"gpu08", 2}, HostSlots{"gpu09", 2}, HostSlots{"gpu10", 2},
                          HostSlots{"gpu2", 2}, HostSlots{"m1x0", 1}, HostSlots{"m1x1", 1},
                          HostSlots{"m2x0", 1}, HostSlots{"m2x1", 1}));
}

TEST(LaunchHostsTest, WrongHostsAreNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "'': the host is missing"},
      {"a,,b", "'': the host is missing"},
      {"a:0", "'a:0': '0' is not a number of slots from 1 to 65536"},
      {"a:x", "'a:x': 'x' is not a number of slots"},
      {"a:99999999999999999999", "is not a number of slots"},
      {"::1", "'::1': an IPv6 address stands in brackets"},
      {"n[1-", "'n[1-': ']' is missing"},
      {"n1]", "'n1]': '[' is missing"},
      {"n[3-1]", "'3-1' is not a number or a range"},
      {"n[0-999999999]", "more than 65536 hosts"},
      {"n[0-65535],b", "more than 65536 slots"},
      {"[0-9][0-9][0-9][0-9][0-9]", "more than 65536"},
      {"-oProxyCommand=x", "a host does not begin with '-'"},
      {"a b", "'a b' is not a host's name"},
      {"$(x)", "is not a host's name"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(ParseHosts(text).status().ToString(), HasSubstr(message)) << text;
  }
}

TEST(LaunchHostsTest, HostFilesOfBothKinds) {
  const auto hosts = ParseHostFile("hosts",
                                   "# the cluster\n"
                                   "\n"
                                   "worker-1 slots=4   # DeepSpeed\n"
                                   "worker-2 max_slots=8 slots=2\r\n"
                                   "worker-3:3\n"
                                   "worker-4");
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  EXPECT_THAT(*hosts, ElementsAre(HostSlots{"worker-1", 4}, HostSlots{"worker-2", 2},
                                  HostSlots{"worker-3", 3}, HostSlots{"worker-4", 1}));
}

TEST(LaunchHostsTest, HostFilesOfOpenMpiMaySaySlotsInSeveralWays) {
  const auto hosts = ParseHostFile("hosts",
                                   "a slots = 2 max-slots=4\n"
                                   "b cpu=3\n"
                                   "c\tcount= 4  slots_max =9\n"
                                   "d username=me slots=2\n"
                                   "[fe80::1] user-name = you cpus=2\n");
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  EXPECT_THAT(*hosts, ElementsAre(HostSlots{"a", 2}, HostSlots{"b", 3}, HostSlots{"c", 4},
                                  HostSlots{"me@d", 2}, HostSlots{"you@fe80::1", 2}));
}

TEST(LaunchHostsTest, ErrorsOfHostFilesSayWhere) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\n  b slots=0\n", "hosts:2:3: 'b:0': '0' is not a number of slots"},
      {"a slots=1 slots=2", "hosts:1:11: 'slots=2': the slots of this host were given before"},
      {"a:2 slots=2", "hosts:1:5: 'slots=2': the slots of this host were given before"},
      {"a 4", "hosts:1:3: '4': expected slots=N or username=NAME"},
      {"a slot=1  gpus = 2", "hosts:1:11: 'gpus = 2': expected slots=N or username=NAME"},
      {"a slots=", "hosts:1:3: 'slots=': the number of slots is missing"},
      {"me@a username=you", "hosts:1:6: 'username=you': the user of this host was given before"},
      {"a username=-oProxy", "hosts:1:1: '-oProxy@a': a host does not begin with '-'"},
      {"# nothing\n", "hosts: there is no host in it"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(ParseHostFile("hosts", text).status().ToString(), HasSubstr(message)) << text;
  }
}

TEST(LaunchHostsTest, NodeListsOfSlurm) {
  EXPECT_THAT(*ExpandNodeList("n[1-3,07],m0"), ElementsAre("n1", "n2", "n3", "n07", "m0"));
  EXPECT_THAT(*ExpandNodeList("rack[0-9]-[000-999]"), SizeIs(10000));
  EXPECT_FALSE(ExpandNodeList("n[1").ok());
  EXPECT_THAT(*ParseTasksPerNode("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_FALSE(ParseTasksPerNode("2(x").ok());
  EXPECT_FALSE(ParseTasksPerNode("(x3)").ok());
  EXPECT_FALSE(ParseTasksPerNode("").ok());
}

}  // namespace
}  // namespace penstock::cli
