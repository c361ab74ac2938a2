#include <cstddef>
#include <utility>

#include "actors/cluster/cluster_actors_internal.h"
#include "actors/engine/caf_thread_internal.h"

namespace penstock::actors {

ClusterActors::ClusterActors(OutputPump::OnOutput on_output, RankTable ranks,
                             Membership::OnLoss on_loss,
                             std::function<void(const absl::Status& status)> on_failure) {
  const CafThread thread;
  // A worker for the pump, whose reader may block, and one for the others.
  config_.set("scheduler.policy", caf::atom("sharing"));
  config_.set("scheduler.max-threads", size_t{2});
  system_ = std::make_unique<caf::actor_system>(config_);
  pump_ = std::make_unique<OutputPump>(*system_, std::move(on_output));
  membership_ = std::make_unique<Membership>(*system_, std::move(ranks), std::move(on_loss));
  supervisor_ = system_->spawn<Supervisor>(std::move(on_failure));
  Watch(supervisor_, {pump_->Start(), "output pump", Child::kOutputPump,
                      [pump = pump_.get()] { return pump->Start(); }});
  Watch(supervisor_, {membership_->actor(), "membership", Child::kMembership, nullptr});
}

ClusterActors::~ClusterActors() {
  Stop(absl::ZeroDuration());
  const CafThread thread;
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
  membership_->Stop();
  (void)pump_->Stop(reader_timeout);
}

}  // namespace penstock::actors
