// A port with TLS among peers who do not know the job's key, who replay what others have said, and
// who change what passes between those who know it. No bytes may crash it, make it keep much memory
// or let anybody in; and a node that behaves joins all the same. In virtual time, without sockets.
//
// PENSTOCK_HOSTILE_FRAMES sets how many changed frames are sent: 1000000 take minutes.

#include <sys/resource.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include <kj/async-io.h>
#include <kj/async.h>
#include <kj/timer.h>

#include "actors/cluster/connection_internal.h"
#include "actors/cluster/control.capnp.h"
#include "actors/cluster/control_port_internal.h"
#include "actors/cluster/secure_channel_internal.h"
#include "base/machine.h"
#include "tests/support/control_harness.h"
#include "tests/support/frame_mutator.h"
#include "tests/support/sanitizers.h"
#include "tests/support/tapped_stream.h"

namespace penstock::actors::control {
namespace {

using testing::kHasSanitizer;
using testing::TappedStream;

constexpr size_t kNumFrames = kHasSanitizer ? 2'000 : 20'000;
// What the process may grow by meanwhile. A sanitizer keeps what was freed.
constexpr size_t kMaxGrowthBytes = size_t{kHasSanitizer ? 1024 : 64} << 20;

size_t PeakBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) << 10;
}

std::string Unchanged(size_t, std::string said) { return said; }

class SilentNode final : public Node::Server {};

// The port, with what talks to it. Of one thread.
class TestedPort final : public ControlPort::Host {
 public:
  TestedPort() {
    port_ = std::make_unique<ControlPort>(
        timer_, testing::ControlKey(), 1000, *this,
        SecureChannel::Create(testing::ControlKey(), ChannelSide::kCoordinator).value());
  }
  ~TestedPort() noexcept override { port_ = nullptr; }
  TestedPort(const TestedPort&) = delete;
  TestedPort& operator=(const TestedPort&) = delete;

  int num_joined() const { return num_joined_; }
  // What a node says on its connection.
  const std::string& session() const { return session_; }

  kj::Promise<absl::StatusOr<Admission>> Admit(uint64_t, NodeInfo::Reader, Node::Client) override {
    ++num_joined_;
    return absl::StatusOr<Admission>(Admission());
  }
  kj::Promise<Questions<actors::JobStatus>::Answer> Status() override {
    return std::make_shared<const absl::StatusOr<actors::JobStatus>>(actors::JobStatus());
  }
  void OnMemberGone(uint32_t) override {}
  void OnMemberEnd(const MemberEnd&) override {}

  // All bounds of the port pass.
  void ExpectNobodyThere() {
    Poll();
    if (port_->num_unauthenticated() + port_->num_authenticated() > 0) {
      timer_.advanceTo(timer_.now() + 60 * kj::SECONDS);
      Poll();
    }
    EXPECT_EQ(port_->num_unauthenticated(), 0u);
    EXPECT_EQ(port_->num_authenticated(), 0u);
  }

  // Says these bytes, hears whatever comes, and hangs up.
  void SayRaw(std::string_view bytes) {
    {
      kj::Own<kj::AsyncIoStream> stream = Connect();
      char heard[4096];
      kj::Promise<void> draining =
          Drain(*stream, heard, sizeof(heard)).eagerlyEvaluate([](const kj::Exception&) {});
      kj::Promise<void> saying =
          stream->write(bytes.data(), bytes.size()).eagerlyEvaluate([](const kj::Exception&) {});
      Poll();
    }
    Poll();
  }

  // A handshake with a certificate of this key, then these texts. `change` is what somebody between
  // the two does. Whether the handshake has come to its end at the node.
  bool SaySecurely(SecureChannel& node, const TappedStream::Change& change,
                   const std::vector<std::string>& texts) {
    bool has_shaken = false;
    {
      kj::Own<kj::AsyncIoStream> secured;
      char heard[4096];
      kj::Promise<void> draining = nullptr;
      kj::Promise<void> saying =
          node.Secure(kj::heap<TappedStream>(Connect(), change))
              .then([&](kj::Own<kj::AsyncIoStream>&& stream) {
                has_shaken = true;
                secured = kj::mv(stream);
                draining =
                    Drain(*secured, heard, sizeof(heard)).eagerlyEvaluate([](const kj::Exception&) {
                    });
                kj::Promise<void> all = kj::READY_NOW;
                for (const std::string& text : texts) {
                  all = all.then([&] { return secured->write(text.data(), text.size()); });
                }
                return all;
              })
              .eagerlyEvaluate([](const kj::Exception&) {});
      Poll();
      saying = nullptr;
      draining = nullptr;
      secured = nullptr;
    }
    Poll();
    return has_shaken;
  }

