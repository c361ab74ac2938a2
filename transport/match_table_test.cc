#include "transport/match_table.h"

#include <gtest/gtest.h>

namespace penstock::transport {
namespace {

struct Receive {
  uint64_t sequence = 0;
  Receive* next = nullptr;
};

struct Message {
  uint64_t sequence = 0;
  Message* next = nullptr;
};

using Table = MatchTable<Receive, Message>;

TEST(MatchTableTest, AMessageTakesTheFirstReceiveWithItsSequenceNumber) {
  Table table(4);
  Receive receives[] = {{7}, {8}, {7}};
  for (Receive& receive : receives) table[1].AddReceive(&receive);
  EXPECT_EQ(table[0].TakeReceive(7), nullptr) << "another channel";
  EXPECT_EQ(table[1].TakeReceive(9), nullptr);
  EXPECT_EQ(table[1].TakeReceive(7), &receives[0]);
  EXPECT_EQ(table[1].TakeReceive(7), &receives[2]);
  EXPECT_EQ(table[1].TakeReceive(7), nullptr);
  EXPECT_EQ(table[1].TakeReceive(8), &receives[1]);
}

TEST(MatchTableTest, AReceiveTakesTheFirstUnexpectedMessage) {
  Table table(4);
  Message messages[] = {{7}, {8}, {7}};
  for (Message& message : messages) table[3].AddMessage(&message);
  EXPECT_EQ(table[3].first_message(), &messages[0]);
  EXPECT_EQ(table[3].TakeMessage(8), &messages[1]);
  EXPECT_EQ(table[3].TakeMessage(7), &messages[0]);
  EXPECT_EQ(table[3].TakeMessage(7), &messages[2]);
  EXPECT_EQ(table[3].TakeMessage(7), nullptr);
  EXPECT_EQ(table[3].first_message(), nullptr);
}

TEST(MatchTableTest, WhatIsNotAcceptedStays) {
  Table table(1);
  Receive receive{7};
  Message messages[] = {{7}, {7}};
  table[0].AddReceive(&receive);
  EXPECT_EQ(table[0].TakeReceive(7, [](const Receive&) { return false; }), nullptr);
  EXPECT_EQ(table[0].TakeReceive(7), &receive);
  for (Message& message : messages) table[0].AddMessage(&message);
  const auto is_second = [&](const Message& message) { return &message == &messages[1]; };
  EXPECT_EQ(table[0].TakeMessage(7, is_second), &messages[1]);
  EXPECT_EQ(table[0].TakeMessage(7, is_second), nullptr);
  EXPECT_EQ(table[0].RemoveFirstMessage(), &messages[0]);
  EXPECT_EQ(table[0].RemoveFirstMessage(), nullptr);
}

TEST(MatchTableTest, RemovesOneReceiveOrAll) {
  Table table(1);
  Receive receives[] = {{1}, {1}, {1}};
  for (Receive& receive : receives) table[0].AddReceive(&receive);
  EXPECT_TRUE(table[0].RemoveReceive(&receives[1]));
  EXPECT_FALSE(table[0].RemoveReceive(&receives[1]));
  EXPECT_EQ(table[0].TakeReceive(1), &receives[0]);
  table[0].RemoveAllReceives();
  EXPECT_EQ(table[0].TakeReceive(1), nullptr);
}

TEST(MatchTableTest, VisitsThePagesThatWereUsed) {
  Table table(1000);
  int num_visited = 0;
  const auto count = [&num_visited](Table::Queues&) { ++num_visited; };
  table.ForEach(count);
  EXPECT_EQ(num_visited, 0);
  Message message{5};
  table[999].AddMessage(&message);
  int num_messages = 0;
  table.ForEach(
      [&](const Table::Queues& queues) { num_messages += queues.first_message() != nullptr; });
  EXPECT_EQ(num_messages, 1);
  table.ForEach(count);
  EXPECT_GT(num_visited, 0);
  EXPECT_LT(num_visited, 1000);
}

}  // namespace
}  // namespace penstock::transport
