#include <stdexcept>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
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
          const absl::MutexLock lock(&mutex_);
          is_reading_ = true;
          mutex_.Await(absl::Condition(&is_open_));
          if (line == "throw") throw std::runtime_error("the terminal is gone");
          lines_.push_back(StrCat(rank, " ", host, " ", line));
        }) {}
  ~OutputPumpTest() override {
    Open();
    EXPECT_EQ(pump_.Stop(absl::Seconds(20)), absl::OkStatus());
  }

  void Open() { SetOpen(true); }
  void Close() { SetOpen(false); }
  bool AwaitReader() {
    const absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&is_reading_), absl::Seconds(20));
  }
  std::vector<std::string> lines() {
    const absl::MutexLock lock(&mutex_);
    return lines_;
  }

  absl::Mutex mutex_;
  bool is_open_ ABSL_GUARDED_BY(mutex_) = true;
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;  // a line has come
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  caf::actor_system_config config_;
  caf::actor_system system_;  // its end waits for the reader
  OutputPump pump_;

 private:
  void SetOpen(bool is_open) {
    const absl::MutexLock lock(&mutex_);
    is_open_ = is_open;
  }
};

// How often a pump has been started again.
class RestartCount {
 public:
  void Increment() {
    const absl::MutexLock lock(&mutex_);
    ++count_;
  }
  bool Await(int count) {
    const auto is_reached = [this, count]()
                                ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return count_ == count; };
    const absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&is_reached), absl::Seconds(20));
  }

 private:
  absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST_F(OutputPumpTest, LinesComeInTheirOrder) {
  pump_.Start();
  for (uint32_t i = 0; i < 3; ++i) pump_.Print({i % 2, "a", StrCat("line ", i)});
  ASSERT_EQ(pump_.Flush(absl::Seconds(20)), absl::OkStatus());
  EXPECT_THAT(lines(), ElementsAre("0 a line 0", "1 a line 1", "0 a line 2"));
  EXPECT_EQ(pump_.num_dropped(), 0u);
}

TEST_F(OutputPumpTest, ALineIsOfTheHostThatWasSaidLast) {
  pump_.Start();
  pump_.Print(1, "early");
  pump_.SetHost(1, "a");
  pump_.Print(1, "first");
  pump_.SetHost(1, "b");
  pump_.Print(1, "second");
  ASSERT_EQ(pump_.Flush(absl::Seconds(20)), absl::OkStatus());
  EXPECT_THAT(lines(), ElementsAre("1  early", "1 a first", "1 b second"));
}

TEST_F(OutputPumpTest, AReaderThatDoesNotReadBoundsWhatWaits) {
  Close();
  pump_.Start();
  for (size_t i = 0; i < OutputPump::kMaxQueued + 100; ++i) pump_.Print({0, "a", "line"});
  EXPECT_GE(pump_.num_dropped(), 99u);  // one may be with the reader
  EXPECT_EQ(pump_.Flush(absl::Milliseconds(50)).code(), absl::StatusCode::kDeadlineExceeded);
  Open();
  ASSERT_EQ(pump_.Flush(absl::Seconds(20)), absl::OkStatus());
  EXPECT_EQ(lines().size() + pump_.num_dropped(), OutputPump::kMaxQueued + 100);
}

TEST_F(OutputPumpTest, AReaderThatDoesNotReturnIsNotWaitedForWithoutABound) {
  Close();
  pump_.Start();
  pump_.Print({0, "a", "line"});
  ASSERT_TRUE(AwaitReader());
  EXPECT_EQ(pump_.Stop(absl::Milliseconds(50)).code(), absl::StatusCode::kDeadlineExceeded);
}

// Its supervisor starts another one, and the lines after that come.
TEST_F(OutputPumpTest, AReaderThatThrowsLosesItsLineAlone) {
  const SupervisorActor supervisor =
      system_.spawn<Supervisor>([](const absl::Status& status) { ADD_FAILURE() << status; });
  RestartCount num_restarts;
  Watch(supervisor, {pump_.Start(), "output pump", Child::kOutputPump, [&] {
                       const caf::actor next = pump_.Start();
                       num_restarts.Increment();
                       return next;
                     }});
  for (int i = 1; i <= 3; ++i) {
    pump_.Print({0, "a", "throw"});
    ASSERT_TRUE(num_restarts.Await(i));
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
