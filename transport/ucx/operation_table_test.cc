#include "transport/ucx/operation_table.h"

#include <vector>

#include <gtest/gtest.h>

namespace penstock::transport::ucx {
namespace {

struct TestOperation : Operation<TestOperation> {};
using Table = OperationTable<TestOperation>;

TEST(OperationTableTest, FindsPendingOperationsByTheirId) {
  Table table;
  Request requests[2];
  TestOperation* first = table.Acquire(3, &requests[0]);
  TestOperation* second = table.Acquire(4, &requests[1]);
  EXPECT_EQ(requests[0].internal, first);
  EXPECT_EQ(first->peer, 3u);
  EXPECT_EQ(table.Find(first->id), first);
  EXPECT_EQ(table.Find(second->id), second);
  table.End(first, absl::OkStatus());
  EXPECT_EQ(table.Find(first->id), nullptr) << "it has ended";
  EXPECT_EQ(table.Find(second->id), second);
}

TEST(OperationTableTest, RefusesIdsThatItHasNotGivenOut) {
  Table table;
  EXPECT_EQ(table.Find({0, 0}), nullptr);
  Request request;
  const OperationId id = table.Acquire(0, &request)->id;
  EXPECT_EQ(table.Find({id.index, id.use + 1}), nullptr);
  EXPECT_EQ(table.Find({id.index + 1, id.use}), nullptr) << "a free operation";
  EXPECT_EQ(table.Find({~uint32_t{0}, id.use}), nullptr);
}

TEST(OperationTableTest, ARecycledOperationHasAnotherId) {
  Table table;
  Request request;
  TestOperation* operation = table.Acquire(0, &request);
  const OperationId before = operation->id;
  operation->seconds = 5;
  operation->is_transferring = true;
  table.End(operation, absl::CancelledError("cancelled"));
  (void)table.TakeEnded();
  table.Recycle(operation);
  EXPECT_EQ(table.Find(before), nullptr);
  ASSERT_EQ(table.Acquire(0, &request), operation);
  EXPECT_EQ(table.Find(before), nullptr);
  EXPECT_EQ(table.Find(operation->id), operation);
  EXPECT_EQ(operation->seconds, 0u);
  EXPECT_FALSE(operation->is_transferring);
  EXPECT_EQ(operation->status, absl::OkStatus());
}

TEST(OperationTableTest, GivesEndedOperationsInOrder) {
  Table table;
  Request requests[3];
  TestOperation* operations[3];
  for (int i = 0; i < 3; ++i) operations[i] = table.Acquire(0, &requests[i]);
  EXPECT_FALSE(table.has_ended());
  table.End(operations[2], absl::CancelledError("cancelled"));
  table.End(operations[0], absl::OkStatus());
  ASSERT_TRUE(table.has_ended());
  EXPECT_EQ(table.TakeEnded(), std::make_pair(operations[2], &requests[2]));
  EXPECT_EQ(operations[2]->status, absl::CancelledError("cancelled"));
  EXPECT_EQ(operations[2]->request, nullptr);
  EXPECT_EQ(table.TakeEnded(), std::make_pair(operations[0], &requests[0]));
  EXPECT_FALSE(table.has_ended());
}

TEST(OperationTableTest, VisitsWhatIsPendingOrTransferring) {
  Table table;
  Request requests[3];
  TestOperation* operations[3];
  for (int i = 0; i < 3; ++i) operations[i] = table.Acquire(0, &requests[i]);
  table.End(operations[0], absl::OkStatus());
  table.Recycle(operations[1]);
  std::vector<TestOperation*> visited;
  table.ForEachPending([&](TestOperation& operation) { visited.push_back(&operation); });
  EXPECT_EQ(visited, std::vector<TestOperation*>{operations[2]});
  visited.clear();
  operations[2]->is_transferring = true;
  table.ForEachTransferring([&](TestOperation& operation) { visited.push_back(&operation); });
  EXPECT_EQ(visited, std::vector<TestOperation*>{operations[2]});
}

}  // namespace
}  // namespace penstock::transport::ucx
