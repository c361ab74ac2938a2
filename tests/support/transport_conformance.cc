#include "tests/support/transport_conformance.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>
#include <semaphore>
#include <thread>
#include <utility>

#include "gmock/gmock.h"

#include "base/random.h"

namespace penstock::testing {
namespace {

using ::testing::HasSubstr;
using transport::Endpoint;
using transport::kErrorFlag;
using transport::kNoFlags;
using transport::Request;
using transport::Tag;
using transport::Transport;
using transport::TransportOptions;
using transport::TransportStats;

// How long a test waits for what must happen.
constexpr std::chrono::seconds kPatience{60};

// Calls of Progress after which nothing more is expected. Decorators that hold completions back do
// so for a few calls.
constexpr int kRestRounds = 200;

class SingleFabric final : public TestFabric {
 public:
  explicit SingleFabric(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {
    for (uint32_t device = 0; device < transport_->num_devices(); ++device) {
      endpoints_.push_back(*transport_->OpenEndpoint(device));
    }
  }
  Endpoint& endpoint(uint32_t device) override { return *endpoints_[device]; }
  TransportStats stats() const override { return transport_->stats(); }

 private:
  std::unique_ptr<Transport> transport_;
  std::vector<Endpoint*> endpoints_;
};

using Buffer = std::vector<uint8_t>;

// `size` bytes that no other `seed` has.
Buffer Pattern(size_t size, uint64_t seed) {
  Buffer bytes(size);
  for (size_t i = 0; i < size; i += 16) {
    const std::array<uint32_t, 4> words = PhiloxBlock({.seed = seed}, i / 16);
    std::memcpy(&bytes[i], words.data(), std::min<size_t>(16, size - i));
  }
  return bytes;
}

// A thread's way to sleep until its endpoint has something to do.
class Sleeper {
 public:
  void Wake() {
    if (!is_awake_.exchange(true)) semaphore_.release();
  }
  // Returns whether it was woken in time.
  bool Sleep() {
    const bool in_time = semaphore_.try_acquire_for(kPatience);
    is_awake_.store(false);
    return in_time;
  }

 private:
  std::atomic<bool> is_awake_{false};
  std::binary_semaphore semaphore_{0};
};

}  // namespace

std::unique_ptr<TestFabric> MakeSingleFabric(std::unique_ptr<Transport> transport) {
  return std::make_unique<SingleFabric>(std::move(transport));
}

std::string FabricParamName(const ::testing::TestParamInfo<FabricParam>& info) {
  return info.param.name;
}

void TransportTest::Join(uint32_t num_devices) {
  num_devices_ = num_devices;
  fabric_ = GetParam().make(
      {.num_devices = num_devices, .generation = kGeneration, .num_channels = kNumChannels});
}

void TransportTest::DriveUntil(const std::function<bool()>& is_reached) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!is_reached()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "did not happen in time";
    for (uint32_t device = 0; device < num_devices_; ++device) endpoint(device).Progress();
  }
}

void TransportTest::DriveUntilDone(const std::vector<const Request*>& requests) {
  DriveUntil([&] {
    return std::all_of(requests.begin(), requests.end(),
                       [](const Request* request) { return request->is_done(); });
  });
}

void TransportTest::DriveToRest() {
  for (int quiet = 0; quiet < kRestRounds; ++quiet) {
    for (uint32_t device = 0; device < num_devices_; ++device) {
      if (endpoint(device).Progress()) quiet = 0;
    }
  }
}

void TransportConformance::SetUp() {}
void TransportErrors::SetUp() {}

// --- Messages
// -------------------------------------------------------------------------------------

TEST_P(TransportConformance, DeliversBytesAndFlags) {
  Join(2);
  EXPECT_EQ(endpoint(0).generation(), kGeneration);
  for (bool is_recv_first : {false, true}) {
    for (size_t size : {1, 8, 100, 4096, 100000}) {
      const Buffer sent = Pattern(size, size);
      Buffer received(size);
      Request send, recv;
      const Tag tag{kGeneration, 3, size};
      if (is_recv_first) endpoint(1).Recv(0, tag, received.data(), size, &recv);
      endpoint(0).Send(1, tag, sent.data(), size, kErrorFlag, &send);
      if (!is_recv_first) endpoint(1).Recv(0, tag, received.data(), size, &recv);
      DriveUntilDone({&send, &recv});
      EXPECT_EQ(send.state, Request::State::kDone);
      EXPECT_EQ(recv.state, Request::State::kDone);
      EXPECT_EQ(recv.flags, kErrorFlag);
      EXPECT_EQ(received, sent);
    }
  }
}

