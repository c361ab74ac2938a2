#include "actors/engine/host.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "caf/all.hpp"

#include "actors/engine/communication_actor_internal.h"
#include "actors/engine/executor_actor_internal.h"
#include "actors/engine/host_activity_internal.h"
#include "actors/engine/host_inspector_internal.h"
#include "actors/engine/host_messages_internal.h"
#include "actors/engine/reply_collector_internal.h"
#include "actors/engine/stage_actor_internal.h"
#include "actors/engine/supervisor_internal.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using Waits = std::vector<WaitDescription>;

caf::actor_system_config& Configure(caf::actor_system_config& config) {
  // One worker that sleeps on one queue suffices: it runs the stages and the supervisor.
  config.set("scheduler.policy", caf::atom("sharing"));
  config.set("scheduler.max-threads", size_t{1});
  return config;
}

}  // namespace

class Host::Impl {
 public:
  Impl() : system_(Configure(config_)) {}

  ~Impl() { Stop(); }

  absl::Status Start(HostParts parts, absl::Duration timeout) {
    const size_t num_devices = parts.executors.size();
    links_ = parts.links;
    first_device_ = parts.first_device;
    activity_.executors.resize(num_devices);
    const StageCallbacks callbacks = {parts.on_failure, parts.on_declined};
    supervisor_ = system_.spawn<Supervisor>(std::move(parts.on_failure));
    for (size_t i = 0; i < num_devices; ++i) {
      activity_.poll_counters.push_back(std::make_unique<PollCounters>());
    }
    for (size_t stage = 0; stage < parts.stages.size(); ++stage) {
      const StageHandle actor = system_.spawn<StageActor>(
          std::move(parts.stages[stage]), stage, parts.stall_detector, &activity_, callbacks);
      stage_actors_.push_back(actor);
      for (const uint32_t device : parts.stage_devices[stage]) {
        Waker* waker = parts.wakers[device];
        links_[device]->wake_controller = [actor] { caf::anon_send(actor, WakeAtom::value); };
        links_[device]->wake_executor = [waker] { waker->Notify(); };
      }
    }
    for (const HostParts::RemoteLink& remote : parts.remote_links) {
      const StageHandle actor = stage_actors_[remote.stage];
      Waker* waker = parts.wakers[remote.device];
      remote.link->wake_controller = [actor] { caf::anon_send(actor, WakeAtom::value); };
      remote.link->wake_executor = [waker] { waker->Notify(); };
      links_.push_back(remote.link);
    }
    const auto loaded = std::make_shared<ReplyCollector<absl::Status>>(num_devices);
    for (uint32_t i = 0; i < num_devices; ++i) {
      executor_actors_.push_back(system_.spawn<ExecutorActor, caf::detached>(
          ExecutorActor::Setup{i, first_device_ + i, std::move(parts.executors[i]), parts.wakers[i],
                               parts.is_oversubscribed, activity_.poll_counters[i].get(), loaded,
                               &activity_.executors[i]}));
    }
    for (size_t i = 0; i < num_devices; ++i) {
      Supervise(executor_actors_[i], StrCat("executor of device ", first_device_ + i),
                Child::kDeviceExecutor);
    }
    for (size_t i = 0; i < stage_actors_.size(); ++i) {
      Supervise(caf::actor_cast<caf::actor>(stage_actors_[i]), StrCat("controller of stage ", i),
                Child::kStageController);
    }
    const std::vector<std::optional<absl::Status>> statuses = loaded->Wait(timeout);
    for (size_t i = 0; i < num_devices; ++i) {
      if (!statuses[i].has_value()) {
        return absl::DeadlineExceededError(
            StrCat("device ", first_device_ + i, " did not load in time"));
      }
      if (!statuses[i]->ok()) return *statuses[i];
    }
    std::vector<const DeviceExecutor*> executors;
    for (const auto& executor : activity_.executors) executors.push_back(executor.get());
    inspector_ = std::make_shared<HostInspector>(first_device_, executor_actors_, executors);
    // The communication actor starts after loading, because it uses what loading creates.
    communication_actors_.push_back(system_.spawn<CommunicationActor, caf::detached>(
        std::move(parts.communications), parts.transport, parts.communication_waker));
    Supervise(communication_actors_.back(), "communication executor",
              Child::kCommunicationExecutor);
    return absl::OkStatus();
  }

  void Submit(int64_t step, const std::shared_ptr<StepBuffers>& buffers) {
    // Executors first: with a static policy they need no decision of their stage.
    for (const caf::actor& actor : executor_actors_) {
      caf::anon_send(actor, SubmitMessage{step, buffers});
    }
    for (const StageHandle& actor : stage_actors_) {
      caf::anon_send(actor, SubmitMessage{step, nullptr});
    }
  }

