#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include <kj/debug.h>

#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/heartbeat_internal.h"

namespace penstock::actors {
namespace {

class HeartbeatNode final : public control::Node::Server {
 public:
  explicit HeartbeatNode(std::function<kj::Promise<void>()> on_ping)
      : on_ping_(std::move(on_ping)) {}
  kj::Promise<void> ping(PingContext) override { return on_ping_(); }

 private:
  const std::function<kj::Promise<void>()> on_ping_;
};

class HeartbeatTest : public ::testing::Test {
 protected:
  HeartbeatTest() {
    auto loop = control::ControlLoop::Start();
    EXPECT_TRUE(loop.ok()) << loop.status();
    loop_ = *std::move(loop);
  }

  ~HeartbeatTest() override { Stop(); }

  // Pings a node that answers by `on_ping`, until `is_reached` and for a few intervals more.
  void Start(const std::function<kj::Promise<void>()>& on_ping,
             const std::function<bool()>& is_reached) {
    Await([&] {
      heartbeat_.emplace(loop_->timer(), kj::heap<HeartbeatNode>([this, on_ping] {
                           ++num_pings_;
                           return on_ping();
                         }),
                         options_,
                         Heartbeat::Events{.on_asked = [this] { ++num_asked_; },
                                           .on_answered = [this] { ++num_answered_; },
                                           .on_error =
                                               [this](const kj::Exception& exception) {
                                                 error_ = exception.getDescription().cStr();
                                               }});
      return Until(is_reached).then([this] {
        return loop_->timer().afterDelay(100 * kj::MILLISECONDS);
      });
    });
  }

  void Stop() {
    Await([this]() -> kj::Promise<void> {
      heartbeat_.reset();
      return kj::READY_NOW;
    });
  }

  kj::Promise<void> Until(const std::function<bool()>& is_reached) {
    if (is_reached()) return kj::READY_NOW;
    return loop_->timer().afterDelay(kj::MILLISECONDS).then([this, is_reached] {
      return Until(is_reached);
    });
  }

  void Await(std::function<kj::Promise<void>()> begin) {
    EXPECT_EQ(loop_->Await(std::move(begin), absl::Seconds(20), "the test"), absl::OkStatus());
  }

  std::unique_ptr<control::ControlLoop> loop_;
  const PingOptions options_ = {.interval = absl::Milliseconds(10)};
  // Change on the loop's thread, until the heartbeat has stopped or waits for an answer for ever.
  int num_pings_ = 0;
  int num_asked_ = 0;
  int num_answered_ = 0;
  std::string error_;
  std::optional<Heartbeat> heartbeat_;
};

TEST_F(HeartbeatTest, GoesOnWhileTheNodeAnswers) {
  Start([]() -> kj::Promise<void> { return kj::READY_NOW; }, [this] { return num_pings_ >= 3; });
  Stop();
  // The last ping may be on its way to the node.
  EXPECT_GE(num_pings_, num_asked_ - 1);
  EXPECT_GE(num_answered_, num_asked_ - 1);
  EXPECT_EQ(error_, "");
}

TEST_F(HeartbeatTest, AsksNoMoreWithoutAnAnswer) {
  Start([]() -> kj::Promise<void> { return kj::NEVER_DONE; }, [this] { return num_pings_ > 0; });
  EXPECT_EQ(num_pings_, 1);
  EXPECT_EQ(num_asked_, 1);
  EXPECT_EQ(num_answered_, 0);
  EXPECT_EQ(error_, "");
}

TEST_F(HeartbeatTest, ReportsAnError) {
  Start([]() -> kj::Promise<void> { return KJ_EXCEPTION(FAILED, "broken"); },
        [this] { return !error_.empty(); });
  EXPECT_NE(error_.find("broken"), std::string::npos) << error_;
  EXPECT_EQ(num_pings_, 1);
  EXPECT_EQ(num_answered_, 0);
}

TEST_F(HeartbeatTest, ReportsNothingAfterItsEnd) {
  auto answer = kj::newPromiseAndFulfiller<void>();
  Start([&answer] { return kj::mv(answer.promise); }, [this] { return num_pings_ > 0; });
  Await([this, &answer] {
    heartbeat_.reset();
    answer.fulfiller->reject(KJ_EXCEPTION(FAILED, "broken"));
    return loop_->timer().afterDelay(50 * kj::MILLISECONDS);
  });
  EXPECT_EQ(error_, "");
  EXPECT_EQ(num_pings_, 1);
}

}  // namespace
}  // namespace penstock::actors
