// Connections to a coordinator that say wrong frames: records of a handshake that are changed, and,
// after a handshake with the job's key, a hello and messages that are changed. One of 16 says what
// a node says, with a certificate of another authority, or of a time that is over or has not begun;
// another one of 16 says again, byte for byte, what one with the key has said.
//
//   HostileClient client(address, key, 20'000);
//   while (!client.is_done()) RunAStep();
//
// Thread rule: the client has a thread of its own, that of an event loop; its functions are for one
// other.

#ifndef PENSTOCK_TESTS_SUPPORT_HOSTILE_CLIENT_H_
#define PENSTOCK_TESTS_SUPPORT_HOSTILE_CLIENT_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <future>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include <kj/async-io.h>

#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/job_key.h"
#include "actors/cluster/secure_channel_internal.h"
#include "tests/support/control_harness.h"
#include "tests/support/frame_mutator.h"
#include "tests/support/tapped_stream.h"

namespace penstock::testing {

class HostileClient {
 public:
  // Until it has said so many changed frames, on connections one after another.
  HostileClient(std::string address, const std::string& key, size_t num_frames)
      : address_(std::move(address)),
        num_frames_(num_frames),
        session_(RecordSession(actors::ParseJobKey(key).value())),
        mutator_(7, {session_}),
        channel_(actors::control::SecureChannel::Create(actors::ParseJobKey(key).value(),
                                                        actors::control::ChannelSide::kNode)
                     .value()),
        loop_(actors::control::ControlLoop::Start().value()) {
    using actors::control::ChannelSide;
    using actors::control::SecureChannel;
    const std::string job = actors::ParseJobKey(key).value();
    const auto node = ChannelSide::kNode;
    strangers_.push_back(SecureChannel::Create(std::string(job.size(), 'o'), node).value());
    strangers_.push_back(
        SecureChannel::Create(job, node, {-absl::Hours(48), -absl::Hours(24)}).value());
    strangers_.push_back(
        SecureChannel::Create(job, node, {absl::Hours(24), absl::Hours(48)}).value());
    own_frames_.insert(session_.substr(0, kControlHelloBytes));
    for (std::string& frame : SplitFrames(std::string_view(session_).substr(kControlHelloBytes))) {
      own_frames_.insert(std::move(frame));
    }
    loop_->Post([this] { talking_ = Talk().eagerlyEvaluate([](const kj::Exception&) {}); });
  }
  ~HostileClient() {
    (void)loop_->Await(
        [this]() -> kj::Promise<void> {
          talking_ = nullptr;
          return kj::READY_NOW;
        },
        absl::Seconds(10), "the end of a client");
  }

  bool is_done() const { return num_said_ >= num_frames_; }
  size_t num_said() const { return num_said_; }
  size_t num_connections() const { return num_connections_; }
  size_t num_handshakes() const { return num_handshakes_; }
  size_t num_replays() const { return num_replays_; }
  // Connections with a wrong certificate, and bytes that the coordinator has said to them.
  size_t num_strangers() const { return num_strangers_; }
  size_t num_bytes_to_strangers() const { return num_bytes_to_strangers_; }

 private:
  // How long it waits for a connection to be closed.
  static constexpr kj::Duration kPatience = 20 * kj::MILLISECONDS;
  // The beginning of a ClientHello.
  static constexpr char kRecord[] =
      "\x16\x03\x01\x00\x40\x01\x00\x00\x3c\x03\x03 the rest of it is made of random bytes";

  // What a node of the job says. A harness has an event loop, of which a thread can have one.
  static std::string RecordSession(const std::string& key) {
    std::string session =
        std::async(std::launch::async, [] { return CoordinatorHarness().Record(); }).get();
    const std::string hello = NodeHello().substr(0, 8) + key.substr(0, 16);
    return session.replace(0, kControlHelloBytes, hello);
  }