TEST_P(TransportConformance, DeliversNothingAtAll) {
  Join(2);
  Request send, recv;
  endpoint(0).Send(1, {kGeneration, 0, 0}, nullptr, 0, kErrorFlag, &send);
  endpoint(1).Recv(0, {kGeneration, 0, 0}, nullptr, 0, &recv);
  DriveUntilDone({&send, &recv});
  EXPECT_EQ(send.state, Request::State::kDone);
  EXPECT_EQ(recv.state, Request::State::kDone);
  EXPECT_EQ(recv.flags, kErrorFlag);
}

TEST_P(TransportConformance, DeliversLargeMessages) {
  Join(2);
  const Buffer sent = Pattern(33 << 20, 1);
  Buffer received(sent.size());
  Request send, recv;
  endpoint(1).Recv(0, {kGeneration, 0, 0}, received.data(), received.size(), &recv);
  endpoint(0).Send(1, {kGeneration, 0, 0}, sent.data(), sent.size(), kNoFlags, &send);
  DriveUntilDone({&send, &recv});
  EXPECT_TRUE(received == sent);
}

TEST_P(TransportConformance, DeliversToItself) {
  Join(1);
  const Buffer sent = Pattern(64, 1);
  Buffer received(64);
  Request send, recv;
  endpoint(0).Send(0, {kGeneration, 0, 0}, sent.data(), 64, kNoFlags, &send);
  endpoint(0).Recv(0, {kGeneration, 0, 0}, received.data(), 64, &recv);
  DriveUntilDone({&send, &recv});
  EXPECT_EQ(received, sent);
}

TEST_P(TransportConformance, BothWaysAtOnce) {
  Join(2);
  const std::array<Buffer, 2> sent = {Pattern(5000, 1), Pattern(5000, 2)};
  std::array<Buffer, 2> received = {Buffer(5000), Buffer(5000)};
  std::array<Request, 2> sends, recvs;
  for (int round = 0; round < 100; ++round) {
    const Tag tag{kGeneration, 9, static_cast<uint64_t>(round)};
    for (uint32_t device : {0, 1}) {
      endpoint(device).Recv(1 - device, tag, received[device].data(), 5000, &recvs[device]);
      endpoint(device).Send(1 - device, tag, sent[device].data(), 5000, kNoFlags, &sends[device]);
    }
    DriveUntilDone({&sends[0], &sends[1], &recvs[0], &recvs[1]});
    ASSERT_EQ(received[0], sent[1]);
    ASSERT_EQ(received[1], sent[0]);
    received = {Buffer(5000), Buffer(5000)};
  }
}

// The sender's register is its credit: it is not free before the receiver has taken the bytes.
TEST_P(TransportConformance, SendIsDoneOnlyWhenReceived) {
  Join(2);
  uint64_t sent = 42, received = 0;
  Request send, recv;
  endpoint(0).Send(1, {kGeneration, 0, 0}, &sent, 8, kNoFlags, &send);
  DriveToRest();
  EXPECT_EQ(send.state, Request::State::kPending);
  endpoint(1).Recv(0, {kGeneration, 0, 0}, &received, 8, &recv);
  DriveUntilDone({&send, &recv});
  EXPECT_EQ(received, 42u);
}

// --- Matching
// -------------------------------------------------------------------------------------

TEST_P(TransportConformance, MessagesOfOneTagMatchInOrder) {
  Join(2);
  constexpr uint64_t kCount = 300;
  std::vector<uint64_t> sent(kCount), received(kCount);
  std::vector<Request> sends(kCount), recvs(kCount);
  const Tag tag{kGeneration, 4, 99};
  // In bursts, so that now messages and now receives are there first.
  uint64_t posted_sends = 0, posted_recvs = 0;
  for (uint64_t burst = 1; posted_sends + posted_recvs < 2 * kCount; burst = burst * 7 % 31 + 1) {
    for (uint64_t i = 0; i < burst && posted_sends < kCount; ++i, ++posted_sends) {
      sent[posted_sends] = posted_sends + 1000;
      endpoint(0).Send(1, tag, &sent[posted_sends], 8, kNoFlags, &sends[posted_sends]);
    }
    endpoint(1).Progress();
    for (uint64_t i = 0; i < burst * 2 % 17 && posted_recvs < kCount; ++i, ++posted_recvs) {
      endpoint(1).Recv(0, tag, &received[posted_recvs], 8, &recvs[posted_recvs]);
    }
    endpoint(0).Progress();
  }
  DriveUntil([&] {
    return std::all_of(recvs.begin(), recvs.end(), [](Request& r) { return r.is_done(); });
  });
  EXPECT_EQ(received, sent);
}

