// Long data in chunks: that heartbeats pass between them on a slow link, and what owners and
// readers that lie can do to each other.

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <kj/debug.h>
#include <kj/timer.h>

#include "actors/cluster/chunked_transfer_internal.h"
#include "actors/cluster/connection_internal.h"
#include "actors/cluster/control_loop_internal.h"
#include "base/strings.h"

namespace penstock::actors::control {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr size_t kNumChunks = 16;
constexpr size_t kNumBytes = kNumChunks * kChunkBytes - 1000;

std::string Numbered(size_t num_bytes) {
  std::string bytes(num_bytes, '\0');
  for (size_t i = 0; i < num_bytes; ++i) bytes[i] = static_cast<char>(i ^ (i >> 8) ^ (i >> 16));
  return bytes;
}

ByteSource SourceOf(const std::string& bytes) {
  ByteSource source;
  source.Add(bytes.size(), [&bytes](uint64_t offset, size_t size, std::byte* to) {
    memcpy(to, bytes.data() + offset, size);
  });
  return source;
}

ByteTarget TargetOf(std::string* bytes) {
  ByteTarget target;
  target.Add(bytes->size(), [bytes](uint64_t offset, size_t size, const std::byte* from) {
    memcpy(bytes->data() + offset, from, size);
  });
  return target;
}

class ChunkedTransferTest : public ::testing::Test {
 protected:
  ~ChunkedTransferTest() noexcept override = default;

  void Advance(int milliseconds) {
    timer_.advanceTo(timer_.now() + milliseconds * kj::MILLISECONDS);
    scope_.poll();
  }

  // The error that a promise ends with.
  absl::Status Await(StatusPromise promise) {
    return promise.catch_([](kj::Exception&& exception) { return FromException(exception); })
        .wait(scope_);
  }

  kj::EventLoop loop_;
  kj::WaitScope scope_{loop_};
  kj::TimerImpl timer_{kj::origin<kj::TimePoint>()};
};

// --- Over a slow link ----------------------------------------------------------------------------

// What is written takes its time, and one write follows the other.
class SlowStream final : public kj::AsyncIoStream {
 public:
  static constexpr size_t kBytesPerMs = 4 << 10;  // 4 MiB/s

  SlowStream(kj::Own<kj::AsyncIoStream> inner, kj::Timer& timer)
      : inner_(kj::mv(inner)), timer_(timer) {}

  kj::Promise<size_t> tryRead(void* buffer, size_t min, size_t max) override {
    return inner_->tryRead(buffer, min, max);
  }
  kj::Promise<void> write(const void* buffer, size_t size) override {
    const size_t count = std::min(size, kBytesPerMs);
    return timer_.afterDelay(1 * kj::MILLISECONDS)
        .then([this, buffer, count] { return inner_->write(buffer, count); })
        .then([this, buffer, count, size]() -> kj::Promise<void> {
          if (count == size) return kj::READY_NOW;
          return write(static_cast<const kj::byte*>(buffer) + count, size - count);
        });
  }
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> chunks) override {
    if (chunks.size() == 0) return kj::READY_NOW;
    return write(chunks[0].begin(), chunks[0].size()).then([this, chunks] {
      return write(chunks.slice(1, chunks.size()));
    });
  }
  kj::Promise<void> whenWriteDisconnected() override { return inner_->whenWriteDisconnected(); }
  void shutdownWrite() override { inner_->shutdownWrite(); }

 private:
  kj::Own<kj::AsyncIoStream> inner_;
  kj::Timer& timer_;
};

// Reads the feeds that are submitted, and has a state to be read.
class TestNode final : public Node::Server {
 public:
  TestNode(const std::string& state, std::string* feeds) : state_(state), feeds_(feeds) {}

  kj::Promise<void> ping(PingContext) override { return kj::READY_NOW; }
  kj::Promise<void> submit(SubmitContext context) override {
    return ReadChunks(AskSource(std::make_shared<Source::Client>(
                          context.getParams().getFeeds().getSource())),
                      TargetOf(feeds_))
        .then([context](absl::Status&& status) mutable {
          WriteStatus(status, context.getResults().initStatus());
        });
  }
  kj::Promise<void> readState(ReadStateContext context) override {
    context.getResults().setBytes(
        AsData(state_.data() + context.getParams().getOffset(), context.getParams().getSize()));
    return kj::READY_NOW;
  }

 private:
  const std::string& state_;
  std::string* const feeds_;
};

class SlowLinkTest : public ChunkedTransferTest {
 protected:
  SlowLinkTest() {
    auto pipe = kj::newTwoWayPipe();
    node_side_ = kj::heap<RpcConnection>(
        kj::heap<SlowStream>(kj::mv(pipe.ends[0]), timer_), capnp::rpc::twoparty::Side::SERVER,
        capnp::Capability::Client(kj::heap<TestNode>(bytes_, &received_)), timer_);
    node_side_->Trust();
    coordinator_side_ =
        kj::heap<RpcConnection>(kj::heap<SlowStream>(kj::mv(pipe.ends[1]), timer_),
                                capnp::rpc::twoparty::Side::CLIENT, nullptr, timer_);
  }
  ~SlowLinkTest() noexcept override = default;