  // A node joins; `change` may keep what it says.
  void Join(const TappedStream::Change& change) {
    kj::Own<RpcConnection> rpc = BeginJoin(change);
    rpc = nullptr;
    Poll();
  }

  // `count` peers send `beginning`, then a member asks for the status. Returns how many of the
  // peers were answered before the member was. Expects that all of them are in the end.
  size_t NumServedBeforeAMember(size_t count, const std::string& beginning) {
    kj::Own<RpcConnection> rpc = BeginJoin(Unchanged);
    size_t num_served = 0;
    size_t num_before = count;
    {
      struct Peer {
        kj::Own<kj::AsyncIoStream> stream;
        char heard = 0;
        kj::Promise<void> talking = nullptr;
      };
      std::vector<Peer> peers(count);
      for (Peer& peer : peers) {
        peer.stream = Connect();
        peer.talking = peer.stream->write(beginning.data(), beginning.size())
                           .then([&] { return peer.stream->read(&peer.heard, 1); })
                           .then([&] { ++num_served; })
                           .eagerlyEvaluate([](const kj::Exception&) {});
      }
      auto asking = rpc->Bootstrap()
                        .castAs<Coordinator>()
                        .statusRequest()
                        .send()
                        .then([&](auto&&) { num_before = num_served; })
                        .eagerlyEvaluate([](const kj::Exception&) {});
      Poll();
    }
    EXPECT_EQ(num_served, count);
    rpc = nullptr;
    Poll();
    return num_before;
  }

  void ExpectServes() {
    const int before = num_joined_;
    Join(Unchanged);
    EXPECT_EQ(num_joined_, before + 1);
    ExpectNobodyThere();
  }

  // What a node says to join, as it is on the wire.
  std::vector<std::string> RecordJoin() {
    std::vector<std::string> records;
    Join([&](size_t, std::string said) {
      records.push_back(said);
      return said;
    });
    ExpectNobodyThere();
    return records;
  }

 private:
  void Poll() { scope_->poll(); }

  // The connection of a node that has joined.
  kj::Own<RpcConnection> BeginJoin(const TappedStream::Change& change) {
    const auto node = SecureChannel::Create(testing::ControlKey(), ChannelSide::kNode).value();
    kj::Own<RpcConnection> rpc;
    kj::Promise<void> joining =
        node->Secure(kj::heap<TappedStream>(Connect(), change))
            .then([&](kj::Own<kj::AsyncIoStream>&& stream) {
              auto& to = *stream;
              return SayHello(to, testing::ControlKey())
                  .then([&, stream = kj::mv(stream)](absl::Status&& greeted) mutable {
                    EXPECT_TRUE(greeted.ok()) << greeted;
                    rpc = kj::heap<RpcConnection>(
                        kj::mv(stream), capnp::rpc::twoparty::Side::CLIENT, nullptr, timer_);
                    auto call = rpc->Bootstrap().castAs<Coordinator>().joinRequest();
                    call.initInfo().setHost("here");
                    call.setNode(kj::heap<SilentNode>());
                    return call.send().ignoreResult();
                  });
            })
            .eagerlyEvaluate([](const kj::Exception&) {});
    Poll();
    return rpc;
  }

  kj::Own<kj::AsyncIoStream> Connect() {
    auto pipe = kj::newTwoWayPipe();
    port_->Welcome(kj::mv(pipe.ends[0]));
    return kj::mv(pipe.ends[1]);
  }
  static kj::Promise<void> Drain(kj::AsyncIoStream& stream, char* buffer, size_t size) {
    return stream.tryRead(buffer, 1, size)
        .then([&stream, buffer, size](size_t num_bytes) -> kj::Promise<void> {
          if (num_bytes == 0) return kj::READY_NOW;
          return Drain(stream, buffer, size);
        });
  }

  // Recorded by a harness that has an event loop, of which a thread can have one.
  const std::string session_ = testing::CoordinatorHarness().Record();
  // Behind pointers: their destructors may throw.
  const std::unique_ptr<kj::EventLoop> loop_ = std::make_unique<kj::EventLoop>();
  const std::unique_ptr<kj::WaitScope> scope_ = std::make_unique<kj::WaitScope>(*loop_);
  kj::TimerImpl timer_{kj::origin<kj::TimePoint>()};
  std::unique_ptr<ControlPort> port_;
  int num_joined_ = 0;
};