// Every (source, channel, sequence) its own bytes, posted in unlike orders.
TEST_P(TransportConformance, MatchesSourceChannelAndSequence) {
  Join(4);
  struct Message {
    uint32_t source = 0;
    Tag tag;
    uint64_t sent = 0;
    uint64_t received = 0;
    Request send = {};
    Request recv = {};
  };
  std::deque<Message> messages;
  for (uint32_t source = 1; source < 4; ++source) {
    for (uint32_t channel : {0u, 1u, 63u, 64u, kNumChannels - 1}) {
      for (uint64_t sequence : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, ~uint64_t{0}}) {
        messages.push_back({.source = source, .tag = {kGeneration, channel, sequence}});
        messages.back().sent = messages.size();
      }
    }
  }
  std::vector<Message*> order;
  for (Message& message : messages) order.push_back(&message);
  std::mt19937_64 random(5);
  std::shuffle(order.begin(), order.end(), random);
  for (Message* m : order) {
    endpoint(m->source).Send(0, m->tag, &m->sent, 8, kNoFlags, &m->send);
  }
  std::shuffle(order.begin(), order.end(), random);
  for (Message* m : order) {
    endpoint(0).Recv(m->source, m->tag, &m->received, 8, &m->recv);
    if (random() % 4 == 0) endpoint(0).Progress();
  }
  for (Message* m : order) DriveUntilDone({&m->send, &m->recv});
  for (const Message& m : messages) EXPECT_EQ(m.received, m.sent);
}

TEST_P(TransportConformance, ManyMessagesInFlight) {
  Join(2);
  constexpr uint64_t kCount = 5000;
  std::vector<uint64_t> sent(kCount), received(kCount);
  std::vector<Request> sends(kCount), recvs(kCount);
  for (bool is_recv_first : {false, true}) {
    for (int side = 0; side < 2; ++side) {
      for (uint64_t i = 0; i < kCount; ++i) {
        const Tag tag{kGeneration, static_cast<uint32_t>(i % kNumChannels), i};
        if ((side == 0) == is_recv_first) {
          endpoint(1).Recv(0, tag, &received[i], 8, &recvs[i]);
        } else {
          sent[i] = i + (is_recv_first ? 10 : 20);
          endpoint(0).Send(1, tag, &sent[i], 8, kNoFlags, &sends[i]);
        }
      }
    }
    DriveUntil([&] {
      const auto is_done = [](const Request& request) { return request.is_done(); };
      return std::all_of(sends.begin(), sends.end(), is_done) &&
             std::all_of(recvs.begin(), recvs.end(), is_done);
    });
    EXPECT_EQ(received, sent);
  }
}

// --- Views
// ----------------------------------------------------------------------------------------

TEST_P(TransportConformance, ViewShowsTheBytesUntilReleased) {
  Join(2);
  if (!endpoint(1).can_view()) GTEST_SKIP() << "this transport has no views";
  for (bool is_view_first : {false, true}) {
    const Buffer sent = Pattern(10000, 3);
    Request send, view;
    if (is_view_first) endpoint(1).View(0, {kGeneration, 1, 1}, 10000, &view);
    endpoint(0).Send(1, {kGeneration, 1, 1}, sent.data(), 10000, kErrorFlag, &send);
    if (!is_view_first) endpoint(1).View(0, {kGeneration, 1, 1}, 10000, &view);
    DriveUntilDone({&view});
    ASSERT_EQ(view.state, Request::State::kDone);
    EXPECT_EQ(view.flags, kErrorFlag);
    DriveToRest();
    EXPECT_EQ(std::memcmp(view.view, sent.data(), sent.size()), 0);
    EXPECT_EQ(send.state, Request::State::kPending);
    endpoint(1).Release(&view);
    DriveUntilDone({&send});
    EXPECT_EQ(send.state, Request::State::kDone);
  }
}

TEST_P(TransportConformance, ViewsAreReleasedInAnyOrder) {
  Join(2);
  if (!endpoint(1).can_view()) GTEST_SKIP() << "this transport has no views";
  constexpr int kCount = 200;
  std::vector<int> sent(kCount);
  std::iota(sent.begin(), sent.end(), 0);
  std::vector<Request> sends(kCount), views(kCount);
  for (int i = 0; i < kCount; ++i) {
    endpoint(0).Send(1, {kGeneration, 1, 0}, &sent[i], sizeof(int), kNoFlags, &sends[i]);
    endpoint(1).View(0, {kGeneration, 1, 0}, sizeof(int), &views[i]);
  }
  std::vector<int> order = sent;
  std::mt19937_64 random(6);
  std::shuffle(order.begin(), order.end(), random);
  for (int i : order) {
    DriveUntilDone({&views[i]});
    EXPECT_EQ(*static_cast<const int*>(views[i].view), i);
    endpoint(1).Release(&views[i]);
    DriveUntilDone({&sends[i]});
  }
}

