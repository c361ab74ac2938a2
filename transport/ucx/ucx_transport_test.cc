// The conformance suite over UCX, and what happens when a peer misbehaves.
#include "transport/ucx/ucx_transport.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/collective.h"
#include "base/device.h"
#include "base/stream_copy.h"
#include "base/strings.h"
#include "tests/support/collective_reference.h"
#include "tests/support/raw_ucx_worker.h"
#include "tests/support/transport_conformance.h"
#include "tests/support/ucx_transports.h"
#include "transport/collective.h"
#include "transport/transport.h"
#include "transport/ucx/wire.h"

namespace penstock::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using transport::CreateUcxTransport;
using transport::Endpoint;
using transport::kNoFlags;
using transport::Request;
using transport::Tag;
using transport::TransportOptions;
using transport::TransportStats;
using transport::UcxOptions;
using transport::UcxTransport;

// A transport for every `devices_per_process` devices, joined as those of separate processes are.
// Each with all others, by their first devices.
void ConnectAll(std::vector<WaitedTransport>& transports, uint32_t devices_per_process = 1) {
  for (uint32_t i = 0; i < transports.size(); ++i) {
    for (uint32_t j = 0; j < transports.size(); ++j) {
      if (i == j) continue;
      EXPECT_EQ(transports[i]->Connect(j * devices_per_process, transports[j]->LocalAddress()),
                absl::OkStatus());
    }
  }
}

class UcxFabric final : public TestFabric {
 public:
  UcxFabric(const TransportOptions& options, uint32_t devices_per_process) {
    for (uint32_t first = 0; first < options.num_devices; first += devices_per_process) {
      UcxOptions ucx;
      ucx.transport = options;
      ucx.first_device = first;
      ucx.num_local_devices = std::min(devices_per_process, options.num_devices - first);
      transports_.push_back(MakeTransport(ucx));
      for (uint32_t i = 0; i < ucx.num_local_devices; ++i) {
        endpoints_.push_back(*transports_.back()->OpenEndpoint(first + i));
      }
    }
    ConnectAll(transports_, devices_per_process);
  }

  Endpoint& endpoint(uint32_t device) override { return *endpoints_[device]; }
  UcxTransport& transport(uint32_t process) { return *transports_[process]; }

  TransportStats stats() const override {
    TransportStats sum;
    for (const auto& transport : transports_) {
      const TransportStats stats = transport->stats();
      sum.messages += stats.messages;
      sum.bytes += stats.bytes;
      sum.dropped += stats.dropped;
    }
    return sum;
  }

 private:
  std::vector<WaitedTransport> transports_;
  std::vector<Endpoint*> endpoints_;
};

FabricParam MakeParam(const std::string& name, const std::string& transports,
                      uint32_t devices_per_process) {
  return {name, [=](const TransportOptions& options) -> std::unique_ptr<TestFabric> {
            const TransportsGuard guard(transports);
            return std::make_unique<UcxFabric>(options, devices_per_process);
          }};
}

const auto kFabrics =
    ::testing::Values(MakeParam("SharedMemory", "posix", 1), MakeParam("Tcp", "tcp", 1),
                      MakeParam("Chosen", "", 1), MakeParam("TwoDevicesAProcess", "", 2));

INSTANTIATE_TEST_SUITE_P(Ucx, TransportConformance, kFabrics, FabricParamName);
INSTANTIATE_TEST_SUITE_P(Ucx, TransportErrors, kFabrics, FabricParamName);

// --- Some peers only ----------------------------------------------------------------------------

TEST(UcxPeersTest, OnlyThoseThatExchangeMessagesAreConnected) {
  // A chain 0 - 1 - 2.
  const std::vector<std::vector<uint32_t>> peers = {{1}, {0, 2}, {1}};
  std::vector<WaitedTransport> transports;
  std::vector<Endpoint*> endpoints;
  for (uint32_t device = 0; device < 3; ++device) {
    UcxOptions options;
    options.transport = {.num_devices = 3, .generation = kGeneration, .num_channels = 4};
    options.first_device = device;
    options.peers = {peers[device]};
    transports.push_back(MakeTransport(options));
    endpoints.push_back(*transports.back()->OpenEndpoint(device));
  }
  ConnectAll(transports);
  for (const auto& [from, to] : {std::pair(0u, 1u), std::pair(2u, 1u), std::pair(1u, 0u)}) {
    const uint64_t sent = 10 * from + to;
    uint64_t received = 0;
    Request send;
    Request receive;
    endpoints[to]->Recv(from, {kGeneration, 1, 7}, &received, sizeof(received), &receive);
    endpoints[from]->Send(to, {kGeneration, 1, 7}, &sent, sizeof(sent), 0, &send);
    EXPECT_TRUE(DriveUntil(*endpoints[from], [&, to = to] {
      endpoints[to]->Progress();
      return send.is_done() && receive.is_done();
    }));
    EXPECT_EQ(received, sent);
  }
  for (const auto& [from, to] : {std::pair(0u, 2u), std::pair(2u, 0u)}) {
    uint64_t value = 0;
    Request send;
    endpoints[from]->Send(to, {kGeneration, 1, 8}, &value, sizeof(value), 0, &send);
    ASSERT_EQ(send.state, Request::State::kFailed);
    EXPECT_THAT(send.status.ToString(),
                HasSubstr(StrCat("device ", from, " is not connected to ", to)));
  }
}

