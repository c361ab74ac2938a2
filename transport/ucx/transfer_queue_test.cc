#include "transport/ucx/transfer_queue.h"

#include <array>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace penstock::transport::ucx {
namespace {

struct Transfer {
  uint32_t channel = 0;
  uint64_t num_bytes = 0;
  TransferFlow* flow = nullptr;
  Transfer* next = nullptr;
  uint64_t num_started = 0;
  bool in_chunks = false;
};

class TransferQueueTest : public ::testing::Test {
 protected:
  using Chunk = TransferQueue<Transfer>::Chunk;

  void Add(Transfer* transfer) { Add(transfer, &flow_); }
  void Add(Transfer* transfer, TransferFlow* flow) {
    flow->starter = &starter_;
    transfer->flow = flow;
    queue_.Add(transfer);
  }
  Chunk StartNext() { return queue_.StartNext(&starter_); }
  void Finish(uint64_t num_bytes) { queue_.Finish(&flow_, num_bytes); }

  const TransferStarter starter_{[] { FAIL() << "woke itself"; }};
  TransferFlow flow_;
  TransferQueue<Transfer> queue_;
};

TEST_F(TransferQueueTest, StartsTheLowestChannelFirst) {
  Transfer transfers[4];
  for (int i = 0; i < 4; ++i) transfers[i].channel = i % 2 == 0 ? 5 : 3;
  for (Transfer& transfer : transfers) Add(&transfer);
  EXPECT_EQ(StartNext().transfer, &transfers[1]);
  EXPECT_EQ(StartNext().transfer, &transfers[3]);
  EXPECT_EQ(StartNext().transfer, &transfers[0]) << "within a channel, the first added";
  EXPECT_EQ(StartNext().transfer, &transfers[2]);
  EXPECT_EQ(StartNext().transfer, nullptr);
}

TEST_F(TransferQueueTest, BoundsTheBytesInFlight) {
  Transfer transfers[5];
  for (Transfer& transfer : transfers) {
    transfer.num_bytes = kMaxBytesInFlight / 4;
    Add(&transfer);
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(StartNext().transfer, &transfers[i]);
  EXPECT_EQ(StartNext().transfer, nullptr);
  Finish(transfers[0].num_bytes);
  EXPECT_EQ(StartNext().transfer, &transfers[4]);
}

TEST_F(TransferQueueTest, LetsTwoTransfersOfAnyLengthBeInFlight) {
  Transfer transfers[3];
  for (Transfer& transfer : transfers) {
    transfer.channel = 7;
    transfer.num_bytes = 8 * kMaxBytesInFlight;
    Add(&transfer);
  }
  EXPECT_NE(StartNext().transfer, nullptr);
  EXPECT_NE(StartNext().transfer, nullptr);
  EXPECT_EQ(StartNext().transfer, nullptr);
  Transfer urgent;
  urgent.channel = 3;
  Add(&urgent);
  EXPECT_EQ(StartNext().transfer, nullptr);
  Finish(transfers[0].num_bytes);
  EXPECT_EQ(StartNext().transfer, &urgent) << "overtakes what waits";
}

TEST_F(TransferQueueTest, StartsLongTransfersInChunks) {
  Transfer transfers[2];
  for (Transfer& transfer : transfers) {
    transfer.channel = 7;
    transfer.num_bytes = 2 * kNetworkChunkBytes + 5;
    transfer.in_chunks = true;
    Add(&transfer);
  }
  const auto expect_next = [this](const Transfer& transfer, uint64_t offset, uint64_t num_bytes) {
    const auto chunk = StartNext();
    EXPECT_EQ(chunk.transfer, &transfer);
    EXPECT_EQ(chunk.offset, offset);
    EXPECT_EQ(chunk.num_bytes, num_bytes);
  };
  expect_next(transfers[0], 0, kNetworkChunkBytes);
  expect_next(transfers[0], kNetworkChunkBytes, kNetworkChunkBytes);
  EXPECT_EQ(StartNext().transfer, nullptr);
  Transfer urgent;
  urgent.channel = 3;
  urgent.num_bytes = 1;
  Add(&urgent);
  Finish(kNetworkChunkBytes);
  expect_next(urgent, 0, 1);
  Finish(1);
  expect_next(transfers[0], 2 * kNetworkChunkBytes, 5);
  Finish(kNetworkChunkBytes);
  Finish(5);
  expect_next(transfers[1], 0, kNetworkChunkBytes);
  queue_.Remove(&transfers[1]);
  queue_.Remove(&transfers[0]);  // has left
  EXPECT_EQ(StartNext().transfer, nullptr);
}

// What is urgent starts from whichever peer it comes, and nothing less urgent beside it.
TEST_F(TransferQueueTest, OrdersTheTransfersOfAllPeers) {
  Transfer buckets[2];
  for (Transfer& bucket : buckets) {
    bucket = {.channel = 7, .num_bytes = 8 * kNetworkChunkBytes, .in_chunks = true};
  }
  TransferFlow other, urgent_flow;
  Transfer urgent = {.channel = 3, .num_bytes = 4 * kNetworkChunkBytes, .in_chunks = true};
  Add(&buckets[0]);
  Add(&buckets[1], &other);
  EXPECT_EQ(StartNext().transfer, &buckets[0]);
  EXPECT_EQ(StartNext().transfer, &buckets[0]);
  EXPECT_EQ(StartNext().transfer, &buckets[1]) << "nothing else of its flow is in flight";
  EXPECT_EQ(StartNext().transfer, nullptr);
  Add(&urgent, &urgent_flow);
  EXPECT_EQ(StartNext().transfer, &urgent);
  EXPECT_EQ(StartNext().transfer, nullptr);
  queue_.Finish(&other, kNetworkChunkBytes);
  EXPECT_EQ(StartNext().transfer, nullptr) << "what is more urgent waits";
  Finish(kNetworkChunkBytes);
  EXPECT_EQ(StartNext().transfer, nullptr);
  Finish(kNetworkChunkBytes);
  EXPECT_EQ(StartNext().transfer, &urgent);
  EXPECT_EQ(StartNext().transfer, nullptr);
  queue_.Finish(&urgent_flow, kNetworkChunkBytes);
  EXPECT_EQ(StartNext().transfer, &urgent);
  EXPECT_EQ(StartNext().transfer, nullptr);
  queue_.Finish(&urgent_flow, kNetworkChunkBytes);
  EXPECT_EQ(StartNext().transfer, &urgent) << "its last chunk";
  EXPECT_EQ(StartNext().transfer, &buckets[0]);
  EXPECT_EQ(StartNext().transfer, &buckets[1]);
  EXPECT_EQ(StartNext().transfer, nullptr);
}

// Transfers of any lengths and channels from six peers: never more than a chunk of each flow and
// one more; and all transfers end.
TEST_F(TransferQueueTest, BoundsTheBytesOfAllPeers) {
  std::mt19937 random(1);
  std::array<TransferFlow, 6> flows;
  std::vector<Transfer> transfers(400);
  std::vector<Chunk> in_flight;
  uint64_t bytes_in_flight = 0;
  uint64_t bytes_left = 0;
  size_t num_added = 0;
  while (num_added < transfers.size() || bytes_left > 0) {
    if (num_added < transfers.size() && random() % 3 == 0) {
      Transfer& transfer = transfers[num_added++];
      transfer.channel = random() % 4;
      transfer.in_chunks = random() % 2 == 0;
      transfer.num_bytes = 1 + random() % (transfer.in_chunks ? 5 * kNetworkChunkBytes : 100000);
      bytes_left += transfer.num_bytes;
      Add(&transfer, &flows[random() % flows.size()]);
    } else if (!in_flight.empty()) {
      std::swap(in_flight[random() % in_flight.size()], in_flight.back());
      queue_.Finish(in_flight.back().transfer->flow, in_flight.back().num_bytes);
      bytes_in_flight -= in_flight.back().num_bytes;
      bytes_left -= in_flight.back().num_bytes;
      in_flight.pop_back();
    }
    for (Chunk chunk = StartNext(); chunk.transfer != nullptr; chunk = StartNext()) {
      in_flight.push_back(chunk);
      bytes_in_flight += chunk.num_bytes;
    }
    ASSERT_TRUE(!in_flight.empty() || bytes_left == 0) << "something waits for nothing";
    ASSERT_LE(bytes_in_flight, (flows.size() + 1) * kNetworkChunkBytes);
  }
}

// Each endpoint starts its own transfers, and is woken for them.
TEST_F(TransferQueueTest, WakesTheEndpointWhoseTurnItIs) {
  int num_wakes = 0;
  const TransferStarter other{[&num_wakes] { ++num_wakes; }};
  TransferFlow other_flow{.starter = &other};
  Transfer transfers[3];
  for (Transfer& transfer : transfers) transfer = {.channel = 7, .num_bytes = kMaxBytesInFlight};
  Transfer urgent = {.channel = 3, .num_bytes = kMaxBytesInFlight, .flow = &other_flow};
  for (Transfer& transfer : transfers) Add(&transfer);
  queue_.Add(&urgent);
  EXPECT_EQ(StartNext().transfer, nullptr);
  EXPECT_EQ(num_wakes, 1);
  EXPECT_EQ(queue_.StartNext(&other).transfer, &urgent);
  EXPECT_EQ(StartNext().transfer, &transfers[0]);
  EXPECT_EQ(StartNext().transfer, nullptr);
  EXPECT_EQ(num_wakes, 1);
}

TEST_F(TransferQueueTest, GivesUpWhatWaits) {
  Transfer transfers[2];
  for (Transfer& transfer : transfers) Add(&transfer);
  EXPECT_EQ(StartNext().transfer, &transfers[0]);
  EXPECT_EQ(queue_.RemoveWaiting(&flow_), &transfers[1]);
  EXPECT_EQ(queue_.RemoveWaiting(&flow_), nullptr);
  EXPECT_EQ(StartNext().transfer, nullptr);
}

}  // namespace
}  // namespace penstock::transport::ucx
