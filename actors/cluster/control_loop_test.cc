#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <kj/common.h>
#include <kj/debug.h>

#include "actors/cluster/answers.h"
#include "actors/cluster/control_loop_internal.h"
#include "base/start_thread.h"
#include "tests/support/sanitizers.h"

namespace penstock::actors::control {
namespace {

using ::testing::HasSubstr;

class ControlLoopTest : public ::testing::Test {
 protected:
  ControlLoopTest() {
    auto loop = ControlLoop::Start();
    EXPECT_TRUE(loop.ok()) << loop.status();
    loop_ = *std::move(loop);
  }

  std::unique_ptr<ControlLoop> loop_;
};

TEST_F(ControlLoopTest, AwaitReturnsWhatTheWorkEndsWith) {
  EXPECT_EQ(loop_->Await([]() -> kj::Promise<void> { return kj::READY_NOW; }, absl::Seconds(10),
                         "nothing"),
            absl::OkStatus());
  const absl::Status failed = loop_->Await(
      []() -> StatusPromise { return absl::NotFoundError("penstock status 5: no such thing"); },
      absl::Seconds(10), "a search");
  EXPECT_EQ(failed, absl::NotFoundError("penstock status 5: no such thing"));
  // An exception is an error of the connection or of the program, whatever its text says.
  const absl::Status thrown = loop_->Await(
      []() -> StatusPromise { return KJ_EXCEPTION(FAILED, "penstock status 5: no such thing"); },
      absl::Seconds(10), "a search");
  EXPECT_EQ(thrown.code(), absl::StatusCode::kInternal);
}

// Leaves address space for little more, and not for the stack of a thread. Threads that wait for
// its end take the stacks that are left of others.
class NoThreads {
 public:
  NoThreads() {
    getrlimit(RLIMIT_AS, &before_);
    rlim_t num_pages = 0;
    std::ifstream("/proc/self/statm") >> num_pages;
    const rlim_t in_use = num_pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
    const rlimit tight = {in_use + (rlim_t{3} << 20), before_.rlim_max};
    setrlimit(RLIMIT_AS, &tight);
    // A mutex of Abseil would allocate memory in each thread.
    const std::shared_future<void> has_ended = end_.get_future().share();
    while (true) {
      auto thread = StartThread("nothing", [has_ended] { has_ended.wait(); });
      if (!thread.ok()) break;
      threads_.push_back(*std::move(thread));
    }
  }
  ~NoThreads() {
    setrlimit(RLIMIT_AS, &before_);
    end_.set_value();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  rlimit before_ = {};
  std::promise<void> end_;
  std::vector<std::thread> threads_;
};

TEST(ControlLoopStartTest, WithoutAThreadItIsAnError) {
  if (penstock::testing::kHasSanitizer) GTEST_SKIP() << "sanitizers need address space for threads";
  absl::StatusOr<std::unique_ptr<ControlLoop>> loop = absl::UnknownError("not started");
  int answer = 0;
  {
    const NoThreads limit;
    loop = ControlLoop::Start();
    Answers<int> answers([]() -> absl::StatusOr<int> { return 1; });
    answers.Ask([&](const absl::StatusOr<int>& reply) {
      answer = absl::IsResourceExhausted(reply.status()) ? 1 : -1;
    });
  }
  EXPECT_EQ(loop.status().code(), absl::StatusCode::kResourceExhausted) << loop.status();
  EXPECT_EQ(answer, 1);
}

// Whoever waits may take away what the work refers to once Await has returned.
TEST_F(ControlLoopTest, WorkThatIsTooLateHasGoneWhenAwaitReturns) {
  std::promise<void> returned;
  std::future<void> has_returned = returned.get_future();
  bool was_there = false;
  const absl::Status status = loop_->Await(
      [&]() -> kj::Promise<void> {
        // As the work goes, it gives Await every chance to return before it.
        return kj::Promise<void>(kj::NEVER_DONE).attach(kj::defer([&] {
          was_there =
              has_returned.wait_for(std::chrono::milliseconds(200)) == std::future_status::ready;
        }));
      },
      absl::Milliseconds(20), "the work");
  returned.set_value();
  loop_ = nullptr;
  EXPECT_FALSE(was_there);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the work did not come to an end in 20ms"));
}

TEST_F(ControlLoopTest, AfterItsEndNothingRuns) {
  loop_->Stop();
  loop_->Stop();
  bool has_run = false;
  loop_->Post([&has_run] { has_run = true; });
  const absl::Status late = loop_->Await(
      [&has_run]() -> kj::Promise<void> {
        has_run = true;
        return kj::READY_NOW;
      },
      absl::Minutes(10), "the work");
  EXPECT_TRUE(absl::IsCancelled(late)) << late;
  loop_ = nullptr;
  EXPECT_FALSE(has_run);
}

TEST(SystemReasonTest, IsAPhraseWithoutCallAndValues) {
  const auto reason_of = [](const char* description) {
    return SystemReason(kj::Exception(kj::Exception::Type::FAILED, __FILE__, __LINE__,
                                      kj::heapString(description)));
  };
  EXPECT_EQ(reason_of("connect(fd, addr, size): Connection refused; toString() = 127.0.0.1:99"),
            "Connection refused");
  EXPECT_EQ(reason_of("DNS lookup failed.; params.host = nohost"), "DNS lookup failed");
  EXPECT_EQ(reason_of(""), "");
}

}  // namespace
}  // namespace penstock::actors::control
