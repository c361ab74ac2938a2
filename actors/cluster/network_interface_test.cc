#include "actors/cluster/network_interface.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/socket_address.h"

namespace penstock::actors {
namespace {

using ::testing::HasSubstr;

TEST(SocketAddressTest, HostAndPortComeApartAndTogether) {
  EXPECT_EQ(SplitAddress("10.0.0.1:80").host, "10.0.0.1");
  EXPECT_EQ(SplitAddress("10.0.0.1:80").port, "80");
  EXPECT_EQ(SplitAddress("node7").host, "node7");
  EXPECT_EQ(SplitAddress("node7").port, "");
  EXPECT_EQ(SplitAddress("[::1]:80").host, "::1");
  EXPECT_EQ(SplitAddress("[::1]:80").port, "80");
  EXPECT_EQ(SplitAddress("[::1]").port, "");
  EXPECT_EQ(SplitAddress("fe80::1").host, "fe80::1");
  EXPECT_EQ(JoinAddress("10.0.0.1", 80), "10.0.0.1:80");
  EXPECT_EQ(JoinAddress("::1", 80), "[::1]:80");
  EXPECT_TRUE(IsUnixAddress("unix:/tmp/s"));
  EXPECT_TRUE(IsUnixAddress("unix-abstract:s"));
  EXPECT_FALSE(IsUnixAddress("unixhost:80"));
  EXPECT_TRUE(IsWildcard("0.0.0.0"));
  EXPECT_FALSE(IsWildcard("10.0.0.0"));
}

TEST(SocketAddressTest, LoopbackIsThisHostForSure) {
  for (const char* host : {"127.0.0.1", "127.8.9.10", "::1", "localhost"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
  }
  for (const char* host : {"127.evil.example", "127.0.0.1.evil.example", "localhost.example",
                           "10.0.0.1", "0.0.0.0", "::", "::2", "127.1", ""}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
  EXPECT_TRUE(IsIpAddress("10.0.0.1"));
  EXPECT_TRUE(IsIpAddress("fe80::1"));
  EXPECT_FALSE(IsIpAddress("10.0.0.1.example"));
  EXPECT_FALSE(IsIpAddress("node7"));
}

TEST(SocketAddressTest, WithoutTlsAnAddressHasToBeOfThisHost) {
  for (const char* address :
       {"127.0.0.1:0", "localhost:80", "[::1]:80", "unix:/tmp/s", "unix-abstract:s"}) {
    EXPECT_TRUE(CheckIsInsecureAddress(address).ok()) << address;
  }
  for (const char* address : {"0.0.0.0:0", "10.0.0.1:80", "node7:80", "[::]:80"}) {
    EXPECT_EQ(CheckIsInsecureAddress(address).code(), absl::StatusCode::kInvalidArgument)
        << address;
  }
}

TEST(SocketAddressTest, AddressesAreChecked) {
  for (const char* good : {"127.0.0.1", "node7", "*", "[::1]", "fe80::1", "::", "127.0.0.1:0"}) {
    EXPECT_TRUE(CheckListenAddress(good).ok()) << CheckListenAddress(good);
    EXPECT_FALSE(CheckJoinAddress(good).ok()) << good;
  }
  for (const char* good :
       {"127.0.0.1:65535", "node7:1", "[::1]:80", "unix:/tmp/s", "unix-abstract:s"}) {
    EXPECT_TRUE(CheckListenAddress(good).ok()) << CheckListenAddress(good);
    EXPECT_TRUE(CheckJoinAddress(good).ok()) << CheckJoinAddress(good);
  }
  const std::string long_path = "unix:/" + std::string(200, 'x');
  const std::pair<std::string, std::string> cases[] = {
      {"", "\"\": the address is empty"},
      {"unix:", "\"unix:\": the path is missing"},
      {"unix-abstract:", "the path is missing"},
      {long_path, "the path is longer than 107 bytes"},
      {"[::1", "\"[::1\": ']' is missing; expected [IPV6]:PORT"},
      {"[::1]80", "expected ':' and a port after ']'"},
      {"[node7]:80", "'node7' is not an IPv6 address"},
      {"80", "\"80\": the host is missing; expected HOST:PORT, such as 127.0.0.1:80"},
      {":5000", "\":5000\": the host is missing; expected HOST:PORT"},
      {"host:80:x", "\"host:80:x\": it has more than one colon and is not an IPv6 address"},
      {"two words:80", "'two words' is not a host"},
      {"127.0.0.1:x", "'x' is not a port; expected a number from 0 to 65535"},
      {"127.0.0.1:-1", "'-1' is not a port"},
      {"127.0.0.1:+1", "'+1' is not a port"},
      {"127.0.0.1:", "the port is missing"},
      {"[::1]:", "the port is missing"},
      {"127.0.0.1:99999", "'99999' is not a port"},
      {"127.0.0.1:99999999999999999999", "is not a port"},
  };
  for (const auto& [address, message] : cases) {
    const absl::Status status = CheckListenAddress(address);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << address;
    EXPECT_FALSE(CheckJoinAddress(address).ok()) << address;
  }
  EXPECT_THAT(std::string(CheckJoinAddress("127.0.0.1").message()),
              HasSubstr("\"127.0.0.1\": the port is missing; expected HOST:PORT"));
  EXPECT_THAT(std::string(CheckJoinAddress("127.0.0.1:0").message()),
              HasSubstr("expected a number from 1 to 65535"));
}

TEST(NetworkInterfaceTest, AnInterfaceThatIsNotThereIsNamedWithThoseThatAre) {
  EXPECT_TRUE(CheckInterfaces("lo").ok());
  const absl::Status status = CheckInterfaces("lo,eth77");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("network interface 'eth77'"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("this host has "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("lo"));
  EXPECT_FALSE(CheckInterfaces("").ok());
  EXPECT_FALSE(CheckInterfaces("lo,").ok());
  EXPECT_FALSE(CheckInterfaces("../net").ok());
}

TEST(NetworkInterfaceTest, TheRouteToThisHostIsTheLoopback) {
  for (const char* address : {"127.0.0.1:1", "localhost:1", "unix-abstract:x", "unix:/tmp/x"}) {
    const absl::StatusOr<std::string> name = InterfaceOfRoute(address);
    ASSERT_TRUE(name.ok()) << name.status();
    EXPECT_EQ(*name, "lo") << address;
  }
  EXPECT_THAT(std::string(InterfaceOfRoute("no.such.host.invalid:1").status().message()),
              HasSubstr("'no.such.host.invalid' is not known"));
}

TEST(NetworkInterfaceTest, AnAddressOfThisHostIsKnown) {
  EXPECT_EQ(OwnAddressOf("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(OwnAddressOf("127.0.0.77"), "127.0.0.77");
  EXPECT_EQ(OwnAddressOf("localhost"), "127.0.0.1");
  const std::string reachable = ReachableAddress();
  EXPECT_EQ(OwnAddressOf(reachable), reachable);
  // For documentation: no host has it.
  EXPECT_EQ(OwnAddressOf("192.0.2.1"), "");
  EXPECT_EQ(OwnAddressOf("no.such.host.invalid"), "");
  EXPECT_EQ(OwnAddressOf(""), "");
}

}  // namespace
}  // namespace penstock::actors
