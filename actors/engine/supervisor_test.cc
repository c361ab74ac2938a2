// What becomes of the children of a supervisor, strategy by strategy.

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/engine/error_origin.h"
#include "actors/engine/supervisor_internal.h"

namespace penstock::actors {
namespace {

using ::testing::HasSubstr;

using DieAtom = caf::atom_constant<caf::atom("die")>;
using AskAtom = caf::atom_constant<caf::atom("ask")>;

// Says how many there were before it, and dies when told.
caf::behavior Mortal(caf::event_based_actor* self, int number) {
  return {
      [self](DieAtom) { self->quit(caf::sec::runtime_error); },
      [number](AskAtom) { return number; },
  };
}

class SupervisorTest : public ::testing::Test {
 protected:
  SupervisorTest() : system_(config_) {
    supervisor_ = system_.spawn<Supervisor>([this](const absl::Status& status) {
      const absl::MutexLock lock(&mutex_);
      failures_.push_back(status);
    });
  }
  ~SupervisorTest() override {
    caf::anon_send_exit(supervisor_, caf::exit_reason::user_shutdown);
    const absl::MutexLock lock(&mutex_);
    for (const caf::actor& child : children_) {
      caf::anon_send_exit(child, caf::exit_reason::user_shutdown);
    }
  }

  caf::actor Start() {
    const absl::MutexLock lock(&mutex_);
    children_.push_back(system_.spawn(Mortal, static_cast<int>(children_.size())));
    return children_.back();
  }

  void Watch(Child child, const std::string& name) {
    actors::Watch(supervisor_, {Start(), name, child, [this] { return Start(); }});
  }

  // The child with this number, once it has been started.
  caf::actor AwaitChild(size_t number) {
    const auto is_there = [this, number]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return children_.size() > number;
    };
    const absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&is_there), absl::Seconds(20)));
    return children_.size() > number ? children_[number] : caf::actor();
  }

  absl::Status AwaitFailure() {
    const auto has_failed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !failures_.empty();
    };
    const absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&has_failed), absl::Seconds(20)));
    return failures_.empty() ? absl::OkStatus() : failures_.front();
  }

  // What the supervisor has been told is done.
  size_t NumChildren() {
    const absl::MutexLock lock(&mutex_);
    return children_.size();
  }

  caf::actor_system_config config_;
  caf::actor_system system_;
  SupervisorActor supervisor_;
  absl::Mutex mutex_;
  std::vector<caf::actor> children_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Status> failures_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(SupervisorTest, AChildWithoutStateIsRestarted) {
  Watch(Child::kOutputPump, "output pump");
  caf::anon_send(AwaitChild(0), DieAtom::value);
  const caf::actor second = AwaitChild(1);
  int answer = 0;
  caf::scoped_actor self(system_);
  self->request(second, std::chrono::seconds(20), AskAtom::value)
      .receive([&](int number) { answer = number; },
               [](const caf::error& error) { ADD_FAILURE() << caf::to_string(error); });
  EXPECT_EQ(answer, 1);
  // And so is the one that took its place.
  caf::anon_send(second, DieAtom::value);
  AwaitChild(2);
  const absl::MutexLock lock(&mutex_);
  EXPECT_TRUE(failures_.empty());
}

TEST_F(SupervisorTest, OneThatEndsAgainAndAgainEscalates) {
  Watch(Child::kOutputPump, "output pump");
  const auto most = static_cast<size_t>(StrategyOf(Child::kOutputPump).max_restarts);
  for (size_t i = 0; i <= most; ++i) caf::anon_send(AwaitChild(i), DieAtom::value);
  const absl::Status status = AwaitFailure();
  EXPECT_THAT(status.ToString(), HasSubstr("the output pump has ended: "));
  EXPECT_THAT(status.ToString(), HasSubstr("after 5 restarts in 10 s"));
  EXPECT_EQ(NumChildren(), most + 1);
}

// The supervisor goes on: it still notices the ends of its other children.
TEST_F(SupervisorTest, OneThatCannotBeStartedAgainEscalates) {
  const auto fail_to_start = []() -> caf::actor { throw std::runtime_error("no thread is left"); };
  actors::Watch(supervisor_, {Start(), "output pump", Child::kOutputPump, fail_to_start});
  caf::anon_send(AwaitChild(0), DieAtom::value);
  const absl::Status status = AwaitFailure();
  EXPECT_THAT(status.ToString(), HasSubstr("the output pump has ended: "));
  EXPECT_THAT(status.ToString(), HasSubstr("could not be started again: no thread is left"));
  EXPECT_EQ(OriginOf(status).actor, "output pump");
  {
    const absl::MutexLock lock(&mutex_);
    failures_.clear();
  }
  Watch(Child::kDeviceExecutor, "executor of device 2");
  caf::anon_send(AwaitChild(1), DieAtom::value);
  EXPECT_THAT(AwaitFailure().ToString(), HasSubstr("the executor of device 2 has ended"));
}

// Each child of the table that has state, by its name.
TEST_F(SupervisorTest, AChildWithStateEscalates) {
  size_t number = 0;
  for (const ChildStrategy& strategy : kChildStrategies) {
    if (strategy.on_end != OnEnd::kEscalate) continue;
    {
      const absl::MutexLock lock(&mutex_);
      failures_.clear();
    }
    Watch(strategy.child, "child that knows");
    caf::anon_send(AwaitChild(number), DieAtom::value);
    const absl::Status status = AwaitFailure();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(status.ToString(), HasSubstr("the child that knows has ended: "));
    EXPECT_EQ(OriginOf(status).actor, "child that knows");
    EXPECT_EQ(NumChildren(), ++number);  // there is no other one
  }
  EXPECT_EQ(number, 9u);
}

TEST_F(SupervisorTest, OneThatWasToldToEndIsLetGo) {
  Watch(Child::kDeviceExecutor, "first");
  Watch(Child::kDeviceExecutor, "second");
  caf::anon_send_exit(AwaitChild(0), caf::exit_reason::user_shutdown);
  caf::anon_send(AwaitChild(1), DieAtom::value);
  EXPECT_THAT(AwaitFailure().ToString(), HasSubstr("the second has ended"));
}

TEST(SupervisionTest, TheTableIsInTheOrderOfTheChildren) {
  for (size_t i = 0; i < kChildStrategies.size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(kChildStrategies[i].child), i);
    EXPECT_EQ(kChildStrategies[i].on_end == OnEnd::kRestart, kChildStrategies[i].max_restarts > 0);
  }
}

}  // namespace
}  // namespace penstock::actors