// --- Wake-ups
// -------------------------------------------------------------------------------------

TEST_P(TransportConformance, WakesForWhatIsNewAndOnlyThen) {
  Join(2);
  std::array<std::atomic<int>, 2> wakes = {};
  for (uint32_t device : {0, 1}) endpoint(device).SetWakeup([&wakes, device] { ++wakes[device]; });
  DriveToRest();
  EXPECT_EQ(wakes[0] + wakes[1], 0);
  int sent = 5, received = 0;
  Request send, recv;
  // One of them is about to sleep, the other sends or takes what was sent.
  const auto drive_awake = [&](uint32_t awake, uint32_t asleep) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (wakes[asleep] == 0) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "did not wake in time";
      endpoint(awake).Progress();
    }
  };
  endpoint(1).PrepareSleep();
  endpoint(0).Send(1, {kGeneration, 0, 0}, &sent, sizeof(int), kNoFlags, &send);
  drive_awake(0, 1);
  DriveToRest();
  wakes[0] = 0;
  endpoint(0).PrepareSleep();
  endpoint(1).Recv(0, {kGeneration, 0, 0}, &received, sizeof(int), &recv);
  drive_awake(1, 0);
  DriveUntilDone({&recv, &send});
  DriveToRest();
  wakes[0] = wakes[1] = 0;
  DriveToRest();
  EXPECT_EQ(wakes[0] + wakes[1], 0);
  for (uint32_t device : {0, 1}) endpoint(device).SetWakeup(nullptr);
}