  // Pings every now and then until `transfer` has ended; the longest time without an answer.
  int LongestSilence(Node::Client node, StatusPromise transfer, int* duration) {
    bool is_over = false;
    auto end = transfer
                   .then([&is_over](const absl::Status& status) {
                     EXPECT_EQ(status, absl::OkStatus());
                     is_over = true;
                   })
                   .eagerlyEvaluate(nullptr);
    int longest = 0;
    int heard = 0;
    int now = 0;
    bool is_asked = false;
    kj::Promise<void> ping = kj::READY_NOW;
    for (; !is_over && now < 100'000; ++now) {
      if (!is_asked && now % 50 == 0) {
        is_asked = true;
        ping = node.pingRequest().send().ignoreResult().then([&] {
          is_asked = false;
          heard = now;
        });
        ping = ping.eagerlyEvaluate(nullptr);
      }
      Advance(1);
      longest = std::max(longest, now - heard);
    }
    EXPECT_TRUE(is_over);
    *duration = now;
    return longest;
  }

  const std::string bytes_ = Numbered(kNumBytes);
  std::string received_ = std::string(kNumBytes, '\0');
  kj::Own<RpcConnection> node_side_;
  kj::Own<RpcConnection> coordinator_side_;
};

// In milliseconds: what is on its way, the wait for the next heartbeat, and as much again for all
// that is short.
constexpr int kTransferMs = kNumBytes / SlowStream::kBytesPerMs;
constexpr int kSilenceMs = kMaxChunksInFlight * kChunkBytes / SlowStream::kBytesPerMs + 2 * 50;
static_assert(kTransferMs > 6 * kSilenceMs);

TEST_F(SlowLinkTest, HeartbeatsPassBetweenChunksThatANodeReads) {
  auto node = coordinator_side_->Bootstrap().castAs<Node>();
  auto call = node.submitRequest();
  auto offered = Offer(SourceOf(bytes_), call.initFeeds());
  ASSERT_NE(offered, nullptr);
  int duration = 0;
  EXPECT_LE(LongestSilence(node, StatusOf(call.send()), &duration), kSilenceMs);
  EXPECT_GE(duration, kTransferMs);
  EXPECT_EQ(received_, bytes_);
}

TEST_F(SlowLinkTest, HeartbeatsPassBetweenChunksThatTheCoordinatorReads) {
  auto node = coordinator_side_->Bootstrap().castAs<Node>();
  auto transfer = ReadChunks(
      [&node](uint64_t offset, uint32_t size) {
        auto call = node.readStateRequest();
        call.setOffset(offset);
        call.setSize(size);
        return call.send();
      },
      TargetOf(&received_));
  int duration = 0;
  EXPECT_LE(LongestSilence(node, kj::mv(transfer), &duration), kSilenceMs);
  EXPECT_GE(duration, kTransferMs);
  EXPECT_EQ(received_, bytes_);
}

TEST_F(SlowLinkTest, AnOwnerThatGoesEndsTheTransfer) {
  auto node = coordinator_side_->Bootstrap().castAs<Node>();
  auto call = node.submitRequest();
  auto offered = Offer(SourceOf(bytes_), call.initFeeds());
  auto sent = StatusOf(call.send());
  for (int i = 0; i < kTransferMs / 2; ++i) Advance(1);
  EXPECT_NE(received_[0], received_[1]);  // some of it has come
  node_side_ = nullptr;
  EXPECT_EQ(Await(kj::mv(sent)).code(), absl::StatusCode::kUnavailable);
}

// --- Peers that lie ------------------------------------------------------------------------------

// Answers when it is told to.
class HeldSource final : public Source::Server {
 public:
  struct Question {
    uint64_t offset;
    uint32_t size;
    kj::Own<kj::PromiseFulfiller<std::string>> answer;
  };

  explicit HeldSource(std::vector<Question>* questions) : questions_(questions) {}

  kj::Promise<void> read(ReadContext context) override {
    const auto params = context.getParams();
    auto answer = kj::newPromiseAndFulfiller<std::string>();
    questions_->push_back({params.getOffset(), params.getSize(), kj::mv(answer.fulfiller)});
    return answer.promise.then([context](std::string&& bytes) mutable {
      context.getResults().setBytes(AsData(bytes.data(), bytes.size()));
    });
  }

 private:
  std::vector<Question>* const questions_;
};

class LyingOwnerTest : public ChunkedTransferTest {
 protected:
  ~LyingOwnerTest() noexcept override = default;

  StatusPromise Read() {
    return ReadChunks(
        AskSource(std::make_shared<Source::Client>(kj::heap<HeldSource>(&questions_))),
        TargetOf(&received_));
  }

