#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/turn_queue_internal.h"

namespace penstock::actors::control {
namespace {

using ::testing::ElementsAre;

class TurnQueueTest : public ::testing::Test {
 protected:
  ~TurnQueueTest() noexcept override = default;

  kj::Promise<void> Note(kj::Promise<void> when, std::string text) {
    return when.then([this, text] { log_.push_back(text); }).eagerlyEvaluate(nullptr);
  }

  kj::EventLoop loop_;
  kj::WaitScope scope_{loop_};
  TurnQueue turns_;
  std::vector<std::string> log_;
};

TEST_F(TurnQueueTest, TurnsComeInOrderAndBehindAllElse) {
  std::vector<kj::Promise<void>> notes;
  notes.push_back(Note(turns_.Await(), "first turn"));
  notes.push_back(Note(turns_.Await(), "second turn"));
  // Work of several steps.
  notes.push_back(
      Note(kj::evalLater([] { return kj::evalLater([] { return kj::evalLater([] {}); }); }),
           "other work"));
  scope_.poll();
  EXPECT_THAT(log_, ElementsAre("other work", "first turn", "second turn"));
  notes.push_back(Note(turns_.Await(), "third turn"));
  scope_.poll();
  EXPECT_EQ(log_.back(), "third turn");
}

// What comes between two turns is done between them.
TEST_F(TurnQueueTest, OneTurnAtATime) {
  kj::Promise<void> urgent = nullptr;
  auto first = turns_.Await()
                   .then([this, &urgent] {
                     log_.emplace_back("first turn");
                     urgent = Note(kj::evalLater([] { return kj::evalLater([] {}); }), "urgent");
                   })
                   .eagerlyEvaluate(nullptr);
  auto second = Note(turns_.Await(), "second turn");
  scope_.poll();
  EXPECT_THAT(log_, ElementsAre("first turn", "urgent", "second turn"));
}

TEST_F(TurnQueueTest, ATurnThatNobodyWaitsForIsPassedOver) {
  { const kj::Promise<void> gone = turns_.Await(); }
  auto next = Note(turns_.Await(), "next turn");
  scope_.poll();
  EXPECT_THAT(log_, ElementsAre("next turn"));
}

}  // namespace
}  // namespace penstock::actors::control