TEST(UcxPeersTest, AreGivenForEachLocalDevice) {
  UcxOptions options;
  options.transport = {.num_devices = 3, .generation = kGeneration, .num_channels = 4};
  options.num_local_devices = 2;
  options.peers = {{2}};
  EXPECT_THAT(CreateUcxTransport(options).status().ToString(),
              HasSubstr("peers of 1 devices are given for 2"));
}

// --- Bounds, owners, memory ----------------------------------------------------------------------

TEST(UcxTransportTest, NothingWaitsLongerThanItsBound) {
  UcxOptions options = OptionsOf(0);
  options.request_timeout = std::chrono::seconds(1);
  auto mine = MakeTransport(options);
  auto other = MakeTransport(OptionsOf(1));
  ASSERT_EQ(mine->Connect(1, other->LocalAddress()), absl::OkStatus());
  ASSERT_EQ(other->Connect(0, mine->LocalAddress()), absl::OkStatus());
  Endpoint& endpoint = **mine->OpenEndpoint(0);
  Request send, recv;
  uint64_t sent = 1, received = 0;
  endpoint.Send(1, {kGeneration, 0, 0}, &sent, 8, kNoFlags, &send);
  endpoint.Recv(1, {kGeneration, 0, 0}, &received, 8, &recv);
  ASSERT_TRUE(DriveUntil(endpoint, [&] {
    (*other->OpenEndpoint(1))->Progress();
    return send.is_done() && recv.is_done();
  }));
  EXPECT_EQ(send.status.code(), absl::StatusCode::kDeadlineExceeded) << send.status;
  EXPECT_EQ(recv.status.code(), absl::StatusCode::kDeadlineExceeded) << recv.status;
}

