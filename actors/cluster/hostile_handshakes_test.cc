// A port with TLS among peers who do not know the job's key, who replay what others have said, and
// who change what passes between those who know it. No bytes may crash it, make it keep much memory
// or let anybody in; and a node that behaves joins all the same. In virtual time, without sockets.
//
// PENSTOCK_HOSTILE_FRAMES sets how many changed frames are sent: 1000000 take minutes of a core.

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
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
#include "tests/support/control_harness.h"
#include "tests/support/frame_mutator.h"
#include "tests/support/sanitizers.h"

namespace penstock::actors::control {
namespace {

using testing::kHasSanitizer;

constexpr size_t kNumFrames = kHasSanitizer ? 2'000 : 20'000;
// What the process may grow by meanwhile. A sanitizer keeps what was freed.
constexpr size_t kMaxGrowthBytes = size_t{kHasSanitizer ? 1024 : 64} << 20;

size_t NumFrames() {
  const char* const text = std::getenv("PENSTOCK_HOSTILE_FRAMES");
  return text == nullptr ? kNumFrames : std::strtoull(text, nullptr, 10);
}

size_t PeakBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) << 10;
}

// Changes or keeps what one side says; `change` gets each text with its number, counted from 0.
class TappedStream final : public kj::AsyncIoStream {
 public:
  using Change = std::function<std::string(size_t number, std::string said)>;

  TappedStream(kj::Own<kj::AsyncIoStream> stream, Change change)
      : stream_(kj::mv(stream)), change_(std::move(change)) {}

  kj::Promise<size_t> read(void* buffer, size_t min_bytes, size_t max_bytes) override {
    return stream_->read(buffer, min_bytes, max_bytes);
  }
  kj::Promise<size_t> tryRead(void* buffer, size_t min_bytes, size_t max_bytes) override {
    return stream_->tryRead(buffer, min_bytes, max_bytes);
  }
  kj::Promise<void> write(const void* buffer, size_t size) override {
    return Say(std::string(static_cast<const char*>(buffer), size));
  }
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    std::string said;
    for (const auto& piece : pieces) {
      said.append(reinterpret_cast<const char*>(piece.begin()), piece.size());
    }
    return Say(std::move(said));
  }
  kj::Promise<void> whenWriteDisconnected() override { return stream_->whenWriteDisconnected(); }
  void shutdownWrite() override { stream_->shutdownWrite(); }
  void abortRead() override { stream_->abortRead(); }

 private:
  kj::Promise<void> Say(std::string said) {
    auto changed = std::make_unique<std::string>(change_(number_++, std::move(said)));
    if (changed->empty()) return kj::READY_NOW;
    auto written = stream_->write(changed->data(), changed->size());
    return written.attach(kj::heap(std::move(changed)));
  }

  kj::Own<kj::AsyncIoStream> stream_;
  const Change change_;
  size_t number_ = 0;
};

std::string Unchanged(size_t, std::string said) { return said; }

class SilentNode final : public Node::Server {};

class HostileHandshakesTest : public ::testing::Test, public ControlPort::Host {
 protected:
  HostileHandshakesTest() {
    port_ = std::make_unique<ControlPort>(
        timer_, testing::ControlKey(), 1000, *this,
        SecureChannel::Create(testing::ControlKey(), ChannelSide::kCoordinator).value());
  }
  ~HostileHandshakesTest() noexcept override { port_ = nullptr; }

  kj::Promise<absl::StatusOr<Admission>> Admit(uint64_t, NodeInfo::Reader, Node::Client) override {
    ++num_joined_;
    return absl::StatusOr<Admission>(Admission());
  }
  kj::Promise<Questions<actors::JobStatus>::Answer> Status() override {
    return std::make_shared<const absl::StatusOr<actors::JobStatus>>(actors::JobStatus());
  }
  void OnMemberGone(uint32_t) override {}

  void Poll() { scope_->poll(); }
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

