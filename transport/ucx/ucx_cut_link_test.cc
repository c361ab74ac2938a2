// What becomes of requests when the link to a peer is cut, pauses, or is slow. Each test has a
// network namespace of its own, in which everything passes over the loopback interface: so a cut is
// one in both directions.
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/ucx_transports.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_transport.h"

namespace penstock::testing {
namespace {

using ::testing::HasSubstr;
using transport::Endpoint;
using transport::kNoFlags;
using transport::Request;
using transport::UcxOptions;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Of this thread's namespace; returns whether that worked.
bool SwitchLoopback(bool is_up) {
  ifreq request = {};
  std::strncpy(request.ifr_name, "lo", IFNAMSIZ - 1);
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  bool is_done = ioctl(fd, SIOCGIFFLAGS, &request) == 0;
  request.ifr_flags = static_cast<short>(is_up ? request.ifr_flags | IFF_UP  // NOLINT
                                               : request.ifr_flags & ~IFF_UP);
  is_done = is_done && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  close(fd);
  return is_done;
}

// Whether the time between two retries of TCP can be bounded: Linux 6.15.
bool BoundsRetries() {
  const int interval_option = 44;  // TCP_RTO_MAX_MS
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  int interval_ms = 0;
  socklen_t size = sizeof(interval_ms);
  const bool is_bounded = getsockopt(fd, IPPROTO_TCP, interval_option, &interval_ms, &size) == 0;
  close(fd);
  return is_bounded;
}

// Devices 0 and 1, each with a transport of its own.
class CutLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (unshare(CLONE_NEWNET) != 0 || !SwitchLoopback(true)) {
      GTEST_SKIP() << "network namespaces need root: " << std::strerror(errno);
    }
  }
  void TearDown() override {
    SwitchLoopback(true);
    for (WaitedTransport& transport : transports_) transport.reset();
  }

  void Connect(milliseconds link_timeout) {
    for (uint32_t device = 0; device < 2; ++device) {
      UcxOptions options = OptionsOf(device);
      options.transport.num_devices = 2;
      options.link_timeout = link_timeout;
      options.on_cut_link = [this, device](uint32_t peer) {
        EXPECT_EQ(peer, 1 - device);
        ++num_cut_[device];
      };
      transports_.push_back(MakeTransport(options));
    }
    for (uint32_t device = 0; device < 2; ++device) {
      ASSERT_EQ(transports_[device]->Connect(1 - device, transports_[1 - device]->LocalAddress()),
                absl::OkStatus());
      endpoints_.push_back(*transports_[device]->OpenEndpoint(device));
    }
    for (const uint32_t from : {0, 1}) Exchange(from, 8, [] {});
  }

  bool Drive(const std::function<bool()>& is_reached) {
    return DriveUntil(*endpoints_[0], [&] {
      endpoints_[1]->Progress();
      return is_reached();
    });
  }

  // A message of so many bytes from a device to the other one; `between` is called once it is on
  // its way.
  void Exchange(uint32_t from, size_t num_bytes, const std::function<void()>& between) {
    const transport::Tag tag = {kGeneration, 0, sequence_++};
    const std::vector<uint8_t> sent(num_bytes, 7);
    std::vector<uint8_t> received(num_bytes, 0);
    Request send, recv;
    endpoints_[1 - from]->Recv(from, tag, received.data(), num_bytes, &recv);
    endpoints_[from]->Send(1 - from, tag, sent.data(), num_bytes, kNoFlags, &send);
    between();
    ASSERT_TRUE(Drive([&] { return send.is_done() && recv.is_done(); }));
    EXPECT_EQ(send.status, absl::OkStatus());
    EXPECT_EQ(recv.status, absl::OkStatus());
    EXPECT_EQ(received, sent);
  }

  const TransportsGuard guard_{"tcp"};
  std::vector<WaitedTransport> transports_;
  std::vector<Endpoint*> endpoints_;
  std::atomic<int> num_cut_[2] = {0, 0};
  uint64_t sequence_ = 0;
};

TEST_F(CutLinkTest, EndsTheRequestsOnBothSides) {
  Connect(milliseconds(2300));
  Request recv, send;
  uint64_t received = 0;
  const uint64_t sent = 1;
  endpoints_[0]->Recv(1, {kGeneration, 0, 100}, &received, 8, &recv);
  ASSERT_TRUE(SwitchLoopback(false));
  const auto begin = Clock::now();
  endpoints_[1]->Send(0, {kGeneration, 0, 100}, &sent, 8, kNoFlags, &send);
  ASSERT_TRUE(Drive([&] { return recv.is_done() && send.is_done(); }));
  const auto took = Clock::now() - begin;
  EXPECT_GT(took, milliseconds(2300));
  EXPECT_LT(took, seconds(BoundsRetries() ? 6 : 8));
  for (const Request* request : {&recv, &send}) {
    EXPECT_EQ(request->status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(request->status.message()), HasSubstr("not even a confirmation"));
  }
  EXPECT_EQ(num_cut_[0], 1);
  EXPECT_EQ(num_cut_[1], 1);
}