// Threads that sleep whenever Progress finds nothing, with more messages than any ring holds: a
// lost wake-up would end the test by its time limit.
TEST_P(TransportConformance, SleepersMissNothing) {
  Join(2);
  constexpr int kRounds = 60;
  constexpr int kBurst = 150;
  std::array<Sleeper, 2> sleepers;
  for (uint32_t device : {0, 1}) {
    endpoint(device).SetWakeup([&sleepers, device] { sleepers[device].Wake(); });
  }
  std::atomic<int> num_late{0}, num_finished{0};
  const auto run = [&](uint32_t device) {
    std::vector<int> sent(kBurst), received(kBurst);
    std::vector<Request> sends(kBurst), recvs(kBurst);
    const auto await = [&](std::vector<Request>& requests) {
      for (Request& request : requests) {
        while (!request.is_done()) {
          if (endpoint(device).Progress()) continue;
          endpoint(device).PrepareSleep();
          if (endpoint(device).Progress()) continue;
          if (!sleepers[device].Sleep()) {
            ++num_late;
            return;
          }
        }
      }
    };
    for (int round = 0; round < kRounds && num_late == 0; ++round) {
      const auto post_sends = [&] {
        for (int i = 0; i < kBurst; ++i) {
          sent[i] = round * kBurst + i;
          endpoint(device).Send(1 - device, {kGeneration, 2, static_cast<uint64_t>(round)},
                                &sent[i], sizeof(int), kNoFlags, &sends[i]);
        }
      };
      const auto post_recvs = [&] {
        for (int i = 0; i < kBurst; ++i) {
          endpoint(device).Recv(1 - device, {kGeneration, 2, static_cast<uint64_t>(round)},
                                &received[i], sizeof(int), &recvs[i]);
        }
      };
      // Sometimes one side answers only when it has all, sometimes both flood at once.
      if (round % 3 == static_cast<int>(device)) {
        post_recvs();
        await(recvs);
        post_sends();
      } else {
        post_sends();
        post_recvs();
        await(recvs);
      }
      await(sends);
      EXPECT_EQ(received, sent);
    }
    // The other's last sends end only while this side still makes progress.
    ++num_finished;
    sleepers[1 - device].Wake();
    while (num_finished < 2 && num_late == 0) {
      endpoint(device).PrepareSleep();
      if (!endpoint(device).Progress() && !sleepers[device].Sleep()) ++num_late;
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  EXPECT_EQ(num_late, 0) << "a thread was not woken";
  for (uint32_t device : {0, 1}) endpoint(device).SetWakeup(nullptr);
}

// --- Threads
// --------------------------------------------------------------------------------------

// Every device sends every other a list of messages that both compute from a seed, and posts its
// sends and receives in an order of its own, a few dozen at a time.
TEST_P(TransportConformance, ThreadsExchangeRandomMessages) {
  constexpr uint32_t kDevices = 4;
  constexpr uint64_t kMessages = 1500;  // a pair and direction
  constexpr size_t kMaxPosted = 120;
  Join(kDevices);
  const auto seed_of = [](uint32_t from, uint32_t to, uint64_t i) {
    return (uint64_t{from} * kDevices + to) * kMessages + i;
  };
  const auto size_of = [](uint64_t seed) -> size_t {
    const uint32_t word = RandomWord({.seed = 77}, seed);
    return word % 16 == 0 ? word / 16 % 60000 : word / 16 % 200;
  };
  const auto tag_of = [](uint64_t seed, uint64_t i) {
    return Tag{kGeneration, RandomWord({.seed = 78}, seed) % kNumChannels, i};
  };
  std::atomic<int> num_wrong{0};
  std::atomic<uint32_t> num_finished{0};
  std::atomic<bool> is_late{false};
  const auto run = [&](uint32_t device) {
    struct Post {
      uint32_t peer;
      bool is_send;
      uint64_t i;
    };
    struct Operation {
      Post post;
      Buffer bytes = {};
      Request request = {};
      bool is_view = false;
    };
    Endpoint& mine = endpoint(device);
    std::mt19937_64 random(device);
    std::vector<Post> posts;
    for (uint32_t peer = 0; peer < kDevices; ++peer) {
      if (peer == device) continue;
      for (uint64_t i = 0; i < kMessages; ++i) {
        posts.push_back({peer, true, i});
        posts.push_back({peer, false, i});
      }
    }
    // Roughly in order, so that the one posts before long what the other waits for.
    std::shuffle(posts.begin(), posts.end(), random);
    std::stable_sort(posts.begin(), posts.end(),
                     [](const Post& a, const Post& b) { return a.i / 8 < b.i / 8; });
    std::vector<std::unique_ptr<Operation>> posted;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (size_t next = 0; next < posts.size() || !posted.empty();) {
      if (std::chrono::steady_clock::now() > deadline) {
        is_late = true;
        return;
      }
      while (next < posts.size() && posted.size() < kMaxPosted) {
        const Post& post = posts[next++];
        auto operation = std::make_unique<Operation>(Operation{.post = post});
        const uint64_t seed =
            post.is_send ? seed_of(device, post.peer, post.i) : seed_of(post.peer, device, post.i);
        const size_t size = size_of(seed);
        const Tag tag = tag_of(seed, post.i);
        if (post.is_send) {
          operation->bytes = Pattern(size, seed);
          mine.Send(post.peer, tag, operation->bytes.data(), size, kNoFlags, &operation->request);
        } else if (mine.can_view() && random() % 2 == 0) {
          operation->is_view = true;
          mine.View(post.peer, tag, size, &operation->request);
        } else {
          operation->bytes.resize(size);
          mine.Recv(post.peer, tag, operation->bytes.data(), size, &operation->request);
        }
        posted.push_back(std::move(operation));
        if (random() % 3 == 0) break;
      }
      if (!mine.Progress()) std::this_thread::yield();
      std::erase_if(posted, [&](const std::unique_ptr<Operation>& operation) {
        Request& request = operation->request;
        if (!request.is_done()) return false;
        if (request.state == Request::State::kFailed) {
          ++num_wrong;
          return true;
        }
        if (operation->post.is_send) return true;
        const uint64_t seed = seed_of(operation->post.peer, device, operation->post.i);
        const Buffer expected = Pattern(size_of(seed), seed);
        const void* received = operation->is_view ? request.view : operation->bytes.data();
        if (!expected.empty() && std::memcmp(received, expected.data(), expected.size()) != 0) {
          ++num_wrong;
        }
        if (operation->is_view) mine.Release(&request);
        return true;
      });
    }
    ++num_finished;
    // What the others have sent comes back only while this side still makes progress.
    while (num_finished < kDevices && !is_late) {
      if (!mine.Progress()) std::this_thread::yield();
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t device = 0; device < kDevices; ++device) threads.emplace_back(run, device);
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(is_late);
  EXPECT_EQ(num_wrong, 0);
  EXPECT_EQ(fabric_->stats().messages, kMessages * kDevices * (kDevices - 1));
}

// --- Statistics
// -----------------------------------------------------------------------------------

TEST_P(TransportConformance, CountsMessagesAndBytes) {
  Join(3);
  std::vector<Request> requests(20);
  const Buffer sent(100);
  Buffer received(100);
  for (int i = 0; i < 10; ++i) {
    const auto from = static_cast<uint32_t>(i % 2);
    endpoint(from).Send(2, {kGeneration, 0, 0}, sent.data(), i, kNoFlags, &requests[2 * i]);
    endpoint(2).Recv(from, {kGeneration, 0, 0}, received.data(), i, &requests[2 * i + 1]);
    DriveUntilDone({&requests[2 * i], &requests[2 * i + 1]});
  }
  EXPECT_EQ(fabric_->stats().messages, 10u);
  EXPECT_EQ(fabric_->stats().bytes, 45u);
  EXPECT_EQ(fabric_->stats().dropped, 0u);
}

// --- Errors
// ---------------------------------------------------------------------------------------

TEST_P(TransportErrors, AnotherSizeFailsBoth) {
  Join(2);
  for (bool is_recv_first : {false, true}) {
    for (size_t expected_size : {99, 101, 0}) {
      const Buffer sent(100, 1);
      Buffer received(101, 9);
      Request send, recv;
      const Tag tag{kGeneration, 8, expected_size};
      if (is_recv_first) endpoint(1).Recv(0, tag, received.data(), expected_size, &recv);
      endpoint(0).Send(1, tag, sent.data(), 100, kNoFlags, &send);
      if (!is_recv_first) endpoint(1).Recv(0, tag, received.data(), expected_size, &recv);
      DriveUntilDone({&send, &recv});
      for (const Request* request : {&send, &recv}) {
        EXPECT_EQ(request->state, Request::State::kFailed);
        EXPECT_EQ(request->status.code(), absl::StatusCode::kInvalidArgument);
        EXPECT_THAT(std::string(request->status.message()), HasSubstr("channel 8"));
      }
      // The requests and the tag serve again.
      endpoint(0).Send(1, tag, sent.data(), 100, kNoFlags, &send);
      endpoint(1).Recv(0, tag, received.data(), 100, &recv);
      DriveUntilDone({&send, &recv});
      EXPECT_EQ(recv.state, Request::State::kDone);
      EXPECT_EQ(recv.status, absl::OkStatus());
      EXPECT_EQ(send.status, absl::OkStatus());
    }
  }
}

TEST_P(TransportErrors, AnotherGenerationIsDroppedAndCounted) {
  Join(2);
  int sent = 1, received = 0;
  for (uint32_t generation : {kGeneration - 1, kGeneration + 1}) {
    Request stale, stale_recv;
    endpoint(0).Send(1, {generation, 0, 0}, &sent, sizeof(int), kNoFlags, &stale);
    endpoint(1).Recv(0, {generation, 0, 0}, &received, sizeof(int), &stale_recv);
    DriveUntilDone({&stale, &stale_recv});
    EXPECT_EQ(stale.status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(stale_recv.status.code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(fabric_->stats().dropped, 2u);
  EXPECT_EQ(received, 0);
  Request send, recv;
  endpoint(1).Recv(0, {kGeneration, 0, 0}, &received, sizeof(int), &recv);
  endpoint(0).Send(1, {kGeneration, 0, 0}, &sent, sizeof(int), kNoFlags, &send);
  DriveUntilDone({&send, &recv});
  EXPECT_EQ(received, 1);
}

TEST_P(TransportErrors, UnknownChannelIsDroppedAndCounted) {
  Join(2);
  int sent = 1, received = 0;
  for (uint32_t channel : {kNumChannels, 0xffffffffu}) {
    Request send, recv;
    endpoint(0).Send(1, {kGeneration, channel, 0}, &sent, sizeof(int), kNoFlags, &send);
    endpoint(1).Recv(0, {kGeneration, channel, 0}, &received, sizeof(int), &recv);
    DriveUntilDone({&send, &recv});
    EXPECT_EQ(send.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(recv.status.code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(fabric_->stats().dropped, 2u);
}

TEST_P(TransportErrors, CancelledReceiveTakesNoMessage) {
  Join(2);
  int sent = 1, untouched = 0, received = 0;
  Request cancelled, send, recv;
  const Tag tag{kGeneration, 0, 0};
  endpoint(1).Recv(0, tag, &untouched, sizeof(int), &cancelled);
  endpoint(1).Cancel(&cancelled);
  DriveUntilDone({&cancelled});
  EXPECT_EQ(cancelled.state, Request::State::kFailed);
  EXPECT_EQ(cancelled.status.code(), absl::StatusCode::kCancelled);
  endpoint(0).Send(1, tag, &sent, sizeof(int), kNoFlags, &send);
  DriveToRest();
  EXPECT_EQ(untouched, 0);
  EXPECT_EQ(send.state, Request::State::kPending);
  endpoint(1).Recv(0, tag, &received, sizeof(int), &recv);
  DriveUntilDone({&send, &recv});
  EXPECT_EQ(received, 1);
}

TEST_P(TransportErrors, CancelledReceiveLeavesItsNeighboursAlone) {
  Join(2);
  constexpr int kCount = 9;
  std::vector<int> sent(kCount), received(kCount);
  std::vector<Request> sends(kCount), recvs(kCount);
  for (int i = 0; i < kCount; ++i) {
    endpoint(1).Recv(0, {kGeneration, 0, 0}, &received[i], sizeof(int), &recvs[i]);
  }
  for (int i : {0, 4, 8}) endpoint(1).Cancel(&recvs[i]);
  for (int i = 0; i < kCount; ++i) {
    sent[i] = i + 1;
    endpoint(0).Send(1, {kGeneration, 0, 0}, &sent[i], sizeof(int), kNoFlags, &sends[i]);
  }
  DriveUntil([&] {
    return std::all_of(recvs.begin(), recvs.end(), [](Request& r) { return r.is_done(); });
  });
  EXPECT_THAT(received, ::testing::ElementsAre(0, 1, 2, 3, 0, 4, 5, 6, 0));
}

// Sends of every age: handed over, waiting for room, just posted.
TEST_P(TransportErrors, CancelledSendsAreNeverReceived) {
  Join(2);
  constexpr int kCount = 400;
  std::vector<Request> sends(kCount);
  std::vector<int> sent(kCount, -1);
  const Tag tag{kGeneration, 0, 0};
  for (bool is_seen : {false, true}) {
    for (int i = 0; i < kCount; ++i) {
      endpoint(0).Send(1, tag, &sent[i], sizeof(int), kNoFlags, &sends[i]);
    }
    if (is_seen) DriveToRest();
    for (int i = 0; i < kCount; i += 2) endpoint(0).Cancel(&sends[i]);
    for (int i = 1; i < kCount; i += 2) endpoint(0).Cancel(&sends[i]);
    DriveUntil([&] {
      return std::all_of(sends.begin(), sends.end(), [](Request& r) { return r.is_done(); });
    });
    for (const Request& send : sends) {
      EXPECT_EQ(send.status.code(), absl::StatusCode::kCancelled);
    }
    int later = 7, received = 0;
    Request send, recv;
    endpoint(1).Recv(0, tag, &received, sizeof(int), &recv);
    endpoint(0).Send(1, tag, &later, sizeof(int), kNoFlags, &send);
    DriveUntilDone({&send, &recv});
    EXPECT_EQ(received, 7);
  }
}

TEST_P(TransportErrors, CancelledSendThatIsBeingReadCompletes) {
  Join(2);
  if (!endpoint(1).can_view()) GTEST_SKIP() << "this transport has no views";
  int sent = 5;
  Request send, view;
  endpoint(0).Send(1, {kGeneration, 0, 0}, &sent, sizeof(int), kNoFlags, &send);
  endpoint(1).View(0, {kGeneration, 0, 0}, sizeof(int), &view);
  DriveUntilDone({&view});
  endpoint(0).Cancel(&send);
  DriveToRest();
  EXPECT_EQ(send.state, Request::State::kPending);
  EXPECT_EQ(*static_cast<const int*>(view.view), 5);
  endpoint(1).Release(&view);
  DriveUntilDone({&send});
  EXPECT_EQ(send.state, Request::State::kDone);
}

TEST_P(TransportErrors, CancelOfWhatIsOverDoesNothing) {
  Join(2);
  int sent = 5, received = 0;
  Request send, recv, never_posted;
  endpoint(0).Send(1, {kGeneration, 0, 0}, &sent, sizeof(int), kNoFlags, &send);
  endpoint(1).Recv(0, {kGeneration, 0, 0}, &received, sizeof(int), &recv);
  DriveUntilDone({&send, &recv});
  endpoint(0).Cancel(&send);
  endpoint(1).Cancel(&recv);
  endpoint(1).Cancel(&never_posted);
  EXPECT_EQ(send.state, Request::State::kDone);
  EXPECT_EQ(recv.state, Request::State::kDone);
  EXPECT_EQ(never_posted.state, Request::State::kIdle);
}

// A sender thread calls most messages off at a random moment, spoils its bytes if that worked and
// sends them again, until they have been received. The receiver must see every message once and
// never a spoilt byte.
TEST_P(TransportErrors, CancelRacesWithTheReceiver) {
  Join(2);
  constexpr uint64_t kCount = 1500;
  constexpr size_t kSize = 512;
  std::atomic<uint64_t> num_cancelled{0}, num_wrong{0};
  std::atomic<bool> is_late{false}, is_all_sent{false};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const auto await = [&](Endpoint& mine, Request& request) {
    while (!request.is_done() && !is_late) {
      if (!mine.Progress()) std::this_thread::yield();
      if (std::chrono::steady_clock::now() > deadline) is_late = true;
    }
  };
  std::thread sender([&] {
    std::mt19937_64 random(8);
    Endpoint& mine = endpoint(0);
    Buffer bytes(kSize);
    Request send;
    for (uint64_t i = 0; i < kCount && !is_late; ++i) {
      for (bool is_received = false; !is_received && !is_late;) {
        std::fill(bytes.begin(), bytes.end(), static_cast<uint8_t>(i % 250));
        mine.Send(1, {kGeneration, 0, i}, bytes.data(), kSize, kNoFlags, &send);
        if (random() % 4 != 0) {
          const uint64_t delay = random() % 200;
          for (uint64_t spins = 0; spins < delay; ++spins) mine.Progress();
          mine.Cancel(&send);
        }
        await(mine, send);
        is_received = send.state == Request::State::kDone;
        if (!is_received) ++num_cancelled;
        std::fill(bytes.begin(), bytes.end(), uint8_t{255});
      }
    }
    is_all_sent = true;
  });
  std::thread receiver([&] {
    Endpoint& mine = endpoint(1);
    Buffer bytes(kSize);
    Request recv;
    for (uint64_t i = 0; i < kCount && !is_late; ++i) {
      if (mine.can_view() && i % 2 == 0) {
        mine.View(0, {kGeneration, 0, i}, kSize, &recv);
        await(mine, recv);
        if (recv.state != Request::State::kDone) break;
        std::memcpy(bytes.data(), recv.view, kSize);
        mine.Release(&recv);
      } else {
        mine.Recv(0, {kGeneration, 0, i}, bytes.data(), kSize, &recv);
        await(mine, recv);
      }
      if (bytes != Buffer(kSize, static_cast<uint8_t>(i % 250))) ++num_wrong;
    }
    // The last releases and returns still need the receiver's side.
    while (!is_all_sent) {
      if (!mine.Progress()) std::this_thread::yield();
    }
  });
  sender.join();
  receiver.join();
  EXPECT_FALSE(is_late);
  EXPECT_EQ(num_wrong, 0u);
  RecordProperty("cancelled", static_cast<int>(num_cancelled));
}

// A receiver that calls its receives off and posts them again loses nothing.
TEST_P(TransportErrors, CancelledReceivesRaceWithTheSender) {
  Join(2);
  constexpr uint64_t kCount = 1500;
  std::atomic<bool> is_late{false};
  std::atomic<uint64_t> num_wrong{0};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const auto await = [&](Endpoint& mine, Request& request) {
    while (!request.is_done() && !is_late) {
      if (!mine.Progress()) std::this_thread::yield();
      if (std::chrono::steady_clock::now() > deadline) is_late = true;
    }
  };
  std::atomic<bool> is_received{false}, is_all_sent{false};
  std::thread sender([&] {
    Request send;
    for (uint64_t i = 0; i < kCount && !is_late; ++i) {
      endpoint(0).Send(1, {kGeneration, 0, 0}, &i, sizeof(i), kNoFlags, &send);
      await(endpoint(0), send);
    }
    is_all_sent = true;
  });
  std::thread receiver([&] {
    std::mt19937_64 random(9);
    Endpoint& mine = endpoint(1);
    Request recv;
    for (uint64_t i = 0; i < kCount && !is_late;) {
      uint64_t received = ~uint64_t{0};
      mine.Recv(0, {kGeneration, 0, 0}, &received, sizeof(received), &recv);
      if (random() % 4 != 0) {
        const uint64_t delay = random() % 100;
        for (uint64_t spins = 0; spins < delay; ++spins) mine.Progress();
        mine.Cancel(&recv);
      }
      await(mine, recv);
      if (recv.state != Request::State::kDone) continue;
      if (received != i) ++num_wrong;
      ++i;
    }
    is_received = true;
    while (!is_all_sent) {
      if (!mine.Progress()) std::this_thread::yield();
    }
  });
  receiver.join();
  sender.join();
  EXPECT_FALSE(is_late);
  EXPECT_TRUE(is_received);
  EXPECT_EQ(num_wrong, 0u);
}

TEST_P(TransportErrors, PendingRequestsMayGoWithTheirEndpoints) {
  Join(3);
  // Bytes of requests that are not done stay until the transport is gone; the requests need not.
  std::vector<int> values(500);
  {
    std::vector<Request> requests(500);
    for (int i = 0; i < 500; ++i) {
      const Tag tag{kGeneration, 1, static_cast<uint64_t>(i)};
      if (i % 3 == 0) {
        endpoint(0).Send(1, tag, &values[i], sizeof(int), kNoFlags, &requests[i]);
      } else if (i % 3 == 1) {
        endpoint(1).Recv(0, tag, &values[i], sizeof(int), &requests[i]);
      } else if (endpoint(2).can_view()) {
        endpoint(2).View(0, tag, sizeof(int), &requests[i]);
      }
    }
    endpoint(1).Progress();
  }
  fabric_.reset();
}

// Programs that link the suite without a transport of their own to run it on.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportConformance);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportErrors);

}  // namespace penstock::testing
