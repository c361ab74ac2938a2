#include <cstddef>
#include <utility>

#include "actors/cluster/cluster_actors_internal.h"
#include "actors/engine/caf_thread_internal.h"

namespace penstock::actors {

ClusterActors::ClusterActors(Setup setup) {
  const CafThread thread;
  // A worker for the pump, whose reader may block, one for the membership, whose handler may, and
  // one for the others: the failure detector is on time whatever these do.
  config_.set("scheduler.policy", caf::atom("sharing"));
  config_.set("scheduler.max-threads", size_t{3});
  system_ = std::make_unique<caf::actor_system>(config_);
  pump_ = std::make_unique<OutputPump>(*system_, std::move(setup.on_output));
  membership_ =
      std::make_unique<Membership>(*system_, std::move(setup.ranks), std::move(setup.on_loss));
  setup.processes.on_line = [pump = pump_.get(), on_line = std::move(setup.processes.on_line)](
                                uint32_t rank, std::string_view line) {
    if (on_line) on_line(rank, line);
    pump->Print(rank, line);
  };
  launcher_ = std::make_unique<ProcessLauncher>(*system_, std::move(setup.make_launcher),
                                                std::move(setup.processes));
  setup.detector.kill = [launcher = launcher_.get()](uint32_t rank) { launcher->Kill(rank); };
  failure_detector_ = std::make_unique<FailureDetector>(*system_, membership_->typed_actor(),
                                                        setup.times, std::move(setup.detector));
  supervisor_ = system_->spawn<Supervisor>(std::move(setup.on_failure));
  Watch(supervisor_, {pump_->Start(), "output pump", Child::kOutputPump,
                      [pump = pump_.get()] { return pump->Start(); }});
  Watch(supervisor_, {membership_->actor(), "membership", Child::kMembership, nullptr});
  Watch(supervisor_, {membership_->join_proxy(), "join proxy", Child::kJoinProxy,
                      [membership = membership_.get()] { return membership->StartJoinProxy(); }});
  Watch(supervisor_,
        {failure_detector_->actor(), "failure detector", Child::kFailureDetector, nullptr});
  Watch(supervisor_, {launcher_->actor(), "launcher", Child::kLauncher, nullptr});
}

ClusterActors::~ClusterActors() {
  Stop(absl::ZeroDuration());
  const CafThread thread;
  failure_detector_ = nullptr;
  launcher_ = nullptr;
  membership_ = nullptr;
  pump_ = nullptr;
  system_ = nullptr;
}

// The supervisor first: nothing is restarted any more.
void ClusterActors::Stop(absl::Duration reader_timeout) {
  if (!supervisor_) return;
  const CafThread thread;
  {
    caf::scoped_actor self(*system_);
    self->send_exit(supervisor_, caf::exit_reason::user_shutdown);
    self->wait_for(supervisor_);
    supervisor_ = nullptr;
  }
  launcher_->Stop();
  failure_detector_->Stop();
  membership_->Stop();
  (void)pump_->Stop(reader_timeout);
}

}  // namespace penstock::actors
