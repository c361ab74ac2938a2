#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <kj/common.h>
#include <kj/debug.h>

#include "actors/cluster/control_loop_internal.h"

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
