#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/output_pump_internal.h"
#include "actors/engine/supervisor_internal.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;

class OutputPumpTest : public ::testing::Test {
 protected:
  OutputPumpTest()
      : system_(config_), pump_(system_, [this](uint32_t rank, auto host, auto line) {
          std::unique_lock lock(mutex_);
          is_reading_ = true;
          changed_.notify_all();
          changed_.wait(lock, [this] { return is_open_; });
          if (line == "throw") throw std::runtime_error("the terminal is gone");
          lines_.push_back(StrCat(rank, " ", host, " ", line));
        }) {}
  ~OutputPumpTest() override {
    Open();
    EXPECT_EQ(pump_.Stop(absl::Seconds(20)), absl::OkStatus());
  }

  void Open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = true;             // guarded by mutex_
  bool is_reading_ = false;         // guarded by mutex_; a line has come
  std::vector<std::string> lines_;  // guarded by mutex_
  caf::actor_system_config config_;
  caf::actor_system system_;  // its end waits for the reader
  OutputPump pump_;
};

TEST_F(OutputPumpTest, LinesComeInTheirOrder) {
  pump_.Start();
  for (uint32_t i = 0; i < 3; ++i) pump_.Print({i % 2, "a", StrCat("line ", i)});
  ASSERT_EQ(pump_.Flush(absl::Seconds(20)), absl::OkStatus());
  EXPECT_THAT(lines(), ElementsAre("0 a line 0", "1 a line 1", "0 a line 2"));
  EXPECT_EQ(pump_.num_dropped(), 0u);
}

TEST_F(OutputPumpTest, AReaderThatDoesNotReadBoundsWhatWaits) {
  is_open_ = false;
  pump_.Start();
  for (size_t i = 0; i < OutputPump::kMaxQueued + 100; ++i) pump_.Print({0, "a", "line"});
  EXPECT_GE(pump_.num_dropped(), 99u);  // one may be with the reader
  EXPECT_EQ(pump_.Flush(absl::Milliseconds(50)).code(), absl::StatusCode::kDeadlineExceeded);
  Open();
  ASSERT_EQ(pump_.Flush(absl::Seconds(20)), absl::OkStatus());
  EXPECT_EQ(lines().size() + pump_.num_dropped(), OutputPump::kMaxQueued + 100);
}

TEST_F(OutputPumpTest, AReaderThatDoesNotReturnIsNotWaitedForWithoutABound) {
  is_open_ = false;
  pump_.Start();
  pump_.Print({0, "a", "line"});
  {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::seconds(20), [this] { return is_reading_; }));
  }
  EXPECT_EQ(pump_.Stop(absl::Milliseconds(50)).code(), absl::StatusCode::kDeadlineExceeded);
}

// Its supervisor starts another one, and the lines after that come.
TEST_F(OutputPumpTest, AReaderThatThrowsLosesItsLineAlone) {
  const caf::actor supervisor =
      system_.spawn<Supervisor>([](const absl::Status& status) { ADD_FAILURE() << status; });
  std::mutex mutex;
  std::condition_variable changed;
  int num_restarts = 0;
  Watch(supervisor, {pump_.Start(), "output pump", Child::kOutputPump, [&] {
                       const caf::actor next = pump_.Start();
                       const std::lock_guard lock(mutex);
                       ++num_restarts;
                       changed.notify_all();
                       return next;
                     }});
  for (int i = 1; i <= 3; ++i) {
    pump_.Print({0, "a", "throw"});
    std::unique_lock lock(mutex);
    ASSERT_TRUE(
        changed.wait_for(lock, std::chrono::seconds(20), [&] { return num_restarts == i; }));
    pump_.Print({0, "a", StrCat("after ", i)});
  }
  ASSERT_EQ(pump_.Flush(absl::Seconds(20)), absl::OkStatus());
  EXPECT_THAT(lines(), ElementsAre("0 a after 1", "0 a after 2", "0 a after 3"));
  caf::scoped_actor self(system_);
  self->send_exit(supervisor, caf::exit_reason::user_shutdown);
  self->wait_for(supervisor);
}

TEST_F(OutputPumpTest, WithoutAnActorLinesAreCounted) {
  pump_.Print({0, "a", "early"});
  pump_.Start();
  EXPECT_EQ(pump_.Stop(absl::Seconds(20)), absl::OkStatus());
  pump_.Print({0, "a", "late"});
  EXPECT_EQ(pump_.Flush(absl::Seconds(20)), absl::OkStatus());
  EXPECT_EQ(pump_.num_dropped(), 2u);
}

}  // namespace
}  // namespace penstock::actors