// Closed at any moment of a connection's making, known or not: UCX itself would abort.
TEST(UcxTransportTest, ClosesAmidConnecting) {
  const TransportsGuard guard("tcp");
  for (int round = 0; round < 20; ++round) {
    auto mine = MakeTransport(OptionsOf(0));
    auto other = MakeTransport(OptionsOf(1));
    ASSERT_EQ(mine->Connect(1, other->LocalAddress()), absl::OkStatus());
    if (round % 4 == 0) {
      ASSERT_EQ(other->Connect(0, mine->LocalAddress()), absl::OkStatus());
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(200) * round;
    while (std::chrono::steady_clock::now() < end) (*mine->OpenEndpoint(0))->Progress();
    (round % 2 == 0 ? mine : other).reset();
  }
}

TEST(UcxTransportTest, FailedPeersAreNamedWithTheirCause) {
  UcxFabric fabric({.num_devices = 6, .generation = kGeneration, .num_channels = 1}, 2);
  Request recv, other;
  uint64_t received = 0;
  fabric.endpoint(0).Recv(3, {kGeneration, 0, 0}, &received, 8, &recv);
  fabric.endpoint(0).Recv(4, {kGeneration, 0, 0}, &received, 8, &other);
  fabric.transport(0).FailPeer(2, absl::AbortedError("killed"));  // of the process of device 3
  ASSERT_TRUE(DriveUntil(fabric.endpoint(0), [&] { return recv.is_done(); }));
  EXPECT_EQ(recv.status, absl::UnavailableError("device 3 is gone: killed"));
  EXPECT_EQ(other.state, Request::State::kPending);
}

// Both sides say that they are about to sleep, as executors do. With the parameter they sleep on
// the arrivals themselves.
class PreparedSleepTest : public ::testing::TestWithParam<bool> {};

TEST_P(PreparedSleepTest, EndsWithAnArrival) {
  const bool is_on_arrivals = GetParam();
  std::array<actors::Waker, 2> wakers;
  UcxFabric fabric({.num_devices = 2, .generation = kGeneration, .num_channels = 1}, 1);
  for (uint32_t device : {0, 1}) {
    fabric.endpoint(device).SetWakeup([&waker = wakers[device]] { waker.Notify(); });
  }
  constexpr uint64_t kRounds = 200;
  std::atomic<int> num_late = 0;
  const auto run = [&](uint32_t device) {
    Endpoint& mine = fabric.endpoint(device);
    actors::Waker& waker = wakers[device];
    const auto await = [&](const Request& request) {
      while (!request.is_done() && num_late == 0) {
        if (mine.Progress()) continue;
        waker.PrepareSleep();
        int arrivals = -1;
        if (is_on_arrivals) {
          arrivals = mine.PrepareSleepOnArrivals();
          EXPECT_GE(arrivals, 0);
        } else {
          mine.PrepareSleep();
        }
        if (mine.Progress() || request.is_done()) {
          waker.CancelSleep();
          continue;
        }
        const auto begin = std::chrono::steady_clock::now();
        waker.Sleep(std::chrono::milliseconds(kPatience).count(), arrivals);
        if (std::chrono::steady_clock::now() - begin > kPatience / 2) ++num_late;
      }
    };
    for (uint64_t i = 0; i < kRounds && num_late == 0; ++i) {
      uint64_t value = i;
      Request request;
      for (bool is_send : {device == 0, device == 1}) {
        if (is_send) {
          mine.Send(1 - device, {kGeneration, 0, i}, &value, 8, kNoFlags, &request);
        } else {
          mine.Recv(1 - device, {kGeneration, 0, i}, &value, 8, &request);
        }
        await(request);
        EXPECT_EQ(request.status, absl::OkStatus());
        EXPECT_EQ(value, i);
      }
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  EXPECT_EQ(num_late, 0) << "a thread was not woken";
}

INSTANTIATE_TEST_SUITE_P(Ucx, PreparedSleepTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "OnArrivals" : "OnWakeUps"; });

// Twenty long messages of channel 1 are asked for before one of channel 0 is even sent, which then
// overtakes most of them.
TEST(UcxTransportTest, LowerChannelsGoFirst) {
  const TransportsGuard guard("tcp");
  UcxFabric fabric({.num_devices = 2, .generation = kGeneration, .num_channels = 2}, 1);
  constexpr size_t kBytes = 1 << 20;
  constexpr uint64_t kLate = 20;
  const std::vector<uint8_t> sent(kBytes, 7);
  std::vector<std::vector<uint8_t>> received(kLate + 1, std::vector<uint8_t>(kBytes));
  std::array<Request, kLate + 1> sends, recvs;
  Endpoint& to = fabric.endpoint(1);
  for (uint64_t i = 0; i < kLate; ++i) {
    to.Recv(0, {kGeneration, 1, i}, received[i].data(), kBytes, &recvs[i]);
  }
  to.Recv(0, {kGeneration, 0, 0}, received[kLate].data(), kBytes, &recvs[kLate]);
  for (uint64_t i = 0; i < kLate; ++i) {
    fabric.endpoint(0).Send(1, {kGeneration, 1, i}, sent.data(), kBytes, kNoFlags, &sends[i]);
  }
  fabric.endpoint(0).Send(1, {kGeneration, 0, 0}, sent.data(), kBytes, kNoFlags, &sends[kLate]);
  ASSERT_TRUE(DriveUntil(fabric.endpoint(0), [&] {
    to.Progress();
    return recvs[kLate].is_done();
  }));
  const auto num_before = std::count_if(recvs.begin(), recvs.end() - 1,
                                        [](const Request& request) { return request.is_done(); });
  EXPECT_LT(num_before, 8);
  ASSERT_TRUE(DriveUntil(fabric.endpoint(0), [&] {
    to.Progress();
    return std::all_of(sends.begin(), sends.end(),
                       [](const Request& request) { return request.is_done(); });
  }));
  for (const auto& bytes : received) EXPECT_EQ(bytes, sent);
}

// What is more than caches hold is written otherwise.
TEST(UcxTransportTest, ReadsLongMessagesWhereTheyLie) {
  constexpr size_t kNumBytes = kStreamBytes + 12345;
  UcxFabric fabric({.num_devices = 2, .generation = kGeneration, .num_channels = 1}, 1);
  std::vector<std::unique_ptr<Memory>> arenas;
  for (uint32_t device = 0; device < 2; ++device) {
    arenas.push_back(*CreateCpuDevice(1)->Allocate(kNumBytes, MemoryKind::kDevice));
    ASSERT_EQ(fabric.transport(device).RegisterMemory(arenas[device]->data(), kNumBytes),
              absl::OkStatus());
  }
  const Bytes sent = RandomElements(DType::kU8, kNumBytes, 7);
  std::copy(sent.begin(), sent.end(), arenas[0]->data());
  Request send, recv;
  fabric.endpoint(1).Recv(0, {kGeneration, 0, 0}, arenas[1]->data(), kNumBytes, &recv);
  fabric.endpoint(0).Send(1, {kGeneration, 0, 0}, arenas[0]->data(), kNumBytes, kNoFlags, &send);
  ASSERT_TRUE(DriveUntil(fabric.endpoint(0), [&] {
    fabric.endpoint(1).Progress();
    return send.is_done() && recv.is_done();
  }));
  EXPECT_EQ(recv.status, absl::OkStatus());
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), arenas[1]->data()));
}

TEST(UcxTransportTest, ViewsWhatIsOnTheHost) {
  UcxFabric fabric({.num_devices = 4, .generation = kGeneration, .num_channels = 1}, 2);
  EXPECT_TRUE(fabric.endpoint(0).CanView(1));
  EXPECT_TRUE(fabric.endpoint(0).CanView(2));
  EXPECT_TRUE(fabric.endpoint(0).can_view());
  const TransportsGuard guard("tcp");
  UcxFabric apart({.num_devices = 4, .generation = kGeneration, .num_channels = 1}, 2);
  EXPECT_TRUE(apart.endpoint(0).CanView(1));
  EXPECT_FALSE(apart.endpoint(0).CanView(2));
  EXPECT_FALSE(apart.endpoint(0).can_view());
}