TEST(HostileHandshakesTest, AReplayedJoinIsRefused) {
  TestedPort port;
  const std::vector<std::string> records = port.RecordJoin();
  ASSERT_EQ(port.num_joined(), 1);
  ASSERT_GE(records.size(), 4u);
  std::string all;
  for (const std::string& record : records) all += record;
  for (int i = 0; i < 100; ++i) port.SayRaw(all);
  // From the middle, and what was said first again.
  port.SayRaw(all.substr(records[0].size()));
  port.SayRaw(records[0] + all);
  port.ExpectNobodyThere();
  EXPECT_EQ(port.num_joined(), 1);
  port.ExpectServes();
}

TEST(HostileHandshakesTest, OtherAuthoritiesAndExpiredCertificatesAreRefused) {
  TestedPort port;
  const std::string other_key(testing::ControlKey().size(), 'o');
  const auto other = SecureChannel::Create(other_key, ChannelSide::kNode).value();
  const auto expired = SecureChannel::Create(testing::ControlKey(), ChannelSide::kNode,
                                             {-absl::Hours(48), -absl::Hours(24)})
                           .value();
  const auto early = SecureChannel::Create(testing::ControlKey(), ChannelSide::kNode,
                                           {absl::Hours(24), absl::Hours(48)})
                         .value();
  for (SecureChannel* node : {other.get(), expired.get(), early.get()}) {
    for (int i = 0; i < 20; ++i) port.SaySecurely(*node, Unchanged, {port.session()});
    port.ExpectNobodyThere();
  }
  EXPECT_EQ(port.num_joined(), 0);
  // The same bytes are a join where the certificate is right.
  const auto right = SecureChannel::Create(testing::ControlKey(), ChannelSide::kNode).value();
  EXPECT_TRUE(port.SaySecurely(*right, Unchanged, {port.session()}));
  EXPECT_EQ(port.num_joined(), 1);
  port.ExpectNobodyThere();
}

TEST(HostileHandshakesTest, AMemberWaitsForFewHandshakesOfOthers) {
  TestedPort port;
  const std::string client_hello = port.RecordJoin().at(0);
  EXPECT_LE(port.NumServedBeforeAMember(200, client_hello), 4u);
  port.ExpectNobodyThere();
  port.ExpectServes();
}

// What was sent to a port.
struct Sent {
  size_t num_connections = 0;
  size_t num_shaken = 0;  // of them, those whose handshake has come to its end
  size_t num_before_handshake = 0;
  size_t num_after_handshake = 0;

  Sent& operator+=(const Sent& other) {
    num_connections += other.num_connections;
    num_shaken += other.num_shaken;
    num_before_handshake += other.num_before_handshake;
    num_after_handshake += other.num_after_handshake;
    return *this;
  }
};

// Of the connections, some say what a node has said to begin with, changed; some are handshakes
// whose bytes are changed on the way; most have the key, and say wrong messages. So about half of
// the frames come after the handshake.
class ChangedFrames {
 public:
  ChangedFrames(TestedPort& port, uint64_t seed)
      : port_(port), records_(port.RecordJoin()), mutator_(seed, {port.session()}), random_(seed) {
    const std::string_view session = port.session();
    own_frames_.emplace(session.substr(0, testing::kControlHelloBytes));
    for (std::string& frame : testing::SplitFrames(session.substr(testing::kControlHelloBytes))) {
      own_frames_.insert(std::move(frame));
    }
  }

  Sent Send(size_t num_frames) {
    sent_ = {};
    while (sent_.num_before_handshake + sent_.num_after_handshake < num_frames) {
      const size_t kind = Below(16);
      if (kind < 5) {
        SayRecords();
      } else if (kind < 7) {
        ShakeWrongly();
      } else {
        SayMessages();
      }
      if (++sent_.num_connections % 64 == 0) port_.ExpectNobodyThere();
      if (::testing::Test::HasFailure()) {
        ADD_FAILURE() << "connection " << sent_.num_connections;
        break;
      }
    }
    port_.ExpectNobodyThere();
    return sent_;
  }