// The length of the sleep is what is tested: TCP takes longer to go on.
TEST_F(CutLinkTest, APauseEndsNothing) {
  Connect(milliseconds(3300));
  for (const size_t num_bytes : {8, 3 << 20}) {
    Exchange(0, num_bytes, [] {
      ASSERT_TRUE(SwitchLoopback(false));
      std::this_thread::sleep_for(milliseconds(1800));
      ASSERT_TRUE(SwitchLoopback(true));
    });
  }
  EXPECT_EQ(num_cut_[0] + num_cut_[1], 0);
}

// Its kernel answers for it. The number of seconds is what is tested.
TEST_F(CutLinkTest, APeerThatComputesIsNotBehindACutLink) {
  Connect(milliseconds(1000));
  Request recv, send;
  uint64_t received = 0;
  const uint64_t sent = 1;
  endpoints_[0]->Recv(1, {kGeneration, 0, 100}, &received, 8, &recv);
  const auto end = Clock::now() + seconds(6);
  ASSERT_TRUE(DriveUntil(*endpoints_[0], [&] { return Clock::now() > end; }));
  EXPECT_EQ(recv.state, Request::State::kPending) << recv.status;
  endpoints_[1]->Send(0, {kGeneration, 0, 100}, &sent, 8, kNoFlags, &send);
  ASSERT_TRUE(Drive([&] { return recv.is_done() && send.is_done(); }));
  EXPECT_EQ(recv.status, absl::OkStatus());
  EXPECT_EQ(num_cut_[0] + num_cut_[1], 0);
}

// Fills the receive window of a device that makes no progress, as one that computes does not.
class ClosedWindowTest : public CutLinkTest {
 protected:
  static constexpr size_t kNumMessages = 4000;
  static constexpr size_t kNumBytes = 4096;

  void Fill() {
    for (size_t i = 0; i < kNumMessages; ++i) {
      endpoints_[0]->Send(1, {kGeneration, 1, i}, sent_.data(), kNumBytes, kNoFlags, &sends_[i]);
    }
    // The receiver's buffer is of some megabytes. Then the sender's kernel only asks from time to
    // time, so what is counted is how long nothing has moved.
    DriveFor(seconds(3));
    EXPECT_FALSE(sends_.back().is_done());
  }
  void DriveFor(seconds time) {
    const auto end = Clock::now() + time;
    ASSERT_TRUE(DriveUntil(*endpoints_[0], [&] { return Clock::now() > end; }));
  }

  const std::vector<uint8_t> sent_ = std::vector<uint8_t>(kNumBytes, 7);
  std::vector<Request> sends_{kNumMessages};
};

TEST_F(ClosedWindowTest, HidesNoCut) {
  Connect(milliseconds(2300));
  Fill();
  ASSERT_TRUE(SwitchLoopback(false));
  const auto begin = Clock::now();
  ASSERT_TRUE(DriveUntil(*endpoints_[0], [&] { return sends_.back().is_done(); }));
  EXPECT_LT(Clock::now() - begin, seconds(15));  // 7 where the kernel doubles its intervals
  EXPECT_EQ(sends_.back().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(sends_.back().status.message()), HasSubstr("not even a confirmation"));
  EXPECT_EQ(num_cut_[0], 1);
}

// The kernel doubles the time between its questions. The number of seconds is what is tested.
TEST_F(ClosedWindowTest, HidesNoCutAfterALongTime) {
  if (!BoundsRetries()) GTEST_SKIP() << "this kernel is older than Linux 6.15";
  Connect(milliseconds(2300));
  Fill();
  DriveFor(seconds(20));
  ASSERT_TRUE(SwitchLoopback(false));
  const auto begin = Clock::now();
  ASSERT_TRUE(DriveUntil(*endpoints_[0], [&] { return sends_.back().is_done(); }));
  EXPECT_LT(Clock::now() - begin, seconds(8));
  EXPECT_EQ(num_cut_[0], 1);
}

TEST_F(ClosedWindowTest, IsNoCut) {
  Connect(milliseconds(2300));
  Fill();
  DriveFor(seconds(6));
  EXPECT_FALSE(sends_.back().is_done());
  EXPECT_EQ(num_cut_[0], 0);
  std::vector<Request> recvs(kNumMessages);
  std::vector<uint8_t> received(kNumBytes);
  for (size_t i = 0; i < kNumMessages; ++i) {
    endpoints_[1]->Recv(0, {kGeneration, 1, i}, received.data(), kNumBytes, &recvs[i]);
  }
  ASSERT_TRUE(Drive([&] { return sends_.back().is_done() && recvs.back().is_done(); }));
  EXPECT_EQ(sends_.back().status, absl::OkStatus());
  EXPECT_EQ(recvs.back().status, absl::OkStatus());
  EXPECT_EQ(num_cut_[0] + num_cut_[1], 0);
}

// A chunk of a long message takes four times the bound.
TEST_F(CutLinkTest, ASlowLinkIsNotCut) {
  Connect(milliseconds(1000));
  if (std::system("tc qdisc add dev lo root tbf rate 2mbit burst 128kb latency 500ms") != 0) {
    GTEST_SKIP() << "there is no tc (package iproute2), or no tbf in this kernel";
  }
  Exchange(0, 2 << 20, [] {});
  EXPECT_EQ(num_cut_[0] + num_cut_[1], 0);
}

}  // namespace
}  // namespace penstock::testing
