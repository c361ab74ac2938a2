#include "actors/cluster/byte_exchange.h"

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/engine/error_origin.h"

namespace penstock::actors {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// Three devices; what `from` sends to `to` is some number of bytes of its own.
class ByteExchangeTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kNumDevices = 3;

  // Exchanges set the wake-up of their endpoints, which has to be done before a peer sends.
  ByteExchangeTest()
      : transport_(transport::CreateInprocTransport({kNumDevices, 7, 1})), stoppers_(kNumDevices) {
    for (uint32_t device = 0; device < kNumDevices; ++device) {
      exchanges_.push_back(std::make_unique<ByteExchange>(
          *transport_, **transport_->OpenEndpoint(device), stoppers_[device]));
    }
  }

  static std::string Message(uint32_t from, uint32_t to) {
    std::string text((from * 5 + to) * 37 % 100, '\0');
    for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(from + 3 * to + i);
    return text;
  }
  static ByteSource SourceOf(const std::string& text) {
    ByteSource source;
    source.Add(text.size(), [text](uint64_t offset, size_t size, std::byte* bytes) {
      memcpy(bytes, text.data() + offset, size);
    });
    return source;
  }
  static ByteTarget TargetOf(std::string* text, size_t num_bytes) {
    text->resize(num_bytes);
    ByteTarget target;
    target.Add(num_bytes, [text](uint64_t offset, size_t size, const std::byte* bytes) {
      memcpy(text->data() + offset, bytes, size);
    });
    return target;
  }

  absl::Status Run(uint32_t device, std::map<uint32_t, ByteSource> sends,
                   std::map<uint32_t, ByteTarget> receives, absl::Duration timeout) {
    const absl::Status status = exchanges_[device]->Run(sends, receives, {16, timeout});
    if (status.ok()) exchanges_[device]->Linger(absl::Seconds(20));
    return status;
  }

  std::unique_ptr<transport::Transport> transport_;
  std::vector<ByteExchange::Stopper> stoppers_;
  std::vector<std::unique_ptr<ByteExchange>> exchanges_;
};

TEST_F(ByteExchangeTest, MovesStreamsOfAnySizeBetweenAll) {
  std::vector<std::string> received(kNumDevices * kNumDevices);
  std::vector<absl::Status> statuses(kNumDevices);
  std::atomic<uint32_t> num_done{0};
  std::vector<std::thread> threads;
  for (uint32_t device = 0; device < kNumDevices; ++device) {
    threads.emplace_back([&, device] {
      std::map<uint32_t, ByteSource> sends;
      std::map<uint32_t, ByteTarget> receives;
      for (uint32_t peer = 0; peer < kNumDevices; ++peer) {
        if (peer == device) continue;
        sends[peer] = SourceOf(Message(device, peer));
        receives[peer] =
            TargetOf(&received[peer * kNumDevices + device], Message(peer, device).size());
      }
      statuses[device] = exchanges_[device]->Run(sends, receives, {16, absl::Seconds(20)});
      // The last one lets all go.
      if (++num_done == kNumDevices) {
        for (ByteExchange::Stopper& stopper : stoppers_) stopper.Stop();
      }
      exchanges_[device]->Linger(absl::Seconds(20));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
  for (uint32_t from = 0; from < kNumDevices; ++from) {
    for (uint32_t to = 0; to < kNumDevices; ++to) {
      if (from != to) {
        EXPECT_EQ(received[from * kNumDevices + to], Message(from, to)) << from << " to " << to;
      }
    }
  }
}

TEST_F(ByteExchangeTest, EndsWithItsTimeoutWhereAPeerIsSilent) {
  std::string received;
  const absl::Status status =
      Run(0, {{1, SourceOf("text")}}, {{2, TargetOf(&received, 5)}}, absl::Milliseconds(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(OriginOf(status).peer, 2);
  EXPECT_THAT(status.ToString(), HasSubstr("5 B of it are left, and some with 1 other node"));
}

TEST_F(ByteExchangeTest, EndsWhenItIsStopped) {
  std::thread stop([this] { stoppers_[0].Stop(); });
  EXPECT_EQ(Run(0, {{1, SourceOf("text")}}, {}, absl::InfiniteDuration()).code(),
            absl::StatusCode::kCancelled);
  stop.join();
}

TEST_F(ByteExchangeTest, RefusesAStreamOfAnotherSize) {
  std::string received;
  std::thread sender([this] {
    (void)Run(1, {{0, SourceOf("longer than that")}}, {}, absl::Seconds(20));
  });
  const absl::Status status = Run(0, {}, {{1, TargetOf(&received, 5)}}, absl::Seconds(20));
  stoppers_[1].Stop();
  sender.join();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.ToString(), HasSubstr("bytes"));
  EXPECT_EQ(OriginOf(status).peer, 1);
}

TEST_F(ByteExchangeTest, NothingToMoveIsDoneAtOnce) {
  EXPECT_EQ(
      exchanges_[0]->Run({{1, ByteSource()}}, {{1, ByteTarget()}}, {16, absl::ZeroDuration()}),
      absl::OkStatus());
}

}  // namespace
}  // namespace penstock::actors