  const std::string bytes_ = Numbered(kNumBytes);
  std::string received_ = std::string(kNumBytes, '\0');
  std::vector<HeldSource::Question> questions_;
};

// Whatever the owner's pace and order.
TEST_F(LyingOwnerTest, AFewChunksAreAskedForAtATime) {
  bool is_over = false;
  auto read = Read()
                  .then([&is_over](const absl::Status& status) { is_over = status.ok(); })
                  .eagerlyEvaluate(nullptr);
  scope_.poll();
  for (size_t answered = 0; answered < kNumChunks; ++answered) {
    EXPECT_FALSE(is_over);
    ASSERT_THAT(questions_, SizeIs(std::min(kMaxChunksInFlight, kNumChunks - answered)));
    HeldSource::Question last = kj::mv(questions_.back());
    questions_.pop_back();
    EXPECT_TRUE(CheckChunk(last.offset, last.size, kNumBytes).ok());
    last.answer->fulfill(bytes_.substr(last.offset, last.size));
    scope_.poll();
  }
  EXPECT_TRUE(is_over);
  EXPECT_EQ(received_, bytes_);
}

TEST_F(LyingOwnerTest, AChunkOfAnotherLengthEndsTheTransfer) {
  for (const size_t size : {size_t{0}, size_t{1}, kChunkBytes - 1, kChunkBytes + 1, kNumBytes}) {
    questions_.clear();
    received_.assign(kNumBytes, '\0');
    auto read = Read().eagerlyEvaluate(nullptr);
    scope_.poll();
    // The others are not waited for.
    questions_[0].answer->fulfill(std::string(size, 'x'));
    const absl::Status status = Await(kj::mv(read));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.ToString(),
                HasSubstr(StrCat("a chunk of ", size, " bytes where ", kChunkBytes)));
    EXPECT_EQ(received_, std::string(kNumBytes, '\0'));
    EXPECT_THAT(questions_, SizeIs(kMaxChunksInFlight));
  }
}

TEST_F(LyingOwnerTest, AnErrorIsPassedOn) {
  auto read = Read().eagerlyEvaluate(nullptr);
  scope_.poll();
  questions_[1].answer->reject(KJ_EXCEPTION(DISCONNECTED, "it is gone"));
  EXPECT_EQ(Await(kj::mv(read)), absl::UnavailableError("it is gone"));
}

TEST_F(ChunkedTransferTest, AReaderGetsNothingButWhatIsOffered) {
  const std::string bytes = Numbered(2 * kChunkBytes + 5);
  capnp::MallocMessageBuilder message;
  auto transfer = message.initRoot<ChunkedBytes>();
  auto offered = Offer(SourceOf(bytes), transfer);
  Source::Client source = transfer.asReader().getSource();
  const auto ask = [&](uint64_t offset, uint32_t size) {
    auto call = source.readRequest();
    call.setOffset(offset);
    call.setSize(size);
    return call.send();
  };
  const auto last = ask(2 * kChunkBytes, 5).wait(scope_);
  EXPECT_EQ(AsText(last.getBytes()), bytes.substr(2 * kChunkBytes));
  const std::pair<uint64_t, uint32_t> wrong[] = {{0, 0},
                                                 {0, kChunkBytes + 1},
                                                 {2 * kChunkBytes, 6},
                                                 {bytes.size(), 1},
                                                 {~uint64_t{0}, 1},
                                                 {~uint64_t{0} - 4, 5},
                                                 {1, ~uint32_t{0}}};
  for (const auto& [offset, size] : wrong) {
    const absl::Status status = ReadStatus(ask(offset, size).wait(scope_).getStatus());
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << offset << " " << size;
    EXPECT_THAT(status.ToString(), HasSubstr(StrCat("no chunk of ", size, " bytes at ", offset)));
  }
  // The call is over.
  offered = nullptr;
  EXPECT_THAT(ReadStatus(ask(0, 1).wait(scope_).getStatus()).ToString(), HasSubstr("too late"));
}

TEST_F(ChunkedTransferTest, WhatIsShortIsInTheCall) {
  for (const size_t num_bytes : {size_t{0}, size_t{1}, kChunkBytes}) {
    const std::string bytes = Numbered(num_bytes);
    capnp::MallocMessageBuilder message;
    auto transfer = message.initRoot<ChunkedBytes>();
    EXPECT_EQ(Offer(SourceOf(bytes), transfer), nullptr);
    ASSERT_TRUE(transfer.isEmbedded());
    std::string received(num_bytes, '\0');
    EXPECT_TRUE(TakeEmbedded(AsText(transfer.asReader().getEmbedded()), TargetOf(&received)).ok());
    EXPECT_EQ(received, bytes);
  }
  std::string received(3, '.');
  for (const std::string bytes : {"", "xx", "xxxx"}) {
    EXPECT_EQ(TakeEmbedded(bytes, TargetOf(&received)).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(received, "...");
}

}  // namespace
}  // namespace penstock::actors::control
