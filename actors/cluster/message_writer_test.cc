// Which messages leave in which write, in virtual time.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <capnp/any.h>
#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/timer.h>

#include "actors/cluster/message_writer_internal.h"

namespace penstock::actors::control {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Keeps what is written; a write ends when the test lets it.
class KeptStream final : public kj::AsyncIoStream {
 public:
  kj::Promise<size_t> tryRead(void*, size_t, size_t) override { return kj::NEVER_DONE; }
  kj::Promise<void> write(const void* buffer, size_t size) override {
    return Keep(std::string(static_cast<const char*>(buffer), size));
  }
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    std::string all;
    for (const auto& piece : pieces) {
      all.append(reinterpret_cast<const char*>(piece.begin()), piece.size());
    }
    return Keep(std::move(all));
  }
  kj::Promise<void> whenWriteDisconnected() override { return kj::NEVER_DONE; }
  void shutdownWrite() override {}

  bool is_slow = false;
  kj::Own<kj::PromiseFulfiller<void>> end_of_write;  // of a slow one
  std::vector<std::string> writes;

 private:
  kj::Promise<void> Keep(std::string bytes) {
    EXPECT_FALSE(is_writing_) << "two writes at a time";
    writes.push_back(std::move(bytes));
    if (!is_slow) return kj::READY_NOW;
    is_writing_ = true;
    auto end = kj::newPromiseAndFulfiller<void>();
    end_of_write = kj::mv(end.fulfiller);
    return end.promise.then([this] { is_writing_ = false; });
  }

  bool is_writing_ = false;
};

class MessageWriterTest : public ::testing::Test {
 protected:
  ~MessageWriterTest() noexcept override = default;

  // A message with this text of at least one word, and its bytes.
  struct Message {
    explicit Message(const std::string& text) {
      builder.initRoot<capnp::AnyPointer>().setAs<capnp::Text>(text.c_str());
      const kj::Array<capnp::word> flat = capnp::messageToFlatArray(builder);
      bytes.assign(reinterpret_cast<const char*>(flat.begin()), flat.size() * sizeof(capnp::word));
    }
    MessageWriter::Segments segments() { return builder.getSegmentsForOutput(); }

    capnp::MallocMessageBuilder builder;
    std::string bytes;
  };

  void Write(Message& message) {
    writing_.push_back(writer_.Write(message.segments()).then([this] { ++num_written_; }));
    Poll();
  }
  void Hold(Message& message) {
    writing_.push_back(writer_.Hold(message.segments()).then([this] { ++num_written_; }));
    Poll();
  }
  void Poll() {
    for (auto& promise : writing_) promise = promise.eagerlyEvaluate(nullptr);
    scope_.poll();
  }
  void Advance(kj::Duration time) {
    timer_.advanceTo(timer_.now() + time);
    scope_.poll();
  }

  kj::EventLoop loop_;
  kj::WaitScope scope_{loop_};
  kj::TimerImpl timer_{kj::origin<kj::TimePoint>()};
  KeptStream stream_;
  MessageWriter writer_{stream_, timer_};
  std::vector<kj::Promise<void>> writing_;
  int num_written_ = 0;
  Message a_{"a"};
  Message b_{"b"};
  Message c_{"c"};
};

TEST_F(MessageWriterTest, WhatIsHeldLeavesWithTheNextInOrder) {
  Hold(a_);
  Hold(b_);
  EXPECT_EQ(num_written_, 2);
  EXPECT_THAT(stream_.writes, IsEmpty());
  Write(c_);
  EXPECT_EQ(num_written_, 3);
  EXPECT_THAT(stream_.writes, ElementsAre(a_.bytes + b_.bytes + c_.bytes));
  Advance(10 * MessageWriter::kPatience);
  EXPECT_EQ(stream_.writes.size(), 1u);
}

TEST_F(MessageWriterTest, WhatIsHeldLeavesAfterAWhile) {
  Hold(a_);
  Advance(MessageWriter::kPatience - 1 * kj::MILLISECONDS);
  EXPECT_THAT(stream_.writes, IsEmpty());
  Advance(1 * kj::MILLISECONDS);
  EXPECT_THAT(stream_.writes, ElementsAre(a_.bytes));
  // And so does what is held after that.
  Hold(b_);
  Advance(MessageWriter::kPatience);
  EXPECT_THAT(stream_.writes, ElementsAre(a_.bytes, b_.bytes));
}

TEST_F(MessageWriterTest, NothingIsWrittenWhileAnotherWriteIsUnderWay) {
  stream_.is_slow = true;
  Hold(a_);
  Advance(MessageWriter::kPatience);
  Hold(b_);
  Write(c_);
  EXPECT_THAT(stream_.writes, ElementsAre(a_.bytes));
  EXPECT_EQ(num_written_, 2);
  stream_.end_of_write->fulfill();
  Poll();
  EXPECT_THAT(stream_.writes, ElementsAre(a_.bytes, b_.bytes + c_.bytes));
  EXPECT_EQ(num_written_, 2);
  stream_.end_of_write->fulfill();
  Poll();
  EXPECT_EQ(num_written_, 3);
}

TEST_F(MessageWriterTest, WhatIsHeldDuringAWriteLeavesAfterAWhile) {
  stream_.is_slow = true;
  Hold(a_);
  Advance(MessageWriter::kPatience);
  Hold(b_);
  stream_.end_of_write->fulfill();
  Poll();
  Advance(MessageWriter::kPatience);
  EXPECT_THAT(stream_.writes, ElementsAre(a_.bytes, b_.bytes));
}

TEST_F(MessageWriterTest, LittleIsHeld) {
  size_t num_bytes = 0;
  while (stream_.writes.empty() && num_bytes < 10 * MessageWriter::kMaxHeldBytes) {
    Hold(a_);
    num_bytes += a_.bytes.size();
  }
  EXPECT_EQ(stream_.writes.size(), 1u);
  EXPECT_LE(stream_.writes[0].size(), MessageWriter::kMaxHeldBytes + 2 * a_.bytes.size());
}

TEST_F(MessageWriterTest, ALongMessageIsNotCopied) {
  Message longer(std::string(100'000, 'x'));
  Hold(a_);
  Write(longer);
  EXPECT_THAT(stream_.writes, ElementsAre(a_.bytes, longer.bytes));
}

}  // namespace
}  // namespace penstock::actors::control