// A view of shared memory is of the sender's own bytes; all other views are of copies.
TEST(UcxTransportTest, ViewsBytesWhereTheyLieIfTheyAreShared) {
  UcxFabric fabric({.num_devices = 2, .generation = kGeneration, .num_channels = 1}, 1);
  constexpr size_t kBytes = 3 << 20;
  constexpr size_t kLong = 100000;
  const auto arena = *CreateCpuDevice(1)->Allocate(kBytes, MemoryKind::kDevice);
  ASSERT_EQ(fabric.transport(0).RegisterMemory(arena->data(), kBytes), absl::OkStatus());
  std::vector<std::byte> other(kLong, std::byte{7});
  std::fill_n(arena->data(), kBytes, std::byte{7});
  const std::byte* sources[] = {arena->data() + 4000, arena->data() + kBytes - kLong, other.data(),
                                arena->data() + 8};
  const size_t sizes[] = {kLong, kLong, kLong, 100};
  for (uint64_t i = 0; i < 4; ++i) {
    for (const bool is_view_first : {false, true}) {
      const Tag tag = {kGeneration, 0, 2 * i + is_view_first};
      Request send, view;
      if (is_view_first) fabric.endpoint(1).View(0, tag, sizes[i], &view);
      fabric.endpoint(0).Send(1, tag, sources[i], sizes[i], transport::kErrorFlag, &send);
      if (!is_view_first) fabric.endpoint(1).View(0, tag, sizes[i], &view);
      ASSERT_TRUE(DriveUntil(fabric.endpoint(0), [&] {
        fabric.endpoint(1).Progress();
        return view.is_done();
      }));
      ASSERT_EQ(view.status, absl::OkStatus());
      EXPECT_EQ(view.flags, transport::kErrorFlag);
      const auto* viewed = static_cast<const std::byte*>(view.view);
      EXPECT_TRUE(
          std::all_of(viewed, viewed + sizes[i], [](std::byte b) { return b == std::byte{7}; }));
      const auto* seen = static_cast<const volatile std::byte*>(viewed);
      auto* source = const_cast<std::byte*>(sources[i]);
      source[50] = std::byte{8};
      EXPECT_EQ(std::byte(seen[50]), i < 2 ? std::byte{8} : std::byte{7});
      source[50] = std::byte{7};
      for (int polls = 0; polls < 1000; ++polls) fabric.endpoint(0).Progress();
      EXPECT_EQ(send.state, Request::State::kPending);
      fabric.endpoint(1).Release(&view);
      ASSERT_TRUE(DriveUntil(fabric.endpoint(0), [&] { return send.is_done(); }));
      EXPECT_EQ(send.status, absl::OkStatus());
    }
  }
}

// Though they are copied by the receiver.
TEST(UcxTransportTest, AnUrgentMessageOvertakesALongOneThatIsShared) {
  UcxFabric fabric({.num_devices = 2, .generation = kGeneration, .num_channels = 2}, 1);
  constexpr size_t kBytes = 24 << 20;
  const auto arena = *CreateCpuDevice(1)->Allocate(kBytes, MemoryKind::kDevice);
  ASSERT_EQ(fabric.transport(0).RegisterMemory(arena->data(), kBytes), absl::OkStatus());
  std::fill_n(arena->data(), kBytes, std::byte{7});
  std::vector<std::byte> received(kBytes);
  double urgent = 0;
  const double sent = 3;
  const Tag long_tag = {kGeneration, 1, 0};
  const Tag urgent_tag = {kGeneration, 0, 0};
  Request requests[4];
  fabric.endpoint(1).Recv(0, long_tag, received.data(), kBytes, &requests[0]);
  fabric.endpoint(1).Recv(0, urgent_tag, &urgent, sizeof(urgent), &requests[1]);
  fabric.endpoint(0).Send(1, long_tag, arena->data(), kBytes, transport::kErrorFlag, &requests[2]);
  fabric.endpoint(0).Send(1, urgent_tag, &sent, sizeof(sent), transport::kNoFlags, &requests[3]);
  ASSERT_TRUE(DriveUntil(fabric.endpoint(1), [&] {
    fabric.endpoint(0).Progress();
    return requests[1].is_done();
  }));
  EXPECT_EQ(requests[0].state, Request::State::kPending);
  ASSERT_TRUE(DriveUntil(fabric.endpoint(1), [&] {
    fabric.endpoint(0).Progress();
    return requests[0].is_done() && requests[2].is_done();
  }));
  for (const Request& request : requests) EXPECT_EQ(request.status, absl::OkStatus());
  EXPECT_EQ(requests[0].flags, transport::kErrorFlag);
  EXPECT_EQ(urgent, sent);
  EXPECT_TRUE(std::all_of(received.begin(), received.end(),
                          [](std::byte byte) { return byte == std::byte{7}; }));
}

// Over a network they travel in chunks, of which two are on their way.
TEST(UcxTransportTest, AnUrgentMessageOvertakesLongOnesOverANetwork) {
  const TransportsGuard guard("tcp");
  UcxFabric fabric({.num_devices = 2, .generation = kGeneration, .num_channels = 2}, 1);
  constexpr size_t kBytes = 24 << 20;
  constexpr size_t kUrgentBytes = 1 << 20;
  const std::vector<uint8_t> sent(kBytes, 7);
  std::vector<uint8_t> long_ones[2] = {std::vector<uint8_t>(kBytes), std::vector<uint8_t>(kBytes)};
  std::vector<uint8_t> urgent(kUrgentBytes);
  Request sends[3], recvs[3];
  Endpoint& from = fabric.endpoint(0);
  Endpoint& to = fabric.endpoint(1);
  for (uint64_t i = 0; i < 2; ++i) {
    to.Recv(0, {kGeneration, 1, i}, long_ones[i].data(), kBytes, &recvs[i]);
    from.Send(1, {kGeneration, 1, i}, sent.data(), kBytes, kNoFlags, &sends[i]);
  }
  ASSERT_TRUE(DriveUntil(to, [&] {
    from.Progress();
    return HasBegun(long_ones[0]);
  }));
  to.Recv(0, {kGeneration, 0, 0}, urgent.data(), kUrgentBytes, &recvs[2]);
  from.Send(1, {kGeneration, 0, 0}, sent.data(), kUrgentBytes, kNoFlags, &sends[2]);
  ASSERT_TRUE(DriveUntil(to, [&] {
    from.Progress();
    return recvs[2].is_done();
  }));
  EXPECT_EQ(recvs[0].state, Request::State::kPending);
  EXPECT_EQ(recvs[1].state, Request::State::kPending);
  ASSERT_TRUE(DriveUntil(to, [&] {
    from.Progress();
    return std::all_of(sends, sends + 3, [](const Request& send) { return send.is_done(); });
  }));
  for (const Request& request : sends) EXPECT_EQ(request.status, absl::OkStatus());
  for (const Request& request : recvs) EXPECT_EQ(request.status, absl::OkStatus());
  for (const std::vector<uint8_t>& received : long_ones) EXPECT_EQ(received, sent);
}

