#include <pthread.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <kj/debug.h>

#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/process_launcher_internal.h"
#include "actors/engine/caf_thread_internal.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

// Between looks at whether the output of a process that has ended is complete: longer each time, as
// a child that it has left behind may keep the output open for as long as the job runs.
constexpr kj::Duration kFinishedPollInterval = 10 * kj::MILLISECONDS;
constexpr kj::Duration kLongestPollInterval = 320 * kj::MILLISECONDS;
// For the system to start a program, and for the processes to be gone that were killed.
constexpr absl::Duration kLoopTimeout = absl::Seconds(30);

// The part of the actor that lives on its loop.
class LaunchLoop final : private kj::TaskSet::ErrorHandler {
 public:
  LaunchLoop(kj::AsyncIoContext& io, const LauncherFactory& make_launcher,
             const ProcessLauncher::Events& events)
      : timer_(io.provider->getTimer()),
        events_(events),
        launcher_(make_launcher(io)),
        tasks_(*this) {
    launcher_->SetEvents(
        {events_.on_line, [this](uint32_t rank, int wait_status, std::string_view note) {
           events_.on_exit(rank, wait_status, note);
           tasks_.add(TellFinished(rank, kFinishedPollInterval));
         }});
  }

  absl::Status Launch(const LaunchCommand& command) {
    ASSIGN_OR_RETURN(const LaunchedProcess process, launcher_->Launch(command));
    events_.on_launched(command, process);
    return absl::OkStatus();
  }
  void Kill(uint32_t rank) { launcher_->Kill(rank); }
  void Terminate(uint32_t rank) { launcher_->Terminate(rank); }

 private:
  kj::Promise<void> TellFinished(uint32_t rank, kj::Duration interval) {
    if (launcher_->IsFinished(rank)) {
      events_.on_finished(rank);
      return kj::READY_NOW;
    }
    return timer_.afterDelay(interval).then([this, rank, interval] {
      return TellFinished(rank, std::min(2 * interval, kLongestPollInterval));
    });
  }
  void taskFailed(kj::Exception&& exception) override { KJ_LOG(ERROR, "launcher", exception); }

  kj::Timer& timer_;
  const ProcessLauncher::Events& events_;
  const std::unique_ptr<Launcher> launcher_;
  kj::TaskSet tasks_;
};

class LaunchingActor : public ProcessLauncherActor::base {
 public:
  LaunchingActor(caf::actor_config& config, LauncherFactory make_launcher,
                 ProcessLauncher::Events events)
      : ProcessLauncherActor::base(config),
        make_launcher_(std::move(make_launcher)),
        events_(std::move(events)) {}

  const char* name() const override { return "launcher"; }

  behavior_type make_behavior() override {
    return {
        [this](const LaunchCommand& command) { return LaunchReply{Launch(command)}; },
        [this](KillAtom, uint32_t rank) { Post(&LaunchLoop::Kill, rank); },
        [this](TerminateAtom, uint32_t rank) { Post(&LaunchLoop::Terminate, rank); },
    };
  }

  void on_exit() override {
    if (loop_ != nullptr) {
      loop_->Post([shared = shared_] { shared->on_loop = nullptr; });  // ends the processes
      loop_ = nullptr;
    }
    events_.on_ended();
  }

 private:
  // Used by the loop's thread only.
  struct Shared {
    std::unique_ptr<LaunchLoop> on_loop;
  };

  void Post(void (LaunchLoop::*call)(uint32_t), uint32_t rank) {
    if (loop_ == nullptr) return;
    loop_->Post([shared = shared_, call, rank] {
      if (shared->on_loop != nullptr) (*shared->on_loop.*call)(rank);
    });
  }

  absl::Status Launch(const LaunchCommand& command) {
    if (loop_ == nullptr) {
      ASSIGN_OR_RETURN(loop_, control::ControlLoop::Start());
    }
    // The command and the rest outlive a wait that is given up.
    return loop_->Await(
        [this, shared = shared_, command]() -> control::StatusPromise {
          if (shared->on_loop == nullptr) {
            pthread_setname_np(pthread_self(), "launcher");
            shared->on_loop = std::make_unique<LaunchLoop>(loop_->io(), make_launcher_, events_);
          }
          return shared->on_loop->Launch(command);
        },
        kLoopTimeout, StrCat("starting node ", command.rank));
  }

  const LauncherFactory make_launcher_;
  const ProcessLauncher::Events events_;
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::unique_ptr<control::ControlLoop> loop_;  // null: nothing was launched. Last: uses the rest
};

}  // namespace

ProcessLauncher::ProcessLauncher(caf::actor_system& system, LauncherFactory make_launcher,
                                 Events events)
    : system_(system),
      actor_(system.spawn<LaunchingActor, caf::detached>(std::move(make_launcher),
                                                         std::move(events))) {}

absl::Status ProcessLauncher::Launch(const LaunchCommand& command, absl::Duration timeout) const {
  const CafThread thread;
  absl::Status status;
  caf::scoped_actor self(system_);
  self->request(actor_, absl::ToChronoMilliseconds(timeout), command)
      .receive([&status](const LaunchReply& reply) { status = reply.status; },
               [&status, &command](const caf::error& error) {
                 status = absl::DeadlineExceededError(
                     StrCat("the launcher of the job does not answer, starting node ", command.rank,
                            ": ", caf::to_string(error)));
               });
  return status;
}

void ProcessLauncher::Stop() {
  const CafThread thread;
  caf::scoped_actor self(system_);
  self->send_exit(actor_, caf::exit_reason::user_shutdown);
  self->wait_for(actor_);
}

}  // namespace penstock::actors