  std::vector<WaitDescription> Describe(absl::Duration timeout) {
    const size_t num_devices = executor_actors_.size();
    const auto replies =
        std::make_shared<ReplyCollector<Waits>>(num_devices + stage_actors_.size());
    for (const caf::actor& actor : executor_actors_) {
      caf::anon_send(actor, DescribeMessage{replies});
    }
    for (const StageHandle& actor : stage_actors_) caf::anon_send(actor, DescribeMessage{replies});
    Waits waits;
    const std::vector<std::optional<Waits>> received = replies->Wait(timeout);
    for (size_t i = 0; i < received.size(); ++i) {
      if (received[i].has_value()) {
        waits.insert(waits.end(), received[i]->begin(), received[i]->end());
      } else if (i < num_devices) {
        waits.push_back({StrCat("device ", first_device_ + i, ": does not answer; ",
                                activity_.executors[i]->DescribeRunningActor())});
      } else {
        waits.push_back({StrCat("stage ", i - num_devices, ": does not answer")});
      }
    }
    return waits;
  }

  absl::StatusOr<ActivityReport> ReportActivity(absl::Duration timeout) {
    const auto replies = std::make_shared<ReplyCollector<std::string>>(stage_actors_.size());
    for (const StageHandle& actor : stage_actors_) caf::anon_send(actor, DeclinedMessage{replies});
    const std::vector<std::optional<std::string>> received = replies->Wait(timeout);
    std::string declined;
    for (size_t i = 0; i < received.size(); ++i) {
      if (!received[i].has_value()) {
        return absl::DeadlineExceededError(StrCat("stage ", i, " does not answer"));
      }
      if (declined.empty()) declined = *received[i];
    }
    return activity_.Report(std::move(declined));
  }

  std::vector<TraceEvent> TakeTrace(uint32_t device) {
    return activity_.executors[device]->TakeTrace();
  }

  const std::shared_ptr<HostInspector>& inspector() const { return inspector_; }

  void Stop() {
    if (is_stopped_) return;
    is_stopped_ = true;
    if (inspector_ != nullptr) inspector_->Close();
    Join(&executor_actors_);
    Join(&communication_actors_);
    Join(&stage_actors_);
    for (StageLink* link : links_) {
      link->wake_controller = nullptr;
      link->wake_executor = nullptr;
    }
    std::vector<SupervisorActor> last;
    if (supervisor_) last.push_back(std::move(supervisor_));
    supervisor_ = nullptr;
    Join(&last);
  }

  caf::actor_system& actor_system() { return system_; }

 private:
  void Supervise(const caf::actor& actor, std::string name, Child child) {
    Watch(supervisor_, {actor, std::move(name), child, nullptr});
  }

  // Has no bound of its own. The actors of stages and the supervisor never block. Executors and the
  // communication executor do not wait for other processes once they are told to end; what can keep
  // an executor is a kernel, which uses the memory of this and cannot be ended from outside. The
  // session's timeout has named it before (Session::Wait), and the watchdog of a node ends the
  // process (node.cc).
  template <typename Handle>
  void Join(std::vector<Handle>* actors) {
    caf::scoped_actor self(system_, true);
    for (const Handle& actor : *actors) {
      caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
    }
    for (const Handle& actor : *actors) self->wait_for(actor);
    actors->clear();
  }

  HostActivity activity_;  // outlives the actors
  caf::actor_system_config config_;
  caf::actor_system system_;
  std::vector<StageLink*> links_;
  uint32_t first_device_ = 0;
  std::vector<caf::actor> executor_actors_;
  std::vector<StageHandle> stage_actors_;
  std::vector<caf::actor> communication_actors_;
  SupervisorActor supervisor_;
  std::shared_ptr<HostInspector> inspector_;  // null until the executors are loaded
  bool is_stopped_ = false;
};

Host::Host(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Host::~Host() = default;

absl::StatusOr<std::unique_ptr<Host>> Host::Start(HostParts parts, absl::Duration timeout) {
  auto impl = std::make_unique<Impl>();
  const absl::Status status = impl->Start(std::move(parts), timeout);
  if (!status.ok()) return status;
  return std::unique_ptr<Host>(new Host(std::move(impl)));
}

void Host::Submit(int64_t step, const std::shared_ptr<StepBuffers>& buffers) {
  impl_->Submit(step, buffers);
}
std::vector<WaitDescription> Host::Describe(absl::Duration timeout) {
  return impl_->Describe(timeout);
}
absl::StatusOr<ActivityReport> Host::ReportActivity(absl::Duration timeout) {
  return impl_->ReportActivity(timeout);
}
std::vector<TraceEvent> Host::TakeTrace(uint32_t device) { return impl_->TakeTrace(device); }
std::shared_ptr<LocalInspector> Host::inspector() const { return impl_->inspector(); }
void Host::Stop() { impl_->Stop(); }
caf::actor_system& Host::actor_system() { return impl_->actor_system(); }

}  // namespace penstock::actors