// An urgent message from another peer, to the same device or another one of its process, stops a
// long one that is under way: both use the same link.
TEST(UcxTransportTest, AnUrgentMessageOvertakesALongOneOfAnotherPeer) {
  const TransportsGuard guard("tcp");
  constexpr size_t kChunk = transport::ucx::kNetworkChunkBytes;
  constexpr size_t kBytes = 32 * kChunk;
  constexpr size_t kUrgentBytes = 10 * kChunk;
  const std::vector<uint8_t> sent(kBytes, 7);
  for (const uint32_t urgent_to : {2, 3}) {
    UcxFabric fabric({.num_devices = 4, .generation = kGeneration, .num_channels = 2}, 2);
    std::vector<uint8_t> long_one(kBytes);
    std::vector<uint8_t> urgent(kUrgentBytes);
    Request sends[2], recvs[2];
    const auto drive_until = [&fabric](const std::function<bool()>& is_reached) {
      return DriveUntil(fabric.endpoint(0), [&] {
        for (uint32_t device = 1; device < 4; ++device) fabric.endpoint(device).Progress();
        return is_reached();
      });
    };
    const auto num_chunks = [&long_one] {
      int num_begun = 0;
      for (size_t at = 0; at < kBytes; at += kChunk) num_begun += HasBegun(long_one, at);
      return num_begun;
    };
    fabric.endpoint(2).Recv(0, {kGeneration, 1, 0}, long_one.data(), kBytes, &recvs[0]);
    fabric.endpoint(0).Send(2, {kGeneration, 1, 0}, sent.data(), kBytes, kNoFlags, &sends[0]);
    ASSERT_TRUE(drive_until([&] { return num_chunks() > 2; }));
    fabric.endpoint(urgent_to).Recv(1, {kGeneration, 0, 0}, urgent.data(), kUrgentBytes, &recvs[1]);
    fabric.endpoint(1).Send(urgent_to, {kGeneration, 0, 0}, sent.data(), kUrgentBytes, kNoFlags,
                            &sends[1]);
    ASSERT_TRUE(drive_until([&] { return HasBegun(urgent); }));
    const int num_before = num_chunks();
    ASSERT_TRUE(drive_until([&] { return recvs[1].is_done(); }));
    EXPECT_LE(num_chunks() - num_before, 4) << "to device " << urgent_to;
    ASSERT_TRUE(drive_until([&] { return recvs[0].is_done() && sends[0].is_done(); }));
    EXPECT_EQ(long_one, sent);
  }
}