  kj::Own<kj::AsyncIoStream> Connect() {
    auto pipe = kj::newTwoWayPipe();
    port_->Welcome(kj::mv(pipe.ends[0]));
    return kj::mv(pipe.ends[1]);
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
  static kj::Promise<void> Drain(kj::AsyncIoStream& stream, char* buffer, size_t size) {
    return stream.tryRead(buffer, 1, size)
        .then([&stream, buffer, size](size_t num_bytes) -> kj::Promise<void> {
          if (num_bytes == 0) return kj::READY_NOW;
          return Drain(stream, buffer, size);
        });
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
    joining = nullptr;
    rpc = nullptr;
    Poll();
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

  // Recorded by a harness that has an event loop, of which a thread can have one.
  const std::string session_ = testing::CoordinatorHarness().Record();
  // Behind pointers: their destructors may throw.
  const std::unique_ptr<kj::EventLoop> loop_ = std::make_unique<kj::EventLoop>();
  const std::unique_ptr<kj::WaitScope> scope_ = std::make_unique<kj::WaitScope>(*loop_);
  kj::TimerImpl timer_{kj::origin<kj::TimePoint>()};
  std::unique_ptr<ControlPort> port_;
  int num_joined_ = 0;
};

TEST_F(HostileHandshakesTest, AReplayedJoinIsRefused) {
  const std::vector<std::string> records = RecordJoin();
  ASSERT_EQ(num_joined_, 1);
  ASSERT_GE(records.size(), 4u);
  std::string all;
  for (const std::string& record : records) all += record;
  for (int i = 0; i < 100; ++i) SayRaw(all);
  // From the middle, and what was said first again.
  SayRaw(all.substr(records[0].size()));
  SayRaw(records[0] + all);
  ExpectNobodyThere();
  EXPECT_EQ(num_joined_, 1);
  ExpectServes();
}

TEST_F(HostileHandshakesTest, OtherAuthoritiesAndExpiredCertificatesAreRefused) {
  const std::string other_key(testing::ControlKey().size(), 'o');
  const auto other = SecureChannel::Create(other_key, ChannelSide::kNode).value();
  const auto expired = SecureChannel::Create(testing::ControlKey(), ChannelSide::kNode,
                                             {-absl::Hours(48), -absl::Hours(24)})
                           .value();
  const auto early = SecureChannel::Create(testing::ControlKey(), ChannelSide::kNode,
                                           {absl::Hours(24), absl::Hours(48)})
                         .value();
  for (SecureChannel* node : {other.get(), expired.get(), early.get()}) {
    for (int i = 0; i < 20; ++i) SaySecurely(*node, Unchanged, {session_});
    ExpectNobodyThere();
  }
  EXPECT_EQ(num_joined_, 0);
  // The same bytes are a join where the certificate is right.
  const auto right = SecureChannel::Create(testing::ControlKey(), ChannelSide::kNode).value();
  EXPECT_TRUE(SaySecurely(*right, Unchanged, {session_}));
  EXPECT_EQ(num_joined_, 1);
  ExpectNobodyThere();
}

// Of the connections, some say what a node has said to begin with, changed; some are handshakes
// whose bytes are changed on the way; most have the key, and say wrong messages. So about half of
// the frames come after the handshake.
TEST_F(HostileHandshakesTest, AnyFramesBeforeAndAfterTheHandshakeAreBorne) {
  const std::vector<std::string> records = RecordJoin();
  testing::FrameMutator mutator(4, {session_});
  const auto node = SecureChannel::Create(testing::ControlKey(), ChannelSide::kNode).value();
  std::mt19937_64 random(5);
  const auto below = [&random](size_t bound) { return random() % bound; };
  const auto flip = [&](std::string bytes) {
    for (size_t i = 0; i <= below(4) && !bytes.empty(); ++i) {
      bytes[below(bytes.size())] ^= static_cast<char>(1 << below(8));
    }
    return bytes;
  };
  // That a node says; another frame has been changed.
  std::set<std::string> own_frames = {session_.substr(0, testing::kControlHelloBytes)};
  for (std::string& frame :
       testing::SplitFrames(std::string_view(session_).substr(testing::kControlHelloBytes))) {
    own_frames.insert(std::move(frame));
  }
  const size_t num_frames = NumFrames();
  // What the first connections leave is there for good: OpenSSL's tables, caches of malloc.
  size_t before = 0;
  size_t num_connections = 0;
  size_t num_shaken = 0;
  size_t num_before_handshake = 0;
  size_t num_after_handshake = 0;
  num_joined_ = 0;
  const auto begin = std::chrono::steady_clock::now();
  while (num_before_handshake + num_after_handshake < num_frames) {
    if (++num_connections == 1000) before = PeakBytes();
    const size_t kind = below(16);
    if (kind < 5) {
      // Records one after another, as they would be without waiting for answers.
      std::string said;
      const auto say = [&](const std::string& record, const std::string& changed) {
        said += changed;
        num_before_handshake += changed != record ? 1 : 0;
      };
      say(records[0], below(4) == 0 ? records[0] : flip(records[0]));
      while (below(3) != 0) {
        const std::string& record = records[below(records.size())];
        say(record, below(2) == 0 ? flip(record) : record.substr(0, below(record.size())));
      }
      SayRaw(said);
    } else if (kind < 7) {
      const size_t changed = below(6);
      SaySecurely(*node,
                  [&](size_t number, std::string said) {
                    if (number != changed) return said;
                    std::string other;
                    switch (below(4)) {
                      case 0:
                        other = said.substr(0, below(said.size()));
                        break;
                      case 1:
                        other = said + said;
                        break;
                      case 2:
                        other = records[below(records.size())];
                        break;
                      default:
                        other = flip(said);
                    }
                    num_before_handshake += other != said ? 1 : 0;
                    return other;
                  },
                  {session_});
    } else {
      const std::string bytes = mutator.Next();
      const size_t hello = std::min(bytes.size(), testing::kControlHelloBytes);
      const std::vector<std::string> frames =
          testing::SplitFrames(std::string_view(bytes).substr(hello));
      std::vector<std::string> texts = {bytes.substr(0, hello)};
      texts.insert(texts.end(), frames.begin(), frames.end());
      if (SaySecurely(*node, Unchanged, texts)) {
        ++num_shaken;
        num_after_handshake += static_cast<size_t>(
            std::count_if(texts.begin(), texts.end(),
                          [&](const std::string& text) { return !own_frames.contains(text); }));
      }
    }
    if (num_connections % 64 == 0) ExpectNobodyThere();
    ASSERT_FALSE(HasFailure()) << "connection " << num_connections;
  }
  ExpectNobodyThere();
  EXPECT_GT(num_shaken, num_connections / 20);
  EXPECT_GT(num_joined_, 0);
  const size_t growth = PeakBytes() - before;
  EXPECT_LT(growth, kMaxGrowthBytes);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  printf(
      "%zu changed frames before the end of the handshake and %zu after it on %zu connections: "
      "%.1f s, %.1f MiB more "
      "at the peak\n",
      num_before_handshake, num_after_handshake, num_connections, seconds,
      static_cast<double>(growth) / (1 << 20));
  ExpectServes();
}

}  // namespace
}  // namespace penstock::actors::control
