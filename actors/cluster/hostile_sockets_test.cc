// A listening coordinator among hostile connections, over real sockets, and nodes that lie to it.

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/cluster.h"
#include "actors/cluster/connection_internal.h"
#include "actors/cluster/control.capnp.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/control_port_internal.h"
#include "actors/cluster/job_key.h"
#include "actors/cluster/node.h"
#include "base/strings.h"
#include "tests/support/control_harness.h"

namespace penstock::actors {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kAbstract = "unix-abstract:";

// A blocking socket of a peer that says what it likes.
class RawConnection {
 public:
  explicit RawConnection(std::string_view address) {
    if (address.substr(0, kAbstract.size()) == kAbstract) {
      const std::string_view name = address.substr(kAbstract.size());
      sockaddr_un where{};
      where.sun_family = AF_UNIX;
      memcpy(where.sun_path + 1, name.data(), name.size());
      const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
      fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&where), size), 0);
    } else {
      sockaddr_in where{};
      where.sin_family = AF_INET;
      where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      where.sin_port = htons(
          static_cast<uint16_t>(atoi(std::string(address.substr(address.rfind(':') + 1)).c_str())));
      fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&where), sizeof(where)), 0);
    }
    const timeval bound{20, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof(bound));
  }
  RawConnection(RawConnection&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~RawConnection() {
    if (fd_ >= 0) close(fd_);
  }

  void Say(std::string_view bytes) { (void)!send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }

  // Whether the other side hangs up within the bound.
  bool IsLetGo() {
    char buffer[4096];
    while (true) {
      const ssize_t size = recv(fd_, buffer, sizeof(buffer), 0);
      if (size == 0 || (size < 0 && errno == ECONNRESET)) return true;
      if (size < 0) return false;
    }
  }

 private:
  int fd_ = -1;
};

class HostileSocketsTest : public ::testing::TestWithParam<std::string> {
 protected:
  HostileSocketsTest() {
    node_.kernels = &kernels_;
    node_.policies = &policies_;
  }

  std::future<absl::Status> StartNode(const std::string& address, const std::string& key,
                                      int rank = -1) {
    NodeOptions options = node_;
    options.coordinator = address;
    options.key = key;
    options.rank = rank;
    return std::async(std::launch::async, [options] { return RunNode(options); });
  }

  kernels::KernelRegistry kernels_;
  planner::PolicyRegistry policies_;
  NodeOptions node_;
};

TEST_P(HostileSocketsTest, NodesJoinAllTheSame) {
  std::vector<RawConnection> silent;
  std::vector<std::future<absl::Status>> nodes;
  std::string join_address;
  std::string job_key;
  ClusterOptions options;
  options.num_processes = 2;
  options.listen = GetParam();
  options.on_listening = [&](const std::string& address, const std::string& key) {
    join_address = address;
    job_key = key;
    const std::string bytes = ParseJobKey(key).value();
    const std::string hello = testing::NodeHello().substr(0, 8) + bytes.substr(0, 16);
    for (size_t i = 0; i < 3 * control::kMaxStrangers; ++i) {
      silent.emplace_back(address);
      if (i % 3 == 1) silent.back().Say(hello.substr(0, i % hello.size()));
    }
    // The oldest had to make room.
    for (size_t i = 0; i < control::kMaxStrangers; ++i) EXPECT_TRUE(silent[i].IsLetGo());
    for (int i = 0; i < 200; ++i) {
      RawConnection other(address);
      switch (i % 4) {
        case 0:  // a wrong key
          other.Say(hello.substr(0, 8) + bytes.substr(16));
          break;
        case 1:  // another protocol
          other.Say("GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n");
          break;
        case 2:  // a right hello, then anything
          other.Say(hello + std::string(1000, static_cast<char>(i)));
          break;
        case 3:
          other.Say(hello + std::string("\0\0\0\0\xff\xff\xff\x7f", 8));
          break;
      }
      EXPECT_TRUE(other.IsLetGo()) << i;
    }
    nodes.push_back(StartNode(address, key));
    nodes.push_back(StartNode(address, key));
  };
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();

  // More nodes than there are ranks, and one that has no key.
  EXPECT_THAT(StartNode(join_address, job_key).get().ToString(), HasSubstr("have joined"));
  EXPECT_THAT(StartNode(join_address, job_key, 1).get().ToString(), HasSubstr("no free node 1"));
  EXPECT_THAT(StartNode(join_address, job_key, 99).get().ToString(), HasSubstr("no free node 99"));
  EXPECT_FALSE(StartNode(join_address, NewJobKey().value()).get().ok());

  // The silent ones have their time.
  for (RawConnection& connection : silent) EXPECT_TRUE(connection.IsLetGo());
  (*cluster)->Stop();
  for (std::future<absl::Status>& node : nodes) EXPECT_TRUE(node.get().ok());
}

INSTANTIATE_TEST_SUITE_P(Sockets, HostileSocketsTest, ::testing::Values("127.0.0.1:0", ""),
                         [](const auto& info) {
                           return std::string(info.param.empty() ? "Abstract" : "Tcp");
                         });

// A member without the interface that it joined with does not count as one that lives.
TEST(LyingNodeTest, OneThatAnswersNoPingIsLost) {
  const std::unique_ptr<control::ControlLoop> loop = control::ControlLoop::Start().value();
  kj::Own<control::RpcConnection> rpc;
  ClusterOptions options;
  options.num_processes = 2;
  options.heartbeat_interval = absl::Milliseconds(50);
  options.on_listening = [&](const std::string& address, const std::string& key) {
    const absl::Status joined = loop->Await(
        [&] {
          return loop->io()
              .provider->getNetwork()
              .parseAddress(address.c_str())
              .then([](kj::Own<kj::NetworkAddress> where) {
                auto connected = where->connect();
                return connected.attach(kj::mv(where));
              })
              .then([&](kj::Own<kj::AsyncIoStream> stream) {
                auto hello = control::SayHello(*stream, ParseJobKey(key).value());
                return hello.then([&, stream = kj::mv(stream)]() mutable {
                  rpc = kj::heap<control::RpcConnection>(
                      kj::mv(stream), capnp::rpc::twoparty::Side::CLIENT, nullptr, loop->timer());
                  auto call = rpc->Bootstrap().castAs<control::Coordinator>().joinRequest();
                  call.initInfo().setHost(std::string(1 << 10, 'h').c_str());
                  return call.send().ignoreResult();  // without a node
                });
              });
        },
        absl::Seconds(10), "the join");
    EXPECT_TRUE(joined.ok()) << joined;
  };
  const absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
  EXPECT_THAT(cluster.status().ToString(), HasSubstr("answers with errors"));
  EXPECT_LT(cluster.status().message().size(), 1000u);
  (void)loop->Await(
      [&]() -> kj::Promise<void> {
        rpc = nullptr;
        return kj::READY_NOW;
      },
      absl::Seconds(10), "the end of the connection");
}

}  // namespace
}  // namespace penstock::actors