// A peer that fails leaves its share of the link to the others.
TEST(UcxTransportTest, TheChunksOfAFailedPeerMakeRoom) {
  const TransportsGuard guard("tcp");
  constexpr size_t kBytes = 8 * transport::ucx::kNetworkChunkBytes;
  // They outlive the fabric, which sends until its end what device 0 has begun.
  const std::vector<uint8_t> sent(kBytes, 7);
  std::vector<uint8_t> received[2] = {std::vector<uint8_t>(kBytes), std::vector<uint8_t>(kBytes)};
  Request sends[2], recvs[2];
  UcxFabric fabric({.num_devices = 3, .generation = kGeneration, .num_channels = 2}, 1);
  Endpoint& to = fabric.endpoint(2);
  for (uint32_t from : {0, 1}) {
    to.Recv(from, {kGeneration, from, 0}, received[from].data(), kBytes, &recvs[from]);
    fabric.endpoint(from).Send(2, {kGeneration, from, 0}, sent.data(), kBytes, kNoFlags,
                               &sends[from]);
  }
  ASSERT_TRUE(DriveUntil(to, [&] {
    fabric.endpoint(0).Progress();
    return HasBegun(received[0]);
  }));
  // From here on device 0, which is the more urgent, does not answer.
  for (int polls = 0; polls < 1000; ++polls) {
    to.Progress();
    fabric.endpoint(1).Progress();
  }
  EXPECT_EQ(recvs[1].state, Request::State::kPending);
  fabric.transport(2).FailPeer(0, absl::AbortedError("killed"));
  ASSERT_TRUE(DriveUntil(to, [&] {
    fabric.endpoint(1).Progress();
    return recvs[0].is_done() && recvs[1].is_done();
  }));
  EXPECT_EQ(recvs[0].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(recvs[1].status, absl::OkStatus());
  EXPECT_EQ(received[1], sent);
}

// One peer stands still with an urgent message, and is the only one that is late: neither the one
// whose message has to wait behind it, nor the receiver for that one.
TEST(UcxTransportTest, APeerThatStandsStillMakesNoOtherLate) {
  const TransportsGuard guard("tcp");
  constexpr size_t kBytes = 8 * transport::ucx::kNetworkChunkBytes;
  // They outlive the transports, which send until their end what device 0 has begun.
  const std::vector<uint8_t> sent(kBytes, 7);
  std::vector<uint8_t> received[2] = {std::vector<uint8_t>(kBytes), std::vector<uint8_t>(kBytes)};
  Request sends[2], recvs[2];
  std::vector<WaitedTransport> transports;
  std::vector<Endpoint*> endpoints;
  for (uint32_t device = 0; device < 3; ++device) {
    UcxOptions options = OptionsOf(device);
    // The sender asks twice whether it goes on before the receiver gives up the other one.
    options.request_timeout = std::chrono::seconds(device == 2 ? 4 : 1);
    transports.push_back(MakeTransport(options));
    endpoints.push_back(*transports.back()->OpenEndpoint(device));
  }
  ConnectAll(transports);
  Endpoint& to = *endpoints[2];
  to.Recv(0, {kGeneration, 0, 0}, received[0].data(), kBytes, &recvs[0]);
  endpoints[0]->Send(2, {kGeneration, 0, 0}, sent.data(), kBytes, kNoFlags, &sends[0]);
  ASSERT_TRUE(DriveUntil(to, [&] {
    endpoints[0]->Progress();
    return HasBegun(received[0]);
  }));
  // From here on device 0 does not answer.
  to.Recv(1, {kGeneration, 1, 0}, received[1].data(), kBytes, &recvs[1]);
  endpoints[1]->Send(2, {kGeneration, 1, 0}, sent.data(), kBytes, kNoFlags, &sends[1]);
  ASSERT_TRUE(DriveUntil(to, [&] {
    endpoints[1]->Progress();
    return recvs[0].is_done() && recvs[1].is_done() && sends[1].is_done();
  }));
  EXPECT_THAT(recvs[0].status.ToString(), HasSubstr("waited for device 0 on channel 0 for 5 s"));
  EXPECT_EQ(recvs[1].status, absl::OkStatus());
  EXPECT_EQ(sends[1].status, absl::OkStatus());
  EXPECT_EQ(received[1], sent);
}

// Into a register, and shown; of lengths with a short last chunk, a long one, and none.
TEST(UcxTransportTest, ChunksGiveTheBytesOfTheirMessage) {
  const TransportsGuard guard("tcp");
  UcxFabric fabric({.num_devices = 2, .generation = kGeneration, .num_channels = 2}, 1);
  uint64_t sequence = 0;
  for (const size_t rest : {size_t{1}, size_t{12345}, size_t{0}}) {
    const size_t num_bytes = 5 * transport::ucx::kNetworkChunkBytes + rest;
    std::vector<uint8_t> sent(num_bytes), received(num_bytes);
    for (size_t i = 0; i < num_bytes; ++i) sent[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
    for (const bool is_view : {false, true}) {
      for (const bool is_expected : {false, true}) {
        const Tag tag = {kGeneration, 1, sequence++};
        Request send, recv;
        const auto receive = [&] {
          if (is_view) {
            fabric.endpoint(1).View(0, tag, num_bytes, &recv);
          } else {
            fabric.endpoint(1).Recv(0, tag, received.data(), num_bytes, &recv);
          }
        };
        if (is_expected) receive();
        fabric.endpoint(0).Send(1, tag, sent.data(), num_bytes, transport::kErrorFlag, &send);
        if (!is_expected) receive();
        ASSERT_TRUE(DriveUntil(fabric.endpoint(1), [&] {
          fabric.endpoint(0).Progress();
          return recv.is_done();
        }));
        ASSERT_EQ(recv.status, absl::OkStatus());
        EXPECT_EQ(recv.flags, transport::kErrorFlag);
        const void* bytes = is_view ? recv.view : received.data();
        EXPECT_EQ(std::memcmp(bytes, sent.data(), num_bytes), 0);
        if (is_view) fabric.endpoint(1).Release(&recv);
        std::fill(received.begin(), received.end(), 0);
        ASSERT_TRUE(DriveUntil(fabric.endpoint(0), [&] {
          fabric.endpoint(1).Progress();
          return send.is_done();
        }));
        EXPECT_EQ(send.status, absl::OkStatus());
      }
    }
  }
  EXPECT_EQ(fabric.stats().messages, sequence);
}

// --- Collectives ---------------------------------------------------------------------------------

// Every kind, over devices of which some share a process: blocks long and short, several runs.
class UcxCollectivesTest : public ::testing::TestWithParam<bool> {};  // in arenas
INSTANTIATE_TEST_SUITE_P(Memory, UcxCollectivesTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Shared" : "Private"; });

TEST_P(UcxCollectivesTest, CollectivesGiveWhatTheyAreDefinedToGive) {
  constexpr int kRanks = 4;
  UcxFabric fabric({.num_devices = kRanks, .generation = kGeneration, .num_channels = 18}, 2);
  constexpr size_t kHalf = 4 << 20;  // for inputs; as much for outputs
  std::vector<std::unique_ptr<Memory>> arenas;
  for (uint32_t device = 0; device < kRanks; ++device) {
    arenas.push_back(*CreateCpuDevice(1)->Allocate(2 * kHalf, MemoryKind::kDevice));
    if (!GetParam()) continue;
    ASSERT_EQ(fabric.transport(device / 2).RegisterMemory(arenas[device]->data(), 2 * kHalf),
              absl::OkStatus());
  }
  uint32_t channel = 0;
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter, CollectiveKind::kAllGather,
        CollectiveKind::kAllToAll, CollectiveKind::kBroadcast, CollectiveKind::kPermute}) {
    for (const CollectiveAlgorithm algorithm :
         {CollectiveAlgorithm::kDirect, CollectiveAlgorithm::kRing,
          CollectiveAlgorithm::kHierarchical}) {
      CollectiveSpec spec;
      spec.kind = kind;
      spec.algorithm = algorithm;
      spec.channel = channel++;
      spec.devices = {2, 0, 3, 1};
      const size_t num_counts = kind == CollectiveKind::kAllToAll    ? kRanks * kRanks
                                : kind == CollectiveKind::kBroadcast ? 1
                                                                     : kRanks;
      for (size_t i = 0; i < num_counts; ++i) {
        spec.counts.push_back(i % 3 == 2 ? 5 : 20000 + 7 * static_cast<int64_t>(i));
      }
      if (kind == CollectiveKind::kPermute) spec.peers = {1, 2, 3, 0};
      if (algorithm == CollectiveAlgorithm::kHierarchical) spec.hosts = {1, 0, 1, 0};
      spec.chunk_bytes = 64 << 10;
      SCOPED_TRACE(Describe(spec));
      ASSERT_EQ(transport::CheckCollective(spec, kRanks), absl::OkStatus());
      std::vector<std::unique_ptr<transport::Collective>> ranks;
      for (int rank = 0; rank < kRanks; ++rank) {
        ranks.push_back(
            *transport::CreateCollective(spec, rank, fabric.endpoint(spec.devices[rank])));
      }
      for (uint64_t run = 0; run < 3; ++run) {
        std::vector<Bytes> inputs, outputs;
        for (int rank = 0; rank < kRanks; ++rank) {
          inputs.push_back(RandomElements(spec.dtype, InputCount(spec, rank), 10 * run + rank));
          outputs.emplace_back(OutputCount(spec, rank) * ByteSize(spec.dtype));
        }
        for (int rank = 0; rank < kRanks; ++rank) {
          std::byte* input = arenas[spec.devices[rank]]->data();
          ASSERT_LE(std::max(inputs[rank].size(), outputs[rank].size()), kHalf);
          std::copy(inputs[rank].begin(), inputs[rank].end(), input);
          const bool is_in_place = kind == CollectiveKind::kAllReduce && run > 0;
          ranks[rank]->Start(input, is_in_place ? input : input + kHalf, run, kNoFlags);
        }
        ASSERT_TRUE(DriveUntil(fabric.endpoint(0), [&] {
          bool are_over = true;
          for (uint32_t device = 1; device < kRanks; ++device) fabric.endpoint(device).Progress();
          for (const auto& rank : ranks) are_over &= rank->Poll();
          return are_over;
        }));
        for (int rank = 0; rank < kRanks; ++rank) {
          ASSERT_EQ(ranks[rank]->status(), absl::OkStatus());
          const bool is_in_place = kind == CollectiveKind::kAllReduce && run > 0;
          const std::byte* output = arenas[spec.devices[rank]]->data() + (is_in_place ? 0 : kHalf);
          std::copy_n(output, outputs[rank].size(), outputs[rank].begin());
        }
        EXPECT_EQ(outputs, ReferenceCollective(spec, inputs));
      }
    }
  }
}

// --- Addresses -----------------------------------------------------------------------------------

TEST(UcxTransportTest, RefusesAddresses) {
  auto mine = MakeTransport(OptionsOf(0));
  const auto code = [&mine](uint32_t first_device, const std::string& address) {
    return mine->Connect(first_device, address).code();
  };
  UcxOptions options = OptionsOf(1);
  const std::string good = MakeTransport(options)->LocalAddress();
  EXPECT_EQ(code(2, good), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(1, ""), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, mine->LocalAddress()), absl::StatusCode::kInvalidArgument);
  options.transport.generation = kGeneration - 1;
  EXPECT_EQ(code(1, MakeTransport(options)->LocalAddress()), absl::StatusCode::kFailedPrecondition);
  options.transport = {.num_devices = 9, .generation = kGeneration, .num_channels = 4};
  options.num_local_devices = 8;
  EXPECT_EQ(code(1, MakeTransport(options)->LocalAddress()), absl::StatusCode::kInvalidArgument);
}

