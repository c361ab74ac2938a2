#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/engine/reply_collector_internal.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;

TEST(ReplyCollectorTest, WaitsForTheRepliesOfAllThreads) {
  ReplyCollector<std::string> replies(2);
  std::thread first([&replies] { replies.Set(0, "a"); });
  std::thread second([&replies] { replies.Set(1, "b"); });
  EXPECT_THAT(replies.Wait(absl::InfiniteDuration()), ElementsAre("a", "b"));
  first.join();
  second.join();
}

TEST(ReplyCollectorTest, RepliesThatAreLateAreMissing) {
  ReplyCollector<std::string> replies(2);
  replies.Set(1, "b");
  EXPECT_THAT(replies.Wait(absl::ZeroDuration()), ElementsAre(std::nullopt, "b"));
}

TEST(ReplyCollectorTest, TheFirstReplyOfAnActorCounts) {
  ReplyCollector<std::string> replies(2);
  replies.Set(0, "a");
  replies.Set(0, "again");
  EXPECT_THAT(replies.Wait(absl::ZeroDuration()), ElementsAre("a", std::nullopt));
}

TEST(ReplyCollectorTest, NoActorsNeedNoWaiting) {
  ReplyCollector<std::string> replies(0);
  EXPECT_TRUE(replies.Wait(absl::InfiniteDuration()).empty());
}

}  // namespace
}  // namespace penstock::actors
