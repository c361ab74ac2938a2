#include "transport/ucx/transfer_queue.h"

#include <gtest/gtest.h>

namespace penstock::transport::ucx {
namespace {

struct Transfer {
  uint32_t channel = 0;
  uint64_t num_bytes = 0;
  Transfer* next = nullptr;
  uint64_t num_started = 0;
  bool in_chunks = false;
};

TEST(TransferQueueTest, StartsTheLowestChannelFirst) {
  TransferQueue<Transfer> queue;
  Transfer transfers[4];
  for (int i = 0; i < 4; ++i) transfers[i].channel = i % 2 == 0 ? 5 : 3;
  for (Transfer& transfer : transfers) queue.Add(&transfer);
  EXPECT_EQ(queue.StartNext().transfer, &transfers[1]);
  EXPECT_EQ(queue.StartNext().transfer, &transfers[3]);
  EXPECT_EQ(queue.StartNext().transfer, &transfers[0]) << "within a channel, the first added";
  EXPECT_EQ(queue.StartNext().transfer, &transfers[2]);
  EXPECT_EQ(queue.StartNext().transfer, nullptr);
}

TEST(TransferQueueTest, BoundsTheBytesInFlight) {
  TransferQueue<Transfer> queue;
  Transfer transfers[5];
  for (Transfer& transfer : transfers) {
    transfer.num_bytes = kMaxBytesInFlight / 4;
    queue.Add(&transfer);
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(queue.StartNext().transfer, &transfers[i]);
  EXPECT_EQ(queue.StartNext().transfer, nullptr);
  queue.Finish(transfers[0].num_bytes);
  EXPECT_EQ(queue.StartNext().transfer, &transfers[4]);
}

TEST(TransferQueueTest, LetsTwoTransfersOfAnyLengthBeInFlight) {
  TransferQueue<Transfer> queue;
  Transfer transfers[3];
  for (Transfer& transfer : transfers) {
    transfer.channel = 7;
    transfer.num_bytes = 8 * kMaxBytesInFlight;
    queue.Add(&transfer);
  }
  EXPECT_NE(queue.StartNext().transfer, nullptr);
  EXPECT_NE(queue.StartNext().transfer, nullptr);
  EXPECT_EQ(queue.StartNext().transfer, nullptr);
  Transfer urgent;
  urgent.channel = 3;
  queue.Add(&urgent);
  EXPECT_EQ(queue.StartNext().transfer, nullptr);
  queue.Finish(transfers[0].num_bytes);
  EXPECT_EQ(queue.StartNext().transfer, &urgent) << "overtakes what waits";
}

TEST(TransferQueueTest, StartsLongTransfersInChunks) {
  TransferQueue<Transfer> queue;
  Transfer transfers[2];
  for (Transfer& transfer : transfers) {
    transfer.channel = 7;
    transfer.num_bytes = 2 * kNetworkChunkBytes + 5;
    transfer.in_chunks = true;
    queue.Add(&transfer);
  }
  const auto expect_next = [&queue](const Transfer& transfer, uint64_t offset, uint64_t num_bytes) {
    const auto chunk = queue.StartNext();
    EXPECT_EQ(chunk.transfer, &transfer);
    EXPECT_EQ(chunk.offset, offset);
    EXPECT_EQ(chunk.num_bytes, num_bytes);
  };
  expect_next(transfers[0], 0, kNetworkChunkBytes);
  expect_next(transfers[0], kNetworkChunkBytes, kNetworkChunkBytes);
  EXPECT_EQ(queue.StartNext().transfer, nullptr);
  Transfer urgent;
  urgent.channel = 3;
  urgent.num_bytes = 1;
  queue.Add(&urgent);
  queue.Finish(kNetworkChunkBytes);
  expect_next(urgent, 0, 1);
  queue.Finish(1);
  expect_next(transfers[0], 2 * kNetworkChunkBytes, 5);
  queue.Finish(kNetworkChunkBytes);
  queue.Finish(5);
  expect_next(transfers[1], 0, kNetworkChunkBytes);
  queue.Remove(&transfers[1]);
  queue.Remove(&transfers[0]);  // has left
  EXPECT_EQ(queue.StartNext().transfer, nullptr);
}

TEST(TransferQueueTest, SharesTheBoundOfALink) {
  TransferQueue<Transfer> queue;
  Transfer transfers[5];
  for (Transfer& transfer : transfers) {
    transfer.num_bytes = kMaxBytesInFlight / 8;
    queue.Add(&transfer);
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(queue.StartNext(2).transfer, &transfers[i]);
  EXPECT_EQ(queue.StartNext(2).transfer, nullptr);
  EXPECT_EQ(queue.StartNext(1).transfer, &transfers[4]);
  for (int i = 0; i < 5; ++i) queue.Finish(transfers[i].num_bytes);
  Transfer next[3];
  for (Transfer& transfer : next) {
    transfer.num_bytes = kMaxBytesInFlight;
    queue.Add(&transfer);
  }
  EXPECT_EQ(queue.StartNext(64).transfer, &next[0]);
  EXPECT_EQ(queue.StartNext(64).transfer, &next[1]) << "two may always be in flight";
  EXPECT_EQ(queue.StartNext(64).transfer, nullptr);
}

TEST(TransferQueueTest, GivesUpWhatWaits) {
  TransferQueue<Transfer> queue;
  Transfer transfers[2];
  for (Transfer& transfer : transfers) queue.Add(&transfer);
  EXPECT_EQ(queue.StartNext().transfer, &transfers[0]);
  EXPECT_EQ(queue.RemoveWaiting(), &transfers[1]);
  EXPECT_EQ(queue.RemoveWaiting(), nullptr);
  EXPECT_EQ(queue.StartNext().transfer, nullptr);
}

}  // namespace
}  // namespace penstock::transport::ucx