TEST(UcxTransportTest, ChecksItsOptions) {
  UcxOptions options = OptionsOf(3);
  EXPECT_EQ(CreateUcxTransport(options).status().code(), absl::StatusCode::kInvalidArgument);
  options = OptionsOf(1);
  options.num_local_devices = 3;
  EXPECT_EQ(CreateUcxTransport(options).status().code(), absl::StatusCode::kInvalidArgument);
  auto transport = MakeTransport(OptionsOf(1));
  EXPECT_EQ(transport->name(), "ucx");
  EXPECT_EQ(transport->OpenEndpoint(0).status().code(), absl::StatusCode::kInvalidArgument);
  Request send;
  (*transport->OpenEndpoint(1))->Send(0, {kGeneration, 0, 0}, nullptr, 0, kNoFlags, &send);
  EXPECT_EQ(send.status.code(), absl::StatusCode::kFailedPrecondition);
}

// --- Forged messages -----------------------------------------------------------------------------

TEST(UcxTransportTest, WhatDoesNotFitIsDroppedAndCounted) {
  using namespace transport::ucx;
  const TransportsGuard guard("tcp");
  auto mine = MakeTransport(OptionsOf(0));
  auto other = MakeTransport(OptionsOf(1));
  ASSERT_EQ(mine->Connect(1, other->LocalAddress()), absl::OkStatus());
  Endpoint& endpoint = **mine->OpenEndpoint(0);
  const ProcessAddress address = *DecodeAddress(mine->LocalAddress());
  RawUcxWorker forger(address.devices[0].worker);

  uint64_t received = 0;
  Request recv;
  endpoint.Recv(1, {kGeneration, 2, 4}, &received, 8, &recv);
  std::vector<uint8_t> bytes(1 << 16, 6);
  MessageHeader good;
  good.origin = {address.devices[0].key, kGeneration, 1};
  good.serial = 10;
  good.channel = 2;
  good.sequence = 4;
  good.num_bytes = 8;
  std::vector<MessageHeader> headers(12, good);
  headers[0].origin.key ^= 1;
  headers[1].origin.generation -= 1;
  headers[2].origin.source = 0;  // itself
  headers[3].origin.source = 3;  // no such device
  headers[4].origin.source = 0xffffffff;
  headers[5].channel = 4;
  headers[6].num_bytes = 9;  // truncated
  headers[7].num_bytes = ~uint64_t{0};
  headers[8].num_bytes = bytes.size() + 1;
  uint64_t num_dropped = 0;
  for (int i = 0; i < 8; ++i, ++num_dropped) {
    forger.Send(kMessageId, &headers[i], sizeof(good), bytes.data(), 8);
  }
  forger.Send(kMessageId, &headers[8], sizeof(good), bytes.data(), bytes.size());
  forger.Send(kMessageId, &headers[9], sizeof(good) - 1, bytes.data(), 8);
  forger.Send(kMessageId, nullptr, 0, bytes.data(), 8);
  AckBatch batch;  // of sends that nobody made
  batch.origin = good.origin;
  batch.acks[1].operation = {0xffffffff, 0};
  forger.Send(kAcksId, &batch, sizeof(Origin) + 2 * sizeof(Ack), nullptr, 0);
  forger.Send(kAcksId, &batch, sizeof(Origin) + 1, nullptr, 0);
  forger.Send(kAcksId, &batch, 3, nullptr, 0);
  CancelRequest cancel = {good.origin, {0, 0}, 4};
  forger.Send(kCancelRequestId, &cancel, sizeof(cancel), nullptr, 0);
  forger.Send(kCancelRequestId, &cancel, sizeof(cancel) - 8, nullptr, 0);
  FetchRequest fetch = {good.origin, {0, 0}, {0, 0}, 0};  // of no send
  forger.Send(kFetchRequestId, &fetch, sizeof(fetch), nullptr, 0);
  forger.Send(kFetchRequestId, &fetch, sizeof(fetch) - 1, nullptr, 0);
  forger.Send(kFetchRequestId, &fetch, sizeof(fetch), bytes.data(), 8);
  ChunkHeader chunk = {good.origin, {0, 0}, 0};  // the receive has asked for none
  forger.Send(kChunkId, &chunk, sizeof(chunk), bytes.data(), 8);
  forger.Send(kChunkId, &chunk, sizeof(chunk), bytes.data(), bytes.size());
  forger.Send(kChunkId, &chunk, sizeof(chunk) - 1, bytes.data(), 8);
  num_dropped += 15;
  ASSERT_TRUE(DriveUntil(endpoint, [&] {
    forger.Progress();
    return mine->stats().dropped >= num_dropped;
  }));
  EXPECT_EQ(recv.state, Request::State::kPending);

  // The right one still comes through, and its replay does not.
  forger.Send(kMessageId, &good, sizeof(good), bytes.data(), 8);
  ASSERT_TRUE(DriveUntil(endpoint, [&] {
    forger.Progress();
    return recv.is_done();
  }));
  EXPECT_EQ(recv.status, absl::OkStatus());
  EXPECT_EQ(received, 0x0606060606060606u);
  EXPECT_EQ(mine->stats().dropped, num_dropped);
  forger.Send(kMessageId, &good, sizeof(good), bytes.data(), 8);
  ASSERT_TRUE(DriveUntil(endpoint, [&] {
    forger.Progress();
    return mine->stats().dropped == num_dropped + 1;
  }));
  EXPECT_EQ(mine->stats().messages, 1u);

  // One that was sent earlier and arrives later comes through as well, and its replay does not.
  MessageHeader late = good;
  late.serial = good.serial - 1;
  late.sequence = good.sequence + 1;
  Request late_recv;
  endpoint.Recv(1, {kGeneration, 2, late.sequence}, &received, 8, &late_recv);
  for (const uint64_t num_replays : {0, 1}) {
    forger.Send(kMessageId, &late, sizeof(late), bytes.data(), 8);
    ASSERT_TRUE(DriveUntil(endpoint, [&] {
      forger.Progress();
      return late_recv.is_done() && mine->stats().dropped == num_dropped + 1 + num_replays;
    }));
  }
  EXPECT_EQ(late_recv.status, absl::OkStatus());
  EXPECT_EQ(mine->stats().messages, 2u);
}

}  // namespace
}  // namespace penstock::testing