  kj::Promise<void> Talk() {
    if (is_done()) return kj::READY_NOW;
    ++num_connections_;
    return loop_->io()
        .provider->getNetwork()
        .parseAddress(address_.c_str())
        .then([](kj::Own<kj::NetworkAddress> where) {
          auto connected = where->connect();
          return connected.attach(kj::mv(where));
        })
        .then([this](kj::Own<kj::AsyncIoStream> stream) -> kj::Promise<void> {
          if (num_connections_ % 16 == 0) {
            auto& stranger = *strangers_[num_strangers_++ % strangers_.size()];
            return stranger.Secure(kj::mv(stream))
                .then([this](auto&& secured) { return Say(kj::mv(secured), session_, 1); })
                .then([this](size_t num_heard) { num_bytes_to_strangers_ += num_heard; });
          }
          if (num_connections_ % 16 == 8) return Replay(kj::mv(stream));
          if (num_connections_ % 2 == 0) {
            return Say(kj::mv(stream), WrongRecords()).ignoreResult();
          }
          return channel_->Secure(kj::mv(stream)).then([this](auto&& secured) {
            ++num_handshakes_;
            return Say(kj::mv(secured), WrongMessages()).ignoreResult();
          });
        })
        .exclusiveJoin(loop_->timer().afterDelay(10 * kj::SECONDS))
        .catch_([](const kj::Exception&) {})
        .then([this] { return Talk(); });
  }

  // Says what a node says and records its bytes on the wire; every later time, sends these bytes.
  kj::Promise<void> Replay(kj::Own<kj::AsyncIoStream> stream) {
    if (!recorded_.empty()) {
      ++num_replays_;
      return Say(kj::mv(stream), recorded_).ignoreResult();
    }
    return channel_
        ->Secure(kj::heap<TappedStream>(kj::mv(stream),
                                        [this](size_t, std::string said) {
                                          recorded_ += said;
                                          return said;
                                        }))
        .then([this](auto&& secured) { return Say(kj::mv(secured), session_).ignoreResult(); });
  }

  static constexpr size_t kMostHeard = 4096;

  // Then waits for so many bytes, a closed connection or the end of its patience, and gives how
  // many bytes it has heard; none, if that was its patience.
  kj::Promise<size_t> Say(kj::Own<kj::AsyncIoStream> stream, std::string bytes,
                          size_t num_to_hear = kMostHeard) {
    struct Said {
      std::string bytes;
      char heard[kMostHeard];
      kj::Own<kj::AsyncIoStream> stream;
    };
    auto said = kj::heap<Said>();
    said->bytes = std::move(bytes);
    said->stream = kj::mv(stream);
    Said& it = *said;
    return it.stream->write(it.bytes.data(), it.bytes.size())
        .then([&it, num_to_hear] { return it.stream->tryRead(it.heard, num_to_hear, kMostHeard); })
        .exclusiveJoin(loop_->timer().afterDelay(kPatience).then([] { return size_t{0}; }))
        .attach(kj::mv(said));
  }

  std::string WrongRecords() {
    std::string bytes;
    for (int i = 0; i < 12; ++i) {
      std::string record(kRecord, sizeof(kRecord) - 1);
      for (size_t j = 0; j <= random_() % 8; ++j) {
        record[random_() % record.size()] = static_cast<char>(random_());
      }
      num_said_ += record != std::string_view(kRecord, sizeof(kRecord) - 1) ? 1 : 0;
      bytes += record;
    }
    return bytes;
  }

  std::string WrongMessages() {
    const std::string bytes = mutator_.Next();
    const size_t hello = std::min(bytes.size(), kControlHelloBytes);
    std::vector<std::string> frames = SplitFrames(std::string_view(bytes).substr(hello));
    frames.push_back(bytes.substr(0, hello));
    num_said_ += static_cast<size_t>(
        std::count_if(frames.begin(), frames.end(),
                      [this](const std::string& frame) { return !own_frames_.contains(frame); }));
    return bytes;
  }

  const std::string address_;
  const size_t num_frames_;
  const std::string session_;
  std::set<std::string> own_frames_;  // of a node; another frame has been changed
  // The loop's thread's:
  FrameMutator mutator_;
  std::mt19937_64 random_{5};
  std::string recorded_;  // what Replay sends again
  const std::unique_ptr<actors::control::SecureChannel> channel_;
  std::vector<std::unique_ptr<actors::control::SecureChannel>> strangers_;
  std::atomic<size_t> num_replays_ = 0;
  std::atomic<size_t> num_strangers_ = 0;
  std::atomic<size_t> num_bytes_to_strangers_ = 0;
  std::atomic<size_t> num_said_ = 0;
  std::atomic<size_t> num_connections_ = 0;
  std::atomic<size_t> num_handshakes_ = 0;
  kj::Promise<void> talking_ = nullptr;

  const std::unique_ptr<actors::control::ControlLoop> loop_;  // its thread uses all of the above
};

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_HOSTILE_CLIENT_H_
