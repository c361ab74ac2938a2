#include "transport/ucx/transfer_queue.h"

#include <gtest/gtest.h>

namespace penstock::transport::ucx {
namespace {

struct Transfer {
  uint32_t channel = 0;
  uint64_t num_bytes = 0;
  Transfer* next = nullptr;
};

TEST(TransferQueueTest, StartsTheLowestChannelFirst) {
  TransferQueue<Transfer> queue;
  Transfer transfers[] = {{5, 10}, {3, 10}, {5, 10}, {3, 10}};
  for (Transfer& transfer : transfers) queue.Add(&transfer);
  EXPECT_EQ(queue.StartNext(), &transfers[1]);
  EXPECT_EQ(queue.StartNext(), &transfers[3]);
  EXPECT_EQ(queue.StartNext(), &transfers[0]) << "within a channel, the first added";
  EXPECT_EQ(queue.StartNext(), &transfers[2]);
  EXPECT_EQ(queue.StartNext(), nullptr);
}

TEST(TransferQueueTest, BoundsTheBytesInFlight) {
  TransferQueue<Transfer> queue;
  Transfer transfers[5];
  for (Transfer& transfer : transfers) {
    transfer.num_bytes = kMaxBytesInFlight / 4;
    queue.Add(&transfer);
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(queue.StartNext(), &transfers[i]);
  EXPECT_EQ(queue.StartNext(), nullptr);
  queue.Finish(transfers[0].num_bytes);
  EXPECT_EQ(queue.StartNext(), &transfers[4]);
}

TEST(TransferQueueTest, LetsTwoTransfersOfAnyLengthBeInFlight) {
  TransferQueue<Transfer> queue;
  Transfer transfers[3];
  for (Transfer& transfer : transfers) {
    transfer.channel = 7;
    transfer.num_bytes = 8 * kMaxBytesInFlight;
    queue.Add(&transfer);
  }
  EXPECT_NE(queue.StartNext(), nullptr);
  EXPECT_NE(queue.StartNext(), nullptr);
  EXPECT_EQ(queue.StartNext(), nullptr);
  Transfer urgent{3, 1};
  queue.Add(&urgent);
  EXPECT_EQ(queue.StartNext(), nullptr);
  queue.Finish(transfers[0].num_bytes);
  EXPECT_EQ(queue.StartNext(), &urgent) << "overtakes what waits";
}

TEST(TransferQueueTest, SharesTheBoundOfALink) {
  TransferQueue<Transfer> queue;
  Transfer transfers[5];
  for (Transfer& transfer : transfers) {
    transfer.num_bytes = kMaxBytesInFlight / 8;
    queue.Add(&transfer);
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(queue.StartNext(2), &transfers[i]);
  EXPECT_EQ(queue.StartNext(2), nullptr);
  EXPECT_EQ(queue.StartNext(1), &transfers[4]);
  for (int i = 0; i < 5; ++i) queue.Finish(transfers[i].num_bytes);
  Transfer next[3];
  for (Transfer& transfer : next) {
    transfer.num_bytes = kMaxBytesInFlight;
    queue.Add(&transfer);
  }
  EXPECT_EQ(queue.StartNext(64), &next[0]);
  EXPECT_EQ(queue.StartNext(64), &next[1]) << "two may always be in flight";
  EXPECT_EQ(queue.StartNext(64), nullptr);
}

TEST(TransferQueueTest, GivesUpWhatWaits) {
  TransferQueue<Transfer> queue;
  Transfer transfers[] = {{1, 10}, {2, 10}};
  for (Transfer& transfer : transfers) queue.Add(&transfer);
  EXPECT_EQ(queue.StartNext(), &transfers[0]);
  EXPECT_EQ(queue.RemoveWaiting(), &transfers[1]);
  EXPECT_EQ(queue.RemoveWaiting(), nullptr);
  EXPECT_EQ(queue.StartNext(), nullptr);
}

}  // namespace
}  // namespace penstock::transport::ucx