 private:
  size_t Below(size_t bound) { return random_() % bound; }
  std::string Flip(std::string bytes) {
    for (size_t i = 0; i <= Below(4) && !bytes.empty(); ++i) {
      bytes[Below(bytes.size())] ^= static_cast<char>(1 << Below(8));
    }
    return bytes;
  }

  // One after another, as they would be without waiting for answers.
  void SayRecords() {
    std::string said;
    const auto say = [&](const std::string& record, const std::string& changed) {
      said += changed;
      sent_.num_before_handshake += changed != record ? 1 : 0;
    };
    say(records_[0], Below(4) == 0 ? records_[0] : Flip(records_[0]));
    while (Below(3) != 0) {
      const std::string& record = records_[Below(records_.size())];
      say(record, Below(2) == 0 ? Flip(record) : record.substr(0, Below(record.size())));
    }
    port_.SayRaw(said);
  }

  void ShakeWrongly() {
    const size_t changed = Below(6);
    port_.SaySecurely(*node_,
                      [&](size_t number, std::string said) {
                        if (number != changed) return said;
                        std::string other;
                        switch (Below(4)) {
                          case 0:
                            other = said.substr(0, Below(said.size()));
                            break;
                          case 1:
                            other = said + said;
                            break;
                          case 2:
                            other = records_[Below(records_.size())];
                            break;
                          default:
                            other = Flip(said);
                        }
                        sent_.num_before_handshake += other != said ? 1 : 0;
                        return other;
                      },
                      {port_.session()});
  }

  void SayMessages() {
    const std::string bytes = mutator_.Next();
    const size_t hello = std::min(bytes.size(), testing::kControlHelloBytes);
    const std::vector<std::string> frames =
        testing::SplitFrames(std::string_view(bytes).substr(hello));
    std::vector<std::string> texts = {bytes.substr(0, hello)};
    texts.insert(texts.end(), frames.begin(), frames.end());
    if (!port_.SaySecurely(*node_, Unchanged, texts)) return;
    ++sent_.num_shaken;
    sent_.num_after_handshake +=
        static_cast<size_t>(std::count_if(texts.begin(), texts.end(), [&](const std::string& text) {
          return !own_frames_.contains(text);
        }));
  }

  TestedPort& port_;
  const std::vector<std::string> records_;  // that a node says before TLS
  testing::FrameMutator mutator_;
  std::mt19937_64 random_;
  const std::unique_ptr<SecureChannel> node_ =
      SecureChannel::Create(testing::ControlKey(), ChannelSide::kNode).value();
  std::set<std::string> own_frames_;  // that a node says; another frame has been changed
  Sent sent_;
};

// A port for each core, with a thread of its own; memory is that of all.
TEST(HostileHandshakesTest, AnyFramesBeforeAndAfterTheHandshakeAreBorne) {
  const size_t num_threads = kHasSanitizer ? 1 : static_cast<size_t>(std::min(UsableCores(), 8));
  const size_t num_frames = testing::NumHostileFrames(kNumFrames) / num_threads;
  // What the first connections leave is there for good: OpenSSL's tables, caches of malloc.
  std::barrier warm(static_cast<std::ptrdiff_t>(num_threads) + 1);
  std::vector<Sent> sent(num_threads);
  std::vector<std::thread> threads;
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < num_threads; ++i) {
    threads.emplace_back([&, i] {
      TestedPort port;
      ChangedFrames frames(port, i);
      const int num_recorded = port.num_joined();
      sent[i] = frames.Send(num_frames / 10);
      warm.arrive_and_wait();
      warm.arrive_and_wait();
      sent[i] += frames.Send(num_frames - num_frames / 10);
      EXPECT_GT(port.num_joined(), num_recorded);
      port.ExpectServes();
    });
  }
  warm.arrive_and_wait();
  const size_t before = PeakBytes();
  warm.arrive_and_wait();
  Sent all;
  for (size_t i = 0; i < num_threads; ++i) {
    threads[i].join();
    all += sent[i];
  }
  EXPECT_GT(all.num_shaken, all.num_connections / 20);
  const size_t growth = PeakBytes() - before;
  EXPECT_LT(growth, kMaxGrowthBytes);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  printf(
      "%zu changed frames before the end of the handshake and %zu after it on %zu connections: "
      "%.1f s, %.1f MiB more at the peak\n",
      all.num_before_handshake, all.num_after_handshake, all.num_connections, seconds,
      static_cast<double>(growth) / (1 << 20));
}

}  // namespace
}  // namespace penstock::actors::control
